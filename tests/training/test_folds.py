"""Nobody stands on both sides of a split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.errors import BadInput
from prb.training.folds import fold_of, split_off

CLUSTERS = st.lists(st.integers(0, 12), min_size=6, max_size=60).filter(lambda c: len(set(c)) >= 3)


@given(CLUSTERS, st.integers(2, 3), st.integers(0, 5))
def test_a_cluster_lies_in_one_fold_and_no_fold_is_empty(clusters: list[int], folds: int, seed: int) -> None:
    fold = fold_of(np.array(clusters), folds, seed)
    for cluster in set(clusters):
        assert len(set(fold[np.array(clusters) == cluster])) == 1
    assert set(fold) == set(range(folds))


@given(CLUSTERS, st.floats(0.01, 0.99), st.integers(0, 5))
def test_held_out_clusters_are_strangers_and_both_sides_have_rows(clusters: list[int], share: float, seed: int) -> None:
    fit, held = split_off(np.array(clusters), share, seed)
    assert len(fit)
    assert len(held)
    assert not set(np.array(clusters)[fit]) & set(np.array(clusters)[held])
    assert sorted([*fit, *held]) == list(range(len(clusters)))


def test_equal_persons_make_equal_folds() -> None:
    fold = fold_of(np.repeat(np.arange(20), 6), 5, seed=0)
    assert np.bincount(fold).tolist() == [24] * 5


def test_another_seed_holds_out_others() -> None:
    clusters = np.repeat(np.arange(30), 2)
    assert set(split_off(clusters, 0.2, 0)[1]) != set(split_off(clusters, 0.2, 1)[1])


def test_nobody_is_held_out_if_nobody_is_asked_for() -> None:
    fit, held = split_off(np.arange(4), 0.0, 0)
    assert (len(fit), len(held)) == (4, 0)


def test_too_few_persons_are_refused() -> None:
    with pytest.raises(BadInput, match="2 independent persons"):
        fold_of(np.array([0, 0, 1]), 5, 0)
    with pytest.raises(BadInput, match="single person"):
        split_off(np.zeros(4, dtype=np.int64), 0.2, 0)
