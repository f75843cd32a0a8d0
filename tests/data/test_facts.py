"""A large file is checked by several processes with the result of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import prb.data.facts
from prb.data.facts import CheckerProcess, Part, check_part, parts_of
from prb.data.load import Dataset, load
from prb.data.schema import Task
from prb.data.source import open_source
from prb.errors import BadData

SMALL_PART = 20_000


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prb.data.facts, "LARGE", 1)
    monkeypatch.setattr(prb.data.facts, "PART", SMALL_PART)
    monkeypatch.setattr(prb.data.facts, "cores", lambda: 3)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Mirror rows, rows of several answers, and everything that makes a fingerprint differ from that of the bytes."""
    lines = [orjson.dumps(row.data) for row in open_source("mirror").rows()][:60]
    several = {**orjson.loads(lines[0]), "id": "several", "chosen": ["one", "two"], "rejected": ["three"]}
    del several["mirror"]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([*lines[:30], b"", orjson.dumps(several), b"  ", *lines[30:]]))
    return path


def kept(dataset: Dataset) -> tuple[Any, ...]:
    posts = {name: [post.text for post in dataset.users.history(name).posts] for name in dataset.users.names}
    return dataset.fingerprint, dataset.index, dataset.problems, posts, list(dataset)


def test_a_file_in_parts_gives_what_it_gives_as_a_whole(rows: Path, request: pytest.FixtureRequest) -> None:
    whole = kept(load(str(rows), split="all", skip_bad=True, donors=True))
    request.getfixturevalue("in_small_parts")
    assert len(parts_of(rows)) > 6
    assert kept(load(str(rows), split="all", skip_bad=True, donors=True)) == whole


def test_ratings_without_ids_are_named_after_their_lines(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "ratings.jsonl"
    rating = {"user": "u", "question": "q", "profile": [{"text": "long " * 100}], "answer": "a", "rating": 0.5}
    path.write_bytes(b"".join(orjson.dumps({**rating, "user": f"u{n}"}) + b"\n" for n in range(200)))
    whole = load(str(path), task="ratings")
    assert [item.id for item in whole] == [f"ratings.jsonl:{n}" for n in range(1, 201)]
    request.getfixturevalue("in_small_parts")
    assert len(parts_of(path)) > 3
    assert load(str(path), task="ratings").index == whole.index


def test_wrong_lines_are_named_by_their_number_in_the_file(rows: Path, request: pytest.FixtureRequest) -> None:
    lines = rows.read_bytes().split(b"\n")
    lines[3], lines[50], lines[57] = b"{broken", b'{"id": 5}', lines[10]
    rows.write_bytes(b"\n".join(lines))
    with pytest.raises(BadData) as alone:
        load(str(rows), split="all")
    request.getfixturevalue("in_small_parts")
    with pytest.raises(BadData) as together:
        load(str(rows), split="all")
    assert [(p.line, p.what) for p in together.value.problems] == [(p.line, p.what) for p in alone.value.problems]
    assert {4, 51, 58} <= {p.line for p in together.value.problems}


def test_parts_hold_every_byte_once_and_end_with_a_line(rows: Path, in_small_parts: None) -> None:
    content, parts = rows.read_bytes(), parts_of(rows)
    assert b"".join(content[part.start : part.end] for part in parts) == content
    assert all(content[part.end - 1 : part.end] == b"\n" for part in parts[:-1])


def test_what_a_lost_process_should_check_is_checked_here(rows: Path, in_small_parts: None) -> None:
    process = CheckerProcess(rows, "pairs", donors=True)
    part = parts_of(rows)[1]
    alive = process.check(part)
    process.stop()
    assert process.check(part) == alive
    assert alive == check_part(rows, Part(*part), prb.data.facts.Checker("pairs", donors=True))
    assert alive.facts


def test_no_process_is_left_when_the_check_is_broken_off(
    rows: Path, in_small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[CheckerProcess] = []

    class Noted(CheckerProcess):
        def __init__(self, path: Path, task: Task, donors: bool) -> None:
            super().__init__(path, task, donors)
            started.append(self)

    monkeypatch.setattr(prb.data.facts, "CheckerProcess", Noted)
    stream = prb.data.facts.check_in_parts(rows, "pairs", donors=False)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(started) == 3
    assert all(each._process is not None and each._process.poll() is not None for each in started)
