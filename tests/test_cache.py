from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.cache import Cache, Memo, cache_folder
from prb.errors import PrbError
from prb.types import Failure
from prb.weights import here, local_folder


def test_what_was_put_is_got_back_exactly(tmp_path):
    cache = Cache(tmp_path / "c.sqlite")
    values = {b"%d" % n: b"value %d" % n for n in range(1200)}  # more than one query can ask for
    cache.put("m", values)
    cache.put("m", {b"7": b"another"})
    assert cache.get([*values, b"none"]) == values


def test_entries_are_counted_and_cleared_by_model(tmp_path):
    cache = Cache(tmp_path / "c.sqlite")
    cache.put("one", {b"a": b"1", b"b": b"2"})
    cache.put("two", {b"c": b"3"})
    assert cache.stats() == {"one": 2, "two": 1}
    assert cache.clear("one") == 2
    assert cache.stats() == {"two": 1}
    assert cache.clear() == 1


def _write(path: Path, start: int) -> None:
    cache = Cache(path)
    for n in range(start, start + 50):
        cache.put("m", {b"%d" % n: b"x"})


def test_several_processes_write_at_once_and_lose_nothing(tmp_path):
    path = tmp_path / "c.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(path, 50 * k)) for k in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Cache(path).stats() == {"m": 150}


class Counting:
    """Lengths of texts, with a list of what was computed; a text with `!` fails."""

    def __init__(self) -> None:
        self.computed: list[str] = []

    def __call__(self, texts: list[str]) -> list[float | Failure]:
        self.computed += texts
        return [Failure("shouted") if "!" in text else float(len(text)) for text in texts]


def test_a_memo_computes_each_distinct_key_once_and_keeps_the_order():
    memo, lengths = Memo[float](), Counting()
    assert memo.map(lengths, ["bb", "a", "bb"]) == [2.0, 1.0, 2.0]
    assert memo.map(lengths, ["a", "ccc"]) == [1.0, 3.0]
    assert memo.map(lengths, ["ddd"], ["ccc"]) == [3.0]  # by key, not by item
    assert lengths.computed == ["bb", "a", "ccc"]


def test_a_memo_never_keeps_a_failure(tmp_path):
    cache, lengths = Cache(tmp_path / "c.sqlite"), Counting()
    memo = Memo[float](cache=cache, model="m")
    for _ in range(2):
        assert memo.map(lengths, ["a!", "a"], [b"1", b"2"]) == [Failure("shouted"), 1.0]
    assert lengths.computed == ["a!", "a", "a!"]
    assert cache.stats() == {"m": 1}


def test_a_cache_behind_a_memo_survives_the_run(tmp_path):
    lengths = Counting()
    for _ in range(2):
        memo = Memo[tuple[float, ...]](
            cache=Cache(tmp_path / "c.sqlite"), model="m", pack=list, unpack=tuple, capacity=0
        )
        assert memo.map(lambda texts: [(float(len(t)),) for t in texts if lengths([t])], ["a"], [b"k"]) == [(1.0,)]
    assert lengths.computed == ["a"]


@given(st.lists(st.lists(st.integers(0, 5))), st.integers(0, 4))
def test_a_memo_of_any_capacity_equals_no_memo(batches, capacity):
    memo = Memo[int](capacity=capacity)
    for batch in batches:
        assert memo.map(lambda items: [n * n for n in items], batch) == [n * n for n in batch]


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PRB_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("PRB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    assert cache_folder() == tmp_path / "prb"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "prb"


def test_a_bare_command_finds_what_make_pulled_into_its_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("PRB_CACHE")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    (tmp_path / "cache" / "weights" / "minilm").mkdir(parents=True)
    assert (local_folder("minilm"), here("minilm")) == (tmp_path / "cache" / "weights" / "minilm", "yes")
    monkeypatch.setattr("sys.base_prefix", str(tmp_path))  # the system's own Python has no environment
    assert cache_folder() != tmp_path / "cache"


def test_a_file_of_another_version_is_emptied_and_used(tmp_path):
    with closing(sqlite3.connect(tmp_path / "c.sqlite")) as old:
        old.execute("CREATE TABLE outputs (key BLOB, value TEXT)")
        old.execute("INSERT INTO outputs VALUES (x'61', 'old')")
        old.commit()
    cache = Cache(tmp_path / "c.sqlite")
    assert cache.get([b"a"]) == {}
    cache.put("m", {b"a": b"1"})
    assert Cache(tmp_path / "c.sqlite").get([b"a"]) == {b"a": b"1"}


@pytest.mark.parametrize(
    ("place", "why"), [("file", "file is not a database"), ("file/c.sqlite", "File exists; set PRB_CACHE to another")]
)
def test_where_no_cache_can_be_used_nothing_is_found_or_stored_and_it_says_why(place, why, tmp_path):
    (tmp_path / "file").write_bytes(b"not a database at all, and longer than a header" * 99)
    cache = Cache(tmp_path / place)
    cache.put("m", {b"a": b"1"})
    assert cache.get([b"a"]) == {}
    assert f"cannot be used: {why}" in str(cache.problem)
    with pytest.raises(PrbError, match="cannot be used"):
        cache.stats()
