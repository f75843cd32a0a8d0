"""Conversion loses nothing; what is published is read back by `datasets`, the hub's card parser."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.data.load import load
from prb.data.publish import convert, push, read_card
from prb.data.source import MemorySource, open_source
from prb.errors import BadData, BadInput, PrbError
from tests.conftest import make_row, make_twins
from tests.data.broken import line, sound
from tests.runs import names

Write = Callable[..., Path]


def rows_of(spec: str) -> list[Any]:
    return sorted((row.data for row in open_source(spec).rows()), key=lambda row: str(row["id"]))


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    """Two splits, a conversation, past choices, groups and a field of somebody else."""
    choices = [{"question": "Tea?", "chosen": "Green.", "rejected": "Black."}]
    context = [{"role": "user", "text": "Hi."}]
    rows = [
        make_row(1, split="dev", context=context, choices=choices),
        *make_twins(2, split="test", groups={"age": "a"}),
    ]
    return write_jsonl([{**row, "mood": {"good": True}} for row in rows])


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    about = tmp_path / "about.md"
    about.write_text("# Plants\n\nPeople who water plants.\n\nMade by hand.\n", "utf-8")
    assert push(str(data), str(tmp_path / "out"), license="cc0-1.0", about=about) == str(tmp_path / "out")
    return tmp_path / "out"


def test_what_is_pushed_reads_back_without_loss(data, folder) -> None:
    assert names(folder) == ["README.md", "dev.parquet", "test.parquet"]
    assert rows_of(str(folder)) == rows_of(str(data))
    assert len(load(str(folder), split="test")) == 2


def test_datasets_finds_the_splits_and_features(folder, tmp_path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the hub extra")
    splits = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in splits.items()} == {"dev": 1, "test": 2}
    assert splits["dev"][0]["choices"] == [{"question": "Tea?", "chosen": "Green.", "rejected": "Black."}]


def test_the_card_has_metadata_splits_license_and_fingerprint(data, folder) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the hub extra")
    card = hub.DatasetCard.load(folder / "README.md")
    assert (card.data.license, card.data.pretty_name) == ("cc0-1.0", "Plants")
    assert [file["split"] for file in card.data.to_dict()["configs"][0]["data_files"]] == ["dev", "test"]
    assert "Made by hand." in card.text
    assert "3 rows of 3 users" in card.text
    assert load(str(data), split="all").fingerprint in card.text


def test_a_folder_that_was_pushed_can_be_pushed_again_and_keeps_its_text(folder, tmp_path) -> None:
    push(str(folder), str(tmp_path / "copy"))
    text, metadata = read_card(tmp_path / "copy" / "README.md")
    assert "Made by hand." in text
    assert "| split |" not in text
    assert metadata["license"] == "cc0-1.0"
    push(str(folder), str(tmp_path / "copy"))  # a pushed folder is replaced


def test_the_embedded_benchmark_comes_with_its_license(tmp_path) -> None:
    push("mirror", str(tmp_path / "mirror"))
    text, metadata = read_card(tmp_path / "mirror" / "README.md")
    assert metadata["license"] == "cc-by-4.0"
    assert "model that ignores the user scores exactly 50 %" in text
    splits = [f"{split}.parquet" for split in ("dev", "hard", "restraint", "test")]
    assert names(tmp_path / "mirror") == ["README.md", *splits]


def test_nothing_of_others_is_overwritten_and_bad_rows_are_refused(data, write_jsonl, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(BadInput, match=r"also holds thesis\.txt"):
        push(str(data), str(tmp_path / "mine"))
    with pytest.raises(BadInput, match="is a file"):
        push(str(data), str(data))
    with pytest.raises(BadData):
        push(str(write_jsonl([make_row(1, chosen=None)], "bad.jsonl")), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


class FakeApi:
    def __init__(self, **_: Any) -> None:
        self.calls: list[Any] = []
        CALLS.append(self.calls)

    def create_repo(self, repo: str, **options: Any) -> str:
        self.calls.append(("create", repo, options))
        return f"https://huggingface.co/datasets/{repo}"

    def upload_folder(self, *, folder_path: Path, **options: Any) -> None:
        self.calls.append(("upload", names(folder_path), options))


CALLS: list[list[Any]] = []


def test_the_hub_gets_the_folder_and_a_new_repository_is_private(data, monkeypatch) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the hub extra")
    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    assert push(str(data), "hub:me/plants") == "https://huggingface.co/datasets/me/plants"
    (create, upload) = CALLS[-1]
    assert create == ("create", "me/plants", {"repo_type": "dataset", "private": True, "exist_ok": True})
    assert upload[1] == ["README.md", "dev.parquet", "test.parquet"]
    assert (upload[2]["repo_id"], upload[2]["repo_type"]) == ("me/plants", "dataset")


def test_a_hub_that_cannot_be_reached_is_one_line(data, monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the hub extra")

    def refuse(*_: Any, **__: Any) -> None:
        raise hub.errors.OfflineModeIsEnabled("offline\nsecond line")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(PrbError, match=r"^hub:me/plants cannot be written: offline$"):
        push(str(data), "hub:me/plants")


# conversion

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALAR = st.none() | st.booleans() | NUMBER | TEXT
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


@settings(max_examples=150, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4))
def test_rows_survive_parquet_and_back(rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, parquet, back = (Path(folder, name) for name in ("set.jsonl", "there.parquet", "back.jsonl"))
        path.write_bytes(b"".join(map(line, rows)))
        convert(open_source(str(path)), parquet)
        convert(open_source(str(parquet)), back)
        read = [row.data for row in open_source(str(back)).rows()]
    # as bytes, so that 1 and 1.0, or absent and null, do not pass for the same
    before, after = ([orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in part] for part in (rows, read))
    assert after == before


@pytest.mark.parametrize("target", ["x.parquet", "x.jsonl"])
@pytest.mark.parametrize(("bad", "what"), [(b"{broken\n", "broken JSON"), (b"5\n", "a row must be an object")])
def test_a_failed_conversion_leaves_no_file_and_an_older_one_alone(target, bad, what, tmp_path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(line(sound(1)) + bad)
    with pytest.raises(BadData, match=f"set.jsonl:2: {what}"):
        convert(open_source(str(path)), tmp_path / target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.jsonl"]
    (tmp_path / target).write_bytes(b"older")
    with pytest.raises(BadData):
        convert(open_source(str(path)), tmp_path / target)
    assert (tmp_path / target).read_bytes() == b"older"


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl.gz", "x", "gone/x.jsonl"])
def test_an_unknown_format_or_folder_is_refused(name, tmp_path) -> None:
    says = "gone does not exist" if "/" in name else f"{name}: unknown format; known formats are .jsonl, .parquet"
    with pytest.raises(BadInput, match=says):
        convert(MemorySource("x", [make_row(1)]), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
