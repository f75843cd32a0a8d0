from __future__ import annotations

import decimal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.data.load import load_pairs
from prb.data.publish import convert, fold
from prb.data.source import MemorySource, open_source, unfold
from prb.errors import BadData, BadInput
from tests.conftest import Row, make_row, make_twins
from tests.data.broken import line, sound

Write = Callable[..., Path]

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
POST = st.fixed_dictionaries(
    {"text": TEXT}, optional={"id": TEXT | st.integers(0, 9) | st.none(), "category": TEXT, "stars": JSON}
)
ASPECT = st.fixed_dictionaries({"aspect": TEXT}, optional={"evidence": TEXT, "reason": TEXT, "weight": JSON})
ROW = st.fixed_dictionaries(
    {"id": TEXT | st.integers(0, 99), "question": TEXT},
    optional={
        "profile": st.lists(POST, max_size=3) | st.dictionaries(TEXT, TEXT, max_size=2) | JSON,
        "rubric_aspects": st.lists(ASPECT, max_size=2) | JSON,
        "groups": st.dictionaries(TEXT, TEXT, max_size=2) | JSON,
        "drift": st.booleans() | JSON,
        "rating": st.floats(0, 1) | st.integers(0, 1) | JSON,
        "tier": JSON,
        "chosen": JSON,
        "extra_json": JSON,
    },
) | st.dictionaries(TEXT, JSON, max_size=3)


def written(path: Path) -> list[bytes]:
    """MemorySource as bytes, so that 1 and 1.0, or absent and null, do not pass for the same."""
    return [orjson.dumps(row.data, option=orjson.OPT_SORT_KEYS) for row in open_source(str(path)).rows()]


def there_and_back(path: Path) -> list[bytes]:
    parquet, back = path.with_name("there.parquet"), path.with_name("back.jsonl")
    convert(open_source(str(path)), parquet)
    convert(open_source(str(parquet)), back)
    return written(back)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4))
def test_rows_survive_parquet_and_back(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.jsonl"
        path.write_bytes(b"".join(map(line, rows)))
        assert there_and_back(path) == [orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in rows]


@pytest.mark.parametrize(
    "changes",
    [
        {"mood": {"deep": [1, None, {"x": []}]}, "stars": 4},
        {"profile": [{"text": "Tea."}, {"text": "Rain.", "id": 3, "stars": [1], "category": None}]},
        {"profile": [{"id": "a", "category": "b", "text": "Tea.", "mood": "low"}]},
        {"profile": {"likes": "brevity", "age": 61}},
        {"profile": {}},
        {"profile": []},
        {"groups": {}},
        {"groups": {"age": "60+"}},
        {"id": 7, "user": 8},
        {"drift": True, "rating": 1},
        {"rubric_aspects": [{"aspect": "brevity", "weight": 2.5}]},
    ],
    ids=" ".join,
)
def test_what_does_not_fit_a_column_is_not_lost(changes: Row, write_jsonl: Write) -> None:
    path = write_jsonl([make_row(1), make_row(2, **changes), make_row(3)])
    assert there_and_back(path) == written(path)


def test_null_stays_null_and_absent_stays_absent(write_jsonl: Write) -> None:
    path = write_jsonl([{**make_row(1), "tier": None, "groups": None, "drift": None, "profile": None}, make_row(2)])
    assert there_and_back(path) == written(path)


def test_common_fields_get_columns_of_their_own(write_jsonl: Write, tmp_path: Path) -> None:
    path = write_jsonl([make_row(1, mood=1)])
    assert convert(open_source(str(path)), tmp_path / "x.parquet") == 1
    [row] = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert row["question"] == "How do I water plant number 1?"
    assert row["profile"][0]["id"] == "u1-1"
    assert row["extra_json"] == '{"mood":1}'


def test_unknown_fields_only_go_to_the_extra_column() -> None:
    row = make_row(1, mood="low")
    folded = fold(row)
    assert orjson.loads(folded["extra_json"]) == {"mood": "low"}
    assert unfold(folded) == row


def test_more_rows_than_a_batch_are_all_written(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": n} for n in range(2500)]
    assert convert(MemorySource("x", rows), tmp_path / "x.parquet") == 2500
    assert [row.data for row in open_source(str(tmp_path / "x.parquet")).rows()] == rows


def test_every_split_is_converted(write_jsonl: Write, tmp_path: Path) -> None:
    path = write_jsonl([make_row(1, split="train"), make_row(2, split="test"), make_row(3)])
    assert convert(open_source(str(path)), tmp_path / "x.ndjson") == 3


def test_a_folder_becomes_one_file_that_knows_its_splits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.jsonl").write_bytes(line(sound(1)))
    (tmp_path / "in" / "test.jsonl").write_bytes(line(sound(2)))
    convert(open_source(str(tmp_path / "in")), tmp_path / "all.parquet")
    assert [pair.id for pair in load_pairs(str(tmp_path / "all.parquet"), split="train")] == ["r1"]


def test_converted_twins_are_still_twins(write_jsonl: Write, tmp_path: Path) -> None:
    path = write_jsonl(make_twins(1))
    convert(open_source(str(path)), tmp_path / "x.parquet")
    assert load_pairs(str(tmp_path / "x.parquet")) == load_pairs(str(path))


def test_a_file_may_be_converted_onto_itself(write_jsonl: Write) -> None:
    path = write_jsonl([make_row(1), make_row(2)])
    before = written(path)
    convert(open_source(str(path)), path)
    assert written(path) == before


@pytest.mark.parametrize("target", ["x.parquet", "x.jsonl"])
@pytest.mark.parametrize(("bad", "what"), [(b"{broken\n", "broken JSON"), (b"5\n", "a row must be an object")])
def test_a_failed_conversion_leaves_no_file(target: str, bad: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(line(sound(1)) + bad)
    with pytest.raises(BadData, match=f"set.jsonl:2: {what}"):
        convert(open_source(str(path)), tmp_path / target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.jsonl"]


def test_a_failed_conversion_leaves_an_older_file_alone(tmp_path: Path) -> None:
    path, target = tmp_path / "set.jsonl", tmp_path / "x.parquet"
    path.write_bytes(line(sound(1)))
    convert(open_source(str(path)), target)
    before = target.read_bytes()
    path.write_bytes(line(sound(1)) + b"{broken\n")
    with pytest.raises(BadData):
        convert(open_source(str(path)), target)
    assert target.read_bytes() == before


@pytest.mark.parametrize("target", ["x.jsonl", "y.parquet"])
def test_a_value_that_json_does_not_know_is_refused(target: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "price": [decimal.Decimal("1.50")]}), tmp_path / "x.parquet")
    with pytest.raises(BadInput, match=r"x.parquet holds a value that cannot be written as JSON: .*Decimal"):
        convert(open_source(str(tmp_path / "x.parquet")), tmp_path / target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl.gz", "x"])
def test_an_unknown_target_format_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"{name}: unknown format; known formats are .jsonl, .ndjson, .parquet"):
        convert(MemorySource("x", [make_row(1)]), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_target_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone does not exist"):
        convert(MemorySource("x", [make_row(1)]), tmp_path / "gone" / "x.jsonl")
