"""A mixture of models, each in its own unit."""

from __future__ import annotations

import numpy as np
import pytest

from prb.errors import BadSpec, PrbError
from prb.models import MODELS
from prb.types import Ask, Failure, Query

ASKS = [
    Ask(Query(question="How do I bake bread?"), text) for text in ("Mix it.", "Weigh the flour, then wait.", "Wait.")
]


def scores(spec: str) -> np.ndarray:
    return np.array(MODELS.make(spec).score(ASKS))


def test_one_model_alone_is_the_model_in_another_unit():
    assert np.corrcoef(scores("mix?models=length:2"), scores("length"))[0, 1] == pytest.approx(1)


def test_weights_say_how_much_a_model_counts_whatever_its_unit():
    whole = scores("mix?models=length:0.7|embedding:0.3")
    parts = 0.7 * scores("mix?models=length:1") + 0.3 * scores("mix?models=embedding:1")
    assert whole == pytest.approx(parts)


def test_it_says_what_it_was_normalized_on():
    assert "normalized on mirror, split dev, 200 answers" in MODELS.make("mix?models=length:1").execution


def test_a_model_with_options_stands_in_parentheses():
    made = MODELS.make("mix?models=(random?seed=3):0.5|length:0.5")
    assert made.fingerprint != MODELS.make("mix?models=(random?seed=4):0.5|length:0.5").fingerprint


def test_other_weights_are_another_model():
    assert MODELS.make("mix?models=length:1").fingerprint != MODELS.make("mix?models=length:2").fingerprint


@pytest.mark.parametrize("models", ["length", "length:much", "length:nan"])
def test_a_wrong_mixture_is_one_line(models):
    with pytest.raises(BadSpec, match="is not MODEL:WEIGHT"):
        MODELS.make(f"mix?models={models}")


def test_a_constant_cannot_be_normalized():
    with pytest.raises(PrbError, match="cannot be normalized"):
        MODELS.make("mix?models=constant:1")


def test_what_one_model_cannot_score_has_no_score(monkeypatch):
    made = MODELS.make("mix?models=length:1|embedding:1")
    monkeypatch.setattr(made._parts[1].model, "score", lambda asks: [Failure("no score")] * len(asks), raising=False)
    assert all(isinstance(score, Failure) for score in made.score(ASKS))
