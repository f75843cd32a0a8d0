from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load, load_pairs
from prb.data.source import MemorySource, file_source, find_row, open_source
from prb.errors import BadInput, UnknownName
from tests.conftest import make_row
from tests.data.broken import line, sound
from tests.data.named.test_personamem import write_csv


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


# what a spec means


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("miror", r"no dataset named 'miror'; did you mean 'mirror'"),
        ("qqqq", r"no dataset named 'qqqq'; give a file, a folder, or hub:owner/name"),
        ("mirror?year=1994", r"no option of dataset 'mirror' named 'year'; it takes: split, users, seed"),
        *((spec, f"^{spec} does not exist$") for spec in ("gone.jsonl", "gone.parquet", "gone/folder", "./mirror")),
    ],
)
def test_a_spec_that_names_nothing_is_refused_with_what_it_may_be(spec, says) -> None:
    with pytest.raises(BadInput, match=says):
        open_source(spec)


# lines


def test_blank_lines_are_counted_and_a_mark_is_dropped_at_the_start_only(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"id": 1}\r\n \t\n\n\xef\xbb\xbf{"id": 2}\n{"id": 3}')
    first, second, third = file_source(path).rows()
    assert [(row.line, row.data) for row in (first, third)] == [(2, {"id": 1}), (6, {"id": 3})]
    assert (second.line, str(second.problem)[:11]) == (5, "broken JSON")


def test_a_line_of_50_mb_is_refused_and_the_next_one_read(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:  # the long line takes no room on the disk
        file.write(line(sound(1)))
        file.seek(50 << 20, 1)
        file.write(b"\n" + line(sound(3)))
    rows = list(file_source(path).rows())
    problems = [None, "the line is longer than 16 MB", None]
    assert [(row.line, row.problem) for row in rows] == list(enumerate(problems, 1))
    assert rows[2].data == sound(3)
    assert load(str(path), skip_bad=True).index.ids == ["r1", "r3"]


# Parquet


def test_empty_cells_are_absent_fields_at_any_depth(tmp_path) -> None:
    posts = [{"id": "p1", "text": "Tea."}, {"id": None, "text": "Rain."}]
    rows = [{"id": "a", "tier": None, "profile": posts}, {"id": "b", "tier": "x"}]
    first, second = (row.data for row in file_source(write_parquet(tmp_path / "x.parquet", rows)).rows())
    assert first == {"id": "a", "profile": [{"id": "p1", "text": "Tea."}, {"text": "Rain."}]}
    assert second == {"id": "b", "tier": "x"}


# folders


def test_file_names_name_the_split_unless_a_row_does(tmp_path) -> None:
    (tmp_path / "train.jsonl").write_bytes(line(sound(1)) + line(sound(4, split="test")))
    (tmp_path / "validation-extra.jsonl").write_bytes(line(sound(2)))
    write_parquet(tmp_path / "test-00000-of-00001.parquet", [sound(3)])
    for split, ids in {"train": ["r1"], "validation": ["r2"], "test": ["r3", "r4"]}.items():
        assert load(str(tmp_path), split=split).index.ids == ids
    assert load(str(tmp_path)).split == "test"


def test_files_are_read_by_name_and_rows_placed_in_their_file(tmp_path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("c.jsonl", "b/x.jsonl", "a.jsonl"):
        (tmp_path / name).write_bytes(line({"id": name}))
    places = [(row.place, row.line, row.data["id"]) for row in open_source(str(tmp_path)).rows()]
    assert places == [("a.jsonl", 1, "a.jsonl"), ("b/x.jsonl", 1, "b/x.jsonl"), ("c.jsonl", 1, "c.jsonl")]


def test_a_subset_is_a_folder_of_splits_or_a_file(tmp_path) -> None:
    subsets = {"Art/test-00000-of-00002.jsonl": "Art", "Art_test.jsonl": "Art_test.jsonl", "test.jsonl": "."}
    (tmp_path / "Art").mkdir()
    for n, name in enumerate(subsets):
        (tmp_path / name).write_bytes(line(sound(n)))
    assert [subset for subset, _ in load(str(tmp_path), split="all").subsets()] == list(subsets.values())


def test_hidden_and_foreign_files_are_left_alone_and_other_names_name_no_split(tmp_path) -> None:
    (tmp_path / ".git").mkdir()
    for name in (".git/x.jsonl", ".draft.jsonl", "notes.txt", "table.csv"):
        (tmp_path / name).write_bytes(b"no row at all")
    (tmp_path / "x.jsonl").write_bytes(line(sound(1)))
    dataset = load(str(tmp_path))
    assert (dataset.index.ids, dataset.split) == (["r1"], None)


def test_a_folder_without_data_and_an_id_in_two_files_are_refused(tmp_path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadInput, match=r"holds no .jsonl or .parquet or .json or .csv file"):
        load(str(tmp_path))
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(line(sound(1)))
    with pytest.raises(BadInput, match=r"b.jsonl:1: duplicate id 'r1', first seen at a.jsonl:1"):
        load(str(tmp_path))


# rows in memory


def test_the_bytes_of_a_row_do_not_depend_on_the_order_of_its_fields() -> None:
    row = sound(1)
    first, second = MemorySource("x", [row, dict(reversed(row.items()))]).rows()
    assert first.raw == second.raw
    assert orjson.loads(first.raw) == row


# one row


def test_a_row_is_found_by_id_or_place_in_any_split_and_beside_broken_lines(tmp_path) -> None:
    path = tmp_path / "set.jsonl"
    rows = [make_row(1, split="train"), make_row(2, id=17, split="test"), make_row(3, id=None)]
    path.write_bytes(b"{broken\n5\n" + b"".join(map(line, rows)))
    for name, row in zip(("r1", "17", "set.jsonl:5"), rows, strict=True):
        assert find_row(str(path), name).data == row


@pytest.mark.parametrize(
    ("rows", "name", "says"),
    [
        ([make_row(1, id="c01-q1-amparo")], "c01-q1-ampar", r"no row of .*set.jsonl named .*did you mean 'c01-q1-amp"),
        ([make_row(1)], "zzzzzz", r"named 'zzzzzz'; ids look like 'r1'"),
        ([], "r1", r"named 'r1'; it is empty"),
    ],
)
def test_an_id_that_is_not_there_brings_the_nearest_one(write_jsonl, rows, name, says) -> None:
    with pytest.raises(UnknownName, match=says):
        find_row(str(write_jsonl(rows)), name)


# JSON


def write(path: Path, content: str) -> Path:
    path.write_text(content, "utf-8", newline="")
    return path


@pytest.mark.parametrize("content", [' [\n {"id": 1}\n ,\n {"id": 2} ]\n', '\ufeff[{"id":1},{"id":2}]'])
def test_a_list_of_objects_is_rows(tmp_path, content) -> None:
    rows = list(file_source(write(tmp_path / "x.json", content)).rows())
    assert [(row.line, row.data) for row in rows] == [(1, {"id": 1}), (2, {"id": 2})]


# CSV


def test_a_table_loads_with_json_in_its_structured_columns(tmp_path) -> None:
    rows = [
        {**row, "profile": orjson.dumps(row["profile"]).decode(), "rubric_aspects": "", "narrative": "", "tier": ""}
        for row in (sound(1), sound(2, chosen='Two\nlines, and a "quote".'))
    ]
    pairs = load_pairs(str(write_csv(tmp_path / "x.csv", rows)))
    assert [pair.id for pair in pairs] == ["r1", "r2"]
    assert pairs[1].chosen == 'Two\nlines, and a "quote".'
    assert (pairs[1].rubric, pairs[1].narrative, pairs[1].tier) == ((), "", None)
    assert pairs[0].profile[0].text == sound(1)["profile"][0]["text"]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_tables_may_be_separated_by_semicolons_or_tabs(tmp_path, separator) -> None:
    table = "question;chosen;rejected;user\r\nTea, or not?;Yes.;No.;ann\r\n".replace(";", separator)
    (pair,) = load_pairs(str(write(tmp_path / "x.csv", table)))
    assert (pair.question, pair.answers, pair.user) == ("Tea, or not?", ("Yes.", "No."), "ann")


def test_a_row_is_placed_where_it_begins(tmp_path) -> None:
    path = write(tmp_path / "x.csv", '\ufeffid,text\r\n1,"two\nlines"\r\n\r\n2,x\r\n')
    rows = [(row.line, row.data) for row in open_source(str(path)).rows()]
    assert rows == [(2, {"id": "1", "text": "two\nlines"}), (5, {"id": "2", "text": "x"})]


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ("id,text\n1,a\n2\n", 3, "the row has 1 cells, the header 2"),
        ('id,text\n1,a\n2,"b\n', 3, "broken CSV: unexpected end of data"),
        ('id,text\n1,a\n2,"b"c\n', 3, "broken CSV"),
    ],
)
def test_a_damaged_table_names_the_line(tmp_path, content, line, says) -> None:
    last = list(file_source(write(tmp_path / "x.csv", content)).rows())[-1]
    assert last.line == line
    assert last.problem is not None
    assert last.problem.startswith(says)
