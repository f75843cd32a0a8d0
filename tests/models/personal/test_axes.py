"""`axes`: directions of labeled poles, recovered from noise, and how a user is scored by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prb.errors import BadInput
from prb.models.personal.methods import METHODS, Taught, View, shrunk_inverse, within_covariance
from prb.runs import read_json
from prb.training.config import TrainConfig
from prb.training.run import train

SIZE, AXES = 12, 4


def synthetic_lessons(seed: int = 0) -> list[Taught]:
    """Axis n is coordinate n: +1 for its first pole, −1 for its second, and noise everywhere."""
    rng = np.random.default_rng(seed)
    lessons = []
    for axis in np.eye(SIZE)[:AXES]:
        first, second = (rng.normal(scale=0.5, size=(12, SIZE)) + sign * axis for sign in (1, -1))
        answers = rng.normal(scale=0.35, size=(8, 2, SIZE)) + np.stack([axis, -axis])
        lessons.append(Taught(first, second, answers))
    return lessons


def test_a_post_of_a_pole_matches_the_answer_for_it() -> None:
    match = METHODS.make("axes?affinity=0").teach(synthetic_lessons())["match"]
    assert match.shape == (SIZE, SIZE)
    seen, unseen = match.diagonal()[:AXES], np.abs(match.diagonal()[AXES:])
    assert seen.min() > 5 * unseen.max()


def test_posts_near_the_answer_count_more() -> None:
    method, plain = METHODS.make("axes?sharp=3"), METHODS.make("axes?sharp=0")
    posts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    view = View(np.zeros((1, 2)), posts, np.ones((1, 2)), np.zeros((1, 0)))
    params = {"match": np.eye(2)}
    answer = np.array([[1.0, 0.0]])
    assert plain.reward(params, view, answer) == pytest.approx(0.5)
    assert method.reward(params, view, answer) > 0.99


def test_twins_of_opposite_posts_want_opposite_answers() -> None:
    method = METHODS.make("axes")
    params = method.teach(synthetic_lessons())
    posts = np.stack([[np.eye(SIZE)[0]], [-np.eye(SIZE)[0]]])
    view = View(np.zeros((2, SIZE)), posts, np.ones((2, 1)), np.zeros((2, 0)))
    answers = np.tile(np.eye(SIZE)[0], (2, 1))
    first, second = method.reward(params, view, answers)
    assert first > 0
    assert first == pytest.approx(-second)


def test_without_posts_every_answer_is_worth_the_same() -> None:
    method = METHODS.make("axes")
    view = View(np.zeros((3, SIZE)), np.zeros((3, 1, SIZE)), np.zeros((3, 1)), np.zeros((3, 0)))
    assert not method.reward(method.teach(synthetic_lessons()), view, np.eye(SIZE)[:3]).any()


def test_axes_are_trained_on_the_bank_and_the_card_says_how_many(tmp_path: Path) -> None:
    dataset = "mirror?split=train&users=20&axes=5"
    trained = train(TrainConfig(method="axes", dataset=dataset, out=tmp_path / "head"))
    card = read_json(trained.folder / "card.json")
    assert card["report"] == {"axes": 5}
    assert card["validation"]["by_condition"]["none"]["value"] == 0.5


@pytest.mark.parametrize(
    ("dataset", "sweep", "message"),
    [
        ("mirror", False, "mirror has no labeled axes; 'mirror\\?split=train"),
        ("mirror?split=train&users=20", True, "held-out users share them"),
    ],
)
def test_what_has_no_axes_or_cannot_be_swept_is_refused(
    dataset: str, sweep: bool, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        train(TrainConfig(method="axes", dataset=dataset, sweep=sweep, out=tmp_path / "head"))


def test_what_varies_within_a_pole_counts_less() -> None:
    rng = np.random.default_rng(1)
    groups = [rng.normal(size=(400, 3)) * [1, 5, 1] for _ in range(3)]
    weight = shrunk_inverse(within_covariance(groups), 1e-9).diagonal()
    assert weight == pytest.approx([1, 1 / 25, 1], rel=0.1)
