"""Training: deterministic, resumable, honest about when it stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prb.errors import BadInput, PrbError
from tests.training.synthetic import conflicting_users

torch = pytest.importorskip("torch", reason="needs the torch extra")

from prb.training.examples import split_off  # noqa: E402
from prb.training.loop import Learned, Learning, Training, fit_scaler, held_out_margins, learn, user_batches  # noqa: E402

USERS = conflicting_users(users=24, pairs=6, size=5)
FIT, HELD = split_off(USERS.examples.cluster, 0.25, 0)
SHORT = Learning(epochs=6, batch=40, lr=0.05, l2=1e-3)
EVERY = ["bt", "bilinear", "attention", "profile-mlp", "lore", "pal", "vpl", "light"]


def numbers(learned: Learned) -> dict[str, Any]:
    return {**learned.head.params, "nobody": learned.head.nobody, **learned.head.codes}


def assert_same(a: Learned, b: Learned) -> None:
    assert a.curve == b.curve
    for name, value in numbers(a).items():
        np.testing.assert_array_equal(value, numbers(b)[name])


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_head_and_another_does_not(name: str) -> None:
    once, again = (learn(name, USERS.examples, FIT, HELD, SHORT) for _ in range(2))
    assert_same(once, again)
    if name not in ("light",):
        other = learn(name, USERS.examples, FIT, HELD, replace(SHORT, seed=1))
        assert other.curve != once.curve


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", ["bilinear", "lore", "vpl"])
def test_a_killed_training_resumes_to_the_same_head(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_damaged_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(BadInput, match="damaged"):
        learn("bt", USERS.examples, FIT, HELD, SHORT, checkpoint=path)


def test_the_kept_weights_are_those_of_the_best_epoch() -> None:
    learned = learn("bilinear", USERS.examples, FIT, HELD, replace(SHORT, epochs=30, patience=3))
    losses = [point["held_loss"] for point in learned.curve]
    assert learned.best == int(np.argmin(losses)) + 1
    assert len(losses) <= learned.best + 3
    margins, _ = held_out_margins(learned.head, USERS.examples, HELD)
    assert float(np.logaddexp(0, -margins).mean()) == pytest.approx(min(losses))


def test_without_held_out_users_it_runs_to_the_end() -> None:
    learned = learn("bt", USERS.examples, FIT, HELD[:0], SHORT)
    assert (learned.best, len(learned.curve)) == (6, 6)
    assert "held_loss" not in learned.curve[0]


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    with pytest.raises(PrbError, match="smaller --lr"):
        learn("pal", USERS.examples, FIT, HELD[:0], replace(SHORT, lr=1e30))


def test_scaling_knows_the_fitted_rows_only() -> None:
    scaler = fit_scaler(USERS.examples, FIT, 0)
    answers = USERS.examples.vectors[USERS.examples.rows[FIT, 1:3].ravel()].astype(np.float64)
    np.testing.assert_allclose(scaler.answer, [answers.mean(axis=0), answers.std(axis=0)], rtol=1e-5)


def test_batches_hold_whole_users_and_every_row_once() -> None:
    user = np.array([3, 1, 3, 2, 1, 9, 9, 9])
    batches = list(user_batches(user, 3, seed=0, epoch=0))
    assert sorted(np.concatenate(batches)) == list(range(8))
    seen: set[int] = set()
    for batch in batches:
        assert not seen & set(user[batch])
        seen |= set(user[batch])
    later = list(user_batches(user, 3, seed=0, epoch=1))
    assert [b.tolist() for b in later] != [b.tolist() for b in batches]
