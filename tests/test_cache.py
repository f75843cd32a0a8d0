from __future__ import annotations

import multiprocessing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from prb.cache import Cache
from prb.hashing import digest


def test_what_was_put_is_got_back_exactly(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite")
    cache.put("m", {b"a": 0.1 + 0.2, b"b": {"text": "ü"}})
    assert cache.get([b"a", b"b", b"c"]) == {b"a": 0.30000000000000004, b"b": {"text": "ü"}}


def test_the_first_value_of_a_key_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite")
    cache.put("m", {b"a": 1})
    cache.put("m", {b"a": 2})
    assert cache.get([b"a"]) == {b"a": 1}


def test_more_keys_than_one_question_can_hold(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite")
    values = {str(n).encode(): n for n in range(2000)}
    cache.put("m", values)
    assert cache.get(list(values)) == values


def test_entries_are_counted_and_cleared_by_model(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite")
    cache.put("one", {b"a": 1, b"b": 2})
    cache.put("two", {b"c": 3})
    assert cache.stats() == {"one": 2, "two": 1}
    assert cache.clear("one") == 2
    assert cache.stats() == {"two": 1}
    assert cache.clear() == 1


def _write(path: Path, start: int) -> None:
    cache = Cache(path)
    for n in range(start, start + 50):
        cache.put("m", {str(n).encode(): n})


def test_several_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    Cache(path).close()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(path, 50 * k)) for k in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Cache(path).stats() == {"m": 150}


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_different_tokens_have_different_keys(a: list[int], b: list[int]) -> None:
    assert (digest("m", a) == digest("m", b)) == (a == b)
    assert digest("m", a) != digest("n", a)
