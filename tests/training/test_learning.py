"""Splits keep clusters whole; features are computed once; fitting is deterministic, resumable, honest about its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.data.load import training_split
from prb.data.source import MemorySource
from prb.errors import BadInput, PrbError
from prb.models.personal.features import make_features
from prb.models.personal.methods import METHODS
from prb.training.learning import (
    Learned,
    Learning,
    Training,
    first_rows,
    fold_of,
    held_out_margins,
    learn,
    open_training,
    prepare,
    split_off,
    user_batches,
)
from tests.conftest import make_row
from tests.training.synthetic import conflicting_users, rows_of_twelve

pytest.importorskip("torch", reason="needs the torch extra")

CLUSTERS = st.lists(st.integers(0, 12), min_size=6, max_size=60).filter(lambda c: len(set(c)) >= 3)


@given(CLUSTERS, st.integers(2, 3), st.integers(0, 5))
def test_a_cluster_lies_in_one_fold_and_no_fold_is_empty(clusters, folds, seed):
    fold = fold_of(np.array(clusters), folds, seed)
    for cluster in set(clusters):
        assert len(set(fold[np.array(clusters) == cluster])) == 1
    assert set(fold) == set(range(folds))


@given(CLUSTERS, st.floats(0.01, 0.99), st.integers(0, 5))
def test_held_out_clusters_are_on_one_side_only_and_both_sides_have_rows(clusters, share, seed):
    fit, held = split_off(np.array(clusters), share, seed)
    assert len(fit)
    assert len(held)
    assert not set(np.array(clusters)[fit]) & set(np.array(clusters)[held])
    assert sorted([*fit, *held]) == list(range(len(clusters)))


def test_who_is_held_out_never_changes():
    """Recorded before the draws had one place: old heads can be compared with new ones."""
    clusters = np.repeat(np.arange(12), 2)
    assert [len(part) for part in split_off(clusters, 0.0, 0)] == [24, 0]
    assert split_off(clusters, 0.25, seed=8)[1][::2].tolist() != [6, 8, 14]
    assert fold_of(clusters, 3, seed=7)[::2].tolist() == [2, 2, 1, 2, 0, 0, 1, 1, 0, 1, 2, 0]
    assert split_off(clusters, 0.25, seed=7)[1][::2].tolist() == [6, 8, 14]


def test_a_single_user_cannot_be_held_out():
    with pytest.raises(BadInput, match="single user"):
        split_off(np.zeros(4, dtype=np.int64), 0.2, 0)


def test_training_never_falls_back_to_test_rows(write_jsonl):
    path = write_jsonl([make_row(1, split="test"), make_row(2, split="test")])
    with pytest.raises(BadInput, match="has no rows to train on; its splits are test"):
        open_training(str(path), None)


@pytest.mark.parametrize(
    ("splits", "trained_on"), [([], None), ([None], None), (["test", "dev"], "dev"), (["dev", "train"], "train")]
)
def test_what_is_trained_on_by_default(splits, trained_on):
    rows = [make_row(n, **({"split": split} if split else {})) for n, split in enumerate(splits)]
    assert training_split(MemorySource("rows", rows)) == trained_on


def test_each_text_is_encoded_once(write_jsonl):
    dataset = open_training(str(write_jsonl(rows_of_twelve())), None)
    examples = prepare(dataset, make_features("static"), joint=False, k=10)
    assert len(examples.vectors) == 4 + 6 + 8  # questions, posts and answers
    pairs = examples.pairs(np.array([5, 0]), METHODS.make("light"), np.zeros((2, 0)))
    assert pairs.view.mask.sum() == 6
    assert pairs.user.tolist() == [0, 1]


USERS = conflicting_users(users=24, pairs=6, size=5)
FIT, HELD = split_off(USERS.examples.cluster, 0.25, 0)
SHORT = Learning(epochs=6, batch=40, lr=0.05, l2=1e-3)
EVERY = ["bilinear", "profile-mlp", "lore", "vpl", "light"]


def numbers(learned: Learned) -> dict[str, Any]:
    return {**learned.head.params, "prior_mean": learned.head.prior_mean, **learned.head.codes}


def assert_same(a: Learned, b: Learned) -> None:
    assert a.curve == b.curve
    for name, value in numbers(a).items():
        np.testing.assert_array_equal(value, numbers(b)[name])


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_head_and_another_does_not(name):
    once, again = (learn(name, USERS.examples, FIT, HELD, SHORT) for _ in range(2))
    assert_same(once, again)
    other = learn(name, USERS.examples, FIT, HELD, replace(SHORT, seed=1))
    assert other.curve != once.curve or name == "light"


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", ["bilinear", "vpl"])
def test_a_killed_training_resumes_to_the_same_head(name, tmp_path, monkeypatch):
    undisturbed = learn(name, USERS.examples, FIT, HELD, SHORT)
    epoch = Training.epoch

    def dies_in_the_fourth(self: Training, number: int, held: Any) -> None:
        if number == 3:
            raise Killed
        epoch(self, number, held)

    path = tmp_path / "checkpoint.safetensors"
    monkeypatch.setattr(Training, "epoch", dies_in_the_fourth)
    with pytest.raises(Killed):
        learn(name, USERS.examples, FIT, HELD, SHORT, checkpoint=path)
    assert path.exists()
    monkeypatch.setattr(Training, "epoch", epoch)
    assert_same(learn(name, USERS.examples, FIT, HELD, SHORT, checkpoint=path), undisturbed)
    path.write_bytes(b"not a checkpoint")  # is of no use, and training starts again
    assert_same(learn(name, USERS.examples, FIT, HELD, SHORT, checkpoint=path), undisturbed)


def test_the_kept_weights_are_those_of_the_best_epoch():
    learned = learn("bilinear", USERS.examples, FIT, HELD, replace(SHORT, epochs=30, patience=3))
    losses = [epoch.held_loss for epoch in learned.curve]
    assert learned.best == int(np.argmin(losses)) + 1
    assert len(losses) <= learned.best + 3
    held, _ = held_out_margins(learned.head, USERS.examples, HELD)
    assert float(np.logaddexp(0, -held).mean()) == pytest.approx(min(losses))


def test_a_loss_that_is_not_finite_stops_with_advice():
    with pytest.raises(PrbError, match=r"the loss is .* in epoch 1; --sweep chooses"):
        learn("pal", USERS.examples, FIT, HELD[:0], replace(SHORT, lr=1e30))


def test_scaling_knows_the_fitted_rows_only():
    scaler = learn("light", USERS.examples, FIT, HELD, SHORT).head.scaler
    answers = USERS.examples.vectors[USERS.examples.rows[FIT, 1:3].ravel()].astype(np.float64)
    np.testing.assert_allclose(scaler.answer, [answers.mean(axis=0), answers.std(axis=0)], rtol=1e-5)


def test_batches_hold_whole_users_and_every_row_once():
    user = np.array([3, 1, 3, 2, 1, 9, 9, 9])
    batches = list(user_batches(user, 3, seed=0, epoch=0))
    assert sorted(np.concatenate(batches)) == list(range(8))
    seen: set[int] = set()
    for batch in batches:
        assert not seen & set(user[batch])
        seen |= set(user[batch])
    later = list(user_batches(user, 3, seed=0, epoch=1))
    assert [b.tolist() for b in later] != [b.tolist() for b in batches]


def test_a_user_gives_half_of_the_rows_as_support_and_eight_at_most():
    user = np.repeat([4, 2, 7], [1, 5, 20])
    shown, rest = first_rows(user, None)
    assert {n: int((user[shown] == n).sum()) for n in (4, 2, 7)} == {4: 0, 2: 2, 7: 8}
    assert sorted([*shown, *rest]) == list(range(26))
    assert first_rows(user, 3)[0].tolist() == [0, 1, 2, 3, 6, 7, 8]
