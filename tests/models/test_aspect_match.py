"""Similarity of an answer to the plan, worked out by hand in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from prb.models import MODELS
from prb.models.aspect_match import AspectMatch
from prb.text.encoders import Matrix
from prb.types import Ask, Post, Query, Scorer


class Letters:
    """A text points to the letters a, b, c it holds."""

    fingerprint = "letters"

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = np.array([[float(letter in text) for letter in "abc"] for text in texts], dtype=np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


def match(answer: str, *plan: str, **more: object) -> float:
    (score,) = AspectMatch(Letters()).score([Ask(Query(question="?", plan=plan, **more), answer)])  # type: ignore[arg-type]
    return score


def test_each_aspect_is_held_against_its_best_sentence() -> None:
    # sentences "a." and "b.", and the whole (a, b)/√2: aspect a finds 1, aspect b finds 1, aspect c nothing
    assert match("a. b.", "a", "b") == pytest.approx(1.0)
    assert match("a. b.", "a", "b", "c") == pytest.approx(2 / 3)


def test_the_whole_answer_counts_as_a_sentence_too() -> None:
    assert match("a. b.", "ab") == pytest.approx(1.0)


def test_an_answer_that_touches_no_aspect_has_nothing() -> None:
    assert match("c.", "a", "b") == 0.0


def test_without_a_plan_every_answer_ties_whatever_the_posts_say() -> None:
    posts = (Post("1", "", "a"),)
    assert match("a.", posts=posts) == match("b.", posts=posts) == 0.0


def test_the_fingerprint_names_the_encoder() -> None:
    assert AspectMatch(Letters()).fingerprint == "aspect-match-letters"


def test_real_vectors_prefer_the_answer_that_follows_the_plan() -> None:
    model = MODELS.make("aspect-match")
    assert isinstance(model, Scorer)
    query = Query(question="What shall I cook?", plan=("cheap vegetarian dishes",))
    lentils, steak = model.score([Ask(query, "A lentil stew without meat."), Ask(query, "A taxi to the opera.")])
    assert lentils > steak  # type: ignore[operator]
