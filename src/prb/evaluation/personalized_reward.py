"""One answer, one user, one human score: the smallest question one can put to a reward model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from prb.errors import BadInput, PrbError
from prb.models import MODELS
from prb.types import Ask, Failure, Post, Query, RewardModel, Scorer


class PersonalizedReward(TypedDict):
    predicted_reward: float
    """σ of the model's score."""
    human_preference_score: float
    alignment_score: float
    """1 − |predicted − human|, within 0..1."""


def evaluate_personalized_reward(
    model: str | RewardModel,
    output: str,
    profile: Sequence[str | Post] | Mapping[str, str],
    human_score: float,
    *,
    question: str = "",
) -> PersonalizedReward:
    """How close a model's reward for `output` comes to this user's own score of it (0..1)."""
    if not 0 <= human_score <= 1:
        raise BadInput(f"human_score must be between 0 and 1, not {human_score}")
    scorer = MODELS.make(model) if isinstance(model, str) else model
    if not isinstance(scorer, Scorer):
        raise BadInput(f"{model!r} only compares answers; this needs a model that scores them")
    (score,) = scorer.score([Ask(Query(question=question, user="you", posts=_posts(profile)), output)])
    if isinstance(score, Failure) or not math.isfinite(score):
        raise PrbError(f"no score: {score}")
    predicted = _sigmoid(float(score))
    alignment = min(1.0, max(0.0, 1 - abs(predicted - human_score)))
    return {"predicted_reward": predicted, "human_preference_score": human_score, "alignment_score": alignment}


def _posts(profile: Sequence[str | Post] | Mapping[str, str]) -> tuple[Post, ...]:
    texts = [f"{key}: {value}" for key, value in profile.items()] if isinstance(profile, Mapping) else profile
    return tuple(t if isinstance(t, Post) else Post(str(n), "", t) for n, t in enumerate(texts, 1))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
