from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput, RunConflict
from prb.runs import (
    CONFIG,
    FORMAT,
    REPLIES,
    RunFolder,
    draft,
    read_identity,
    read_json,
    read_lines,
    write_json,
    write_lines,
)

CONFIGURED = {"dataset": "mirror", "seed": 0, "retrieval": {"k": 10, "ranker": "bm25"}}
HOLD = """
import sys
from pathlib import Path
from prb.runs import RunFolder
with RunFolder(Path(sys.argv[1]), {"seed": 0}):
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


def written(folder: Path) -> bytes:
    with RunFolder(folder, CONFIGURED):
        write_lines(folder / REPLIES, [{"pair": "r1"}, {"pair": "r2"}])
    return (folder / REPLIES).read_bytes()


def refused(folder: Path, error: type[BadInput], why: str, identity: Mapping[str, Any] = CONFIGURED) -> str:
    with pytest.raises(error, match=why) as caught, RunFolder(folder, identity):
        pass
    return str(caught.value)


def test_a_second_process_is_kept_out_and_let_in_later(folder):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "locked\n"
        refused(folder, RunConflict, "first is being written by another process", {"seed": 0})
        assert (folder / CONFIG).exists()
    finally:
        holder.communicate("done\n")
    assert holder.returncode == 0
    with RunFolder(folder, {"seed": 0}):
        assert not (folder / REPLIES).exists()


def test_a_fresh_run_forgets_the_one_before_and_leaves_what_is_not_its_own(folder):
    written(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "summary.json").write_text("{}")
    with RunFolder(folder, {"seed": 9}, fresh=True):
        assert not (folder / "summary.json").exists()
    assert (folder / "notes.txt").read_text() == "mine"
    assert read_identity(folder)["seed"] == 9
    assert "models" not in read_identity(folder)


def test_another_configuration_is_refused_with_every_key_that_differs(folder):
    before = written(folder)
    other = {"dataset": "mirror", "seed": 1, "retrieval": {"k": 10, "ranker": "recency"}, "limit": 5}
    assert refused(folder, RunConflict, "was made with other settings", other).splitlines() == [
        f"{folder} was made with other settings; choose another --out or change these back:",
        "  seed: 0 → 1",
        '  retrieval.ranker: "bm25" → "recency"',
        "  limit: null → 5",
    ]
    assert (folder / REPLIES).read_bytes() == before
    assert read_identity(folder) == {"format": FORMAT, **CONFIGURED}


def test_a_folder_that_is_no_run_is_left_alone(folder):
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("precious")
    refused(folder, RunConflict, "exists and is not a run; choose another --out")
    assert [entry.name for entry in folder.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("precious")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        refused(folder, BadInput, "cannot be a run folder")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_model_that_changed_under_its_name_is_refused(folder):
    with RunFolder(folder, CONFIGURED) as run:
        run.confirm_model("embedding", "wordllama-1")
        run.confirm_model("embedding", "wordllama-1")
        write_lines(folder / REPLIES, [{"pair": "r1"}])
    with RunFolder(folder, CONFIGURED) as run:
        run.confirm_model("lexical", "v1")
        with pytest.raises(
            RunConflict, match=r"model 'embedding' was 'wordllama-1' when the run began and is 'wordllama-2' now"
        ):
            run.confirm_model("embedding", "wordllama-2")
    assert read_json(folder / CONFIG)["models"] == {"embedding": "wordllama-1", "lexical": "v1"}


def test_a_run_that_fails_is_kept_from_its_first_reply_on_and_leaves_no_trace_before(folder):
    def fail(*rows: object) -> None:
        with RunFolder(folder, CONFIGURED):
            write_lines(folder / REPLIES, rows)
            raise ValueError("bad luck")

    for rows in ((), ({"pair": "r1"},)):
        with pytest.raises(ValueError, match="bad luck"):
            fail(*rows)
        assert folder.exists() == bool(rows)
    assert list(read_lines(folder / REPLIES)) == [{"pair": "r1"}]
    assert read_identity(folder) == {"format": FORMAT, **CONFIGURED}


def test_a_draft_takes_the_place_of_a_file_or_a_folder_when_it_is_whole(tmp_path):
    for place in (tmp_path / "file", tmp_path / "folder"):
        for content in ("first", "second"):
            with draft(place) as part:
                if place.name == "folder":
                    part.mkdir()
                    (part / "inside").write_text(content)
                else:
                    part.write_text(content)
            assert (place / "inside" if place.is_dir() else place).read_text() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_of_another_format_is_refused_by_its_version(folder):
    written(folder)
    write_json(folder / CONFIG, {**CONFIGURED, "format": 7})
    refused(folder, RunConflict, "run format 7; this version of prb reads format 3")
