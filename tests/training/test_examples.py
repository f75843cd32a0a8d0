"""Splits keep clusters whole; features are computed once for all methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prb.cache
from prb.errors import BadInput
from prb.models.personal.features import make_features
from prb.models.personal.method import METHODS
from prb.training.examples import fold_of, open_training, prepare, split_off
from tests.conftest import make_row
from tests.training.synthetic import rows_of_twelve

CLUSTERS = st.lists(st.integers(0, 12), min_size=6, max_size=60).filter(lambda c: len(set(c)) >= 3)


@given(CLUSTERS, st.integers(2, 3), st.integers(0, 5))
def test_a_cluster_lies_in_one_fold_and_no_fold_is_empty(clusters: list[int], folds: int, seed: int) -> None:
    fold = fold_of(np.array(clusters), folds, seed)
    for cluster in set(clusters):
        assert len(set(fold[np.array(clusters) == cluster])) == 1
    assert set(fold) == set(range(folds))


@given(CLUSTERS, st.floats(0.01, 0.99), st.integers(0, 5))
def test_held_out_clusters_are_on_one_side_only_and_both_sides_have_rows(
    clusters: list[int], share: float, seed: int
) -> None:
    fit, held = split_off(np.array(clusters), share, seed)
    assert len(fit)
    assert len(held)
    assert not set(np.array(clusters)[fit]) & set(np.array(clusters)[held])
    assert sorted([*fit, *held]) == list(range(len(clusters)))


def test_users_of_equal_size_make_equal_folds() -> None:
    fold = fold_of(np.repeat(np.arange(20), 6), 5, seed=0)
    assert np.bincount(fold).tolist() == [24] * 5


def test_who_is_held_out_never_changes() -> None:
    """Recorded before the draws had one place: old heads can be compared with new ones."""
    clusters = np.repeat(np.arange(12), 2)
    assert fold_of(clusters, 3, seed=7)[::2].tolist() == [2, 2, 1, 2, 0, 0, 1, 1, 0, 1, 2, 0]
    assert split_off(clusters, 0.25, seed=7)[1][::2].tolist() == [6, 8, 14]


def test_another_seed_holds_out_others() -> None:
    clusters = np.repeat(np.arange(30), 2)
    assert set(split_off(clusters, 0.2, 0)[1]) != set(split_off(clusters, 0.2, 1)[1])


def test_a_share_of_zero_holds_out_nobody() -> None:
    fit, held = split_off(np.arange(4), 0.0, 0)
    assert (len(fit), len(held)) == (4, 0)


def test_too_few_users_are_refused() -> None:
    with pytest.raises(BadInput, match="2 independent users"):
        fold_of(np.array([0, 0, 1]), 5, 0)
    with pytest.raises(BadInput, match="single user"):
        split_off(np.zeros(4, dtype=np.int64), 0.2, 0)


def test_training_never_falls_back_to_test_rows(write_jsonl: Callable[..., Path]) -> None:
    path = write_jsonl([make_row(1, split="test"), make_row(2, split="test")])
    with pytest.raises(BadInput, match="has no rows to train on; its splits are test"):
        open_training(str(path), None)


def test_features_are_computed_once_for_all_methods(
    write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, features = open_training(str(write_jsonl(rows_of_twelve())), None), make_features("static")
    first = prepare(dataset, features, joint=False, k=10, rank="embedding")
    monkeypatch.setattr(type(features), "texts", lambda *_: pytest.fail("computed again"))
    again = prepare(dataset, features, joint=False, k=10, rank="embedding")
    np.testing.assert_array_equal(first.vectors, again.vectors)
    np.testing.assert_array_equal(first.rows, again.rows)
    assert len(first.vectors) == 4 + 6 + 8  # questions, posts and answers, each text once
    pairs = first.pairs(np.array([5, 0]), METHODS.make("light"), np.zeros((2, 0)))
    assert pairs.view.mask.sum() == 6
    assert pairs.user.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["about.json", "vectors.f4", "rows.i4"])
def test_damaged_features_are_computed_again(name: str, write_jsonl: Callable[..., Path]) -> None:
    dataset, features = open_training(str(write_jsonl(rows_of_twelve())), None), make_features("static")
    first = prepare(dataset, features, joint=False, k=10, rank="embedding")
    vectors, rows = first.vectors.copy(), first.rows.copy()
    (stored,) = (prb.cache.cache_path().parent / "features").rglob(name)
    content = bytearray(stored.read_bytes())
    for damaged in (bytes([content[0] ^ 1]) + content[1:], b"", content[:-3]):
        stored.unlink()  # the file in use stays as it is
        stored.write_bytes(damaged)
        again = prepare(dataset, features, joint=False, k=10, rank="embedding")
        np.testing.assert_array_equal(vectors, again.vectors)
        np.testing.assert_array_equal(rows, again.rows)
