"""Items in lists, and how often Python looks for reference cycles meanwhile."""

from __future__ import annotations

import gc
import inspect

from hypothesis import given
from hypothesis import strategies as st

import prb
from prb.batches import chunks, rarely_collecting
from prb.evaluation.run import evaluate


@given(st.lists(st.integers()), st.integers(1, 7))
def test_batches_hold_every_item_in_order_and_only_the_last_is_shorter(items: list[int], size: int) -> None:
    batches = list(chunks(items, size))
    assert [item for batch in batches for item in batch] == items
    assert all(len(batch) == size for batch in batches[:-1])


def test_cycles_are_looked_for_rarely_and_afterwards_as_before() -> None:
    before = gc.get_threshold()
    with rarely_collecting():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_whoever_turned_the_collection_off_finds_it_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with rarely_collecting():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_the_signature_of_evaluate_can_still_be_read() -> None:
    assert list(inspect.signature(evaluate).parameters) == ["config", "models", "hooks", "progress"]
    assert {"dataset", "models", "k"} <= set(inspect.signature(prb.evaluate).parameters)
