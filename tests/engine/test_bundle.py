from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prb.engine.bundle import batches, bundle, common_prefix

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6)


def test_a_bundle_splits_after_the_longest_common_beginning() -> None:
    made = bundle([[1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 9, 9]])
    assert (made.prefix, made.suffixes) == ([1, 2], ([3, 4], [5], [3, 9, 9]))
    assert (made.repeated, made.unique) == (12, 8)


def test_every_sequence_keeps_a_token_of_its_own_even_if_it_is_the_beginning_of_another() -> None:
    assert bundle([[1, 2], [1, 2, 3]]).suffixes == ([2], [2, 3])
    assert bundle([[7]]).suffixes == ([7],)


def test_the_prefix_can_be_kept_short() -> None:
    assert bundle([[1, 2, 3], [1, 2, 4]], at_most=1).prefix == [1]


@given(SEQUENCES)
def test_prefix_and_suffix_are_the_sequence(sequences: list[list[int]]) -> None:
    made = bundle(sequences)
    assert [[*made.prefix, *suffix] for suffix in made.suffixes] == sequences
    assert all(made.suffixes)


@given(SEQUENCES)
def test_the_common_prefix_is_the_longest_one(sequences: list[list[int]]) -> None:
    n = common_prefix(sequences)
    assert len({tuple(s[:n]) for s in sequences}) == 1
    longer = {tuple(s[: n + 1]) for s in sequences}
    assert len(longer) > 1 or min(map(len, sequences)) == n


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 120))
def test_batches_hold_everything_once_and_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = list(batches(lengths, budget))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget
