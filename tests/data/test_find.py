from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prb.data.find import find_row
from prb.errors import UnknownName
from tests.conftest import make_row
from tests.data.broken import line

Write = Callable[..., Path]


def test_a_row_is_found_by_its_id(write_jsonl: Write) -> None:
    rows = [make_row(1), make_row(2, mood="low"), make_row(3)]
    assert find_row(str(write_jsonl(rows)), "r2") == rows[1]


def test_a_numeric_id_is_found_as_text(write_jsonl: Write) -> None:
    assert find_row(str(write_jsonl([make_row(1, id=17)])), "17")["id"] == 17


def test_rows_of_every_split_are_found(write_jsonl: Write) -> None:
    rows = [make_row(1, split="train"), make_row(2, split="test")]
    assert find_row(str(write_jsonl(rows)), "r1")["split"] == "train"


def test_broken_lines_do_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(b"{broken\n5\n" + line(make_row(3)))
    assert find_row(str(path), "r3")["user"] == "u3"


def test_a_misspelt_id_brings_the_nearest_one(write_jsonl: Write) -> None:
    path = write_jsonl([make_row(1, id="c01-q1-amparo"), make_row(2, id="c02-q3-bo")])
    with pytest.raises(UnknownName, match=r"no row of .*set.jsonl named 'c01-q1-ampar'; did you mean 'c01-q1-amparo'"):
        find_row(str(path), "c01-q1-ampar")


def test_an_id_like_no_other_brings_an_example(write_jsonl: Write) -> None:
    with pytest.raises(UnknownName, match=r"named 'zzzzzz'; ids look like 'r1'"):
        find_row(str(write_jsonl([make_row(1)])), "zzzzzz")


def test_nothing_is_found_in_an_empty_file(write_jsonl: Write) -> None:
    with pytest.raises(UnknownName, match=r"named 'r1'; it is empty"):
        find_row(str(write_jsonl([])), "r1")
