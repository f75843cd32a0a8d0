"""One answer, one user, one human score: the smallest question one can put to a reward model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from prb.errors import BadInput, PrbError
from prb.models import MODELS, check_scorer
from prb.types import Ask, Failure, Post, Query, RewardModel

IDENTIFIERS = frozenset({"id", "user", "user_id"})
"""Keys of an attribute map that say who the user is, not what they like."""


class PersonalizedReward(TypedDict):
    predicted_reward: float
    """σ of the model's score. Not calibrated: compare it between answers of one model, not between models."""
    human_preference_score: float
    alignment_score: float
    """1 − |predicted − human|, within 0..1."""


def evaluate_personalized_reward(
    output: str,
    profile: Sequence[str | Post] | Mapping[str, Any],
    human_score: float,
    model: str | RewardModel = "embedding",
    *,
    question: str = "",
) -> PersonalizedReward:
    """How close a model's reward for `output` comes to this user's own score of it (0..1).

    `profile` holds posts or an attribute map, such as `{"preference_for_brevity": "high"}`: of the embedded models,
    `attributes` understands that one. The number is not calibrated, and the alignment of a single answer says little
    about a model: use `prb evaluate --task ratings` for many.
    """
    if not 0 <= human_score <= 1:
        raise BadInput(f"human_score must be between 0 and 1, not {human_score}")
    scorer = check_scorer(str(model), MODELS.make(model) if isinstance(model, str) else model, "this needs")
    (score,) = scorer.score([Ask(Query(question=question, user="you", posts=_posts(profile)), output)])
    if isinstance(score, Failure) or not math.isfinite(score):
        raise PrbError(f"no score: {score}")
    predicted = _sigmoid(float(score))
    alignment = min(1.0, max(0.0, 1 - abs(predicted - human_score)))
    return {"predicted_reward": predicted, "human_preference_score": human_score, "alignment_score": alignment}


def _posts(profile: Sequence[str | Post] | Mapping[str, Any]) -> tuple[Post, ...]:
    texts: Sequence[str | Post]
    if isinstance(profile, Mapping):
        told = {str(key): value for key, value in profile.items() if key not in IDENTIFIERS}
        texts = [f"{key.replace('_', ' ')}: {value}" for key, value in told.items()]
    else:
        texts = profile
    return tuple(t if isinstance(t, Post) else Post(str(n), "", t) for n, t in enumerate(texts, 1))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
