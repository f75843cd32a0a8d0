"""Affinity in an encoder's space, worked out by hand in two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest

from prb.models import MODELS
from prb.models.embedding import Embedding
from prb.text.encoders import Matrix
from prb.types import Ask, Post, Query, Scorer


class Compass:
    """Texts are directions."""

    fingerprint = "compass"

    def encode(self, texts: Sequence[str]) -> Matrix:
        half = 1 / sqrt(2)
        known = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "north-east": (half, half), "nowhere": (0, 0)}
        return np.array([known[text] for text in texts], dtype=np.float32).reshape(len(texts), 2)


def posts(*texts: str) -> tuple[Post, ...]:
    return tuple(Post(str(n), "", text) for n, text in enumerate(texts, 1))


def affinity(answer: str, question: str, *history: str, nearest: int = 3) -> float:
    model = Embedding(Compass(), nearest)
    (score,) = model.score([Ask(Query(question=question, posts=posts(*history)), answer)])
    return score


def test_affinity_is_closeness_to_the_posts_beyond_that_to_the_question() -> None:
    # answer·posts = (1 + 0)/2, answer·question = √½
    assert affinity("east", "north-east", "east", "north") == pytest.approx(0.5 - sqrt(0.5))


def test_only_the_posts_nearest_to_the_question_count() -> None:
    # nearest to north: north itself, then north-east; west and east are at right angles
    assert affinity("east", "north", "west", "north-east", "north", nearest=2) == pytest.approx((sqrt(0.5) + 0) / 2)
    assert affinity("east", "north", "west", "north-east", "north", nearest=1) == pytest.approx(0)


def test_of_posts_equally_near_the_older_ones_count() -> None:
    assert affinity("east", "north", "east", "west", nearest=1) == pytest.approx(1.0)
    assert affinity("east", "north", "west", "east", nearest=1) == pytest.approx(-1.0)


def test_without_posts_the_answer_that_only_repeats_the_question_is_last() -> None:
    assert affinity("east", "east") == pytest.approx(-1.0)
    assert affinity("north", "east") == pytest.approx(0.0)


def test_a_text_without_known_words_is_near_to_nothing() -> None:
    assert affinity("nowhere", "east", "east") == 0.0


def test_the_fingerprint_names_encoder_and_setting() -> None:
    assert Embedding(Compass(), 3).fingerprint == "embedding-compass-3"
    prints = {MODELS.make(spec).fingerprint for spec in ("embedding", "embedding?nearest=1")}
    assert len(prints) == 2


def test_real_vectors_prefer_what_the_person_writes_about() -> None:
    model = MODELS.make("embedding")
    assert isinstance(model, Scorer)
    history = posts("I bake sourdough bread every Sunday.", "Rye flour is my favourite.")
    query = Query(question="What shall I do this weekend?", posts=history)
    bread, car = model.score([Ask(query, "Bake a rye loaf."), Ask(query, "Repair the gearbox.")])
    assert bread > car  # type: ignore[operator]
