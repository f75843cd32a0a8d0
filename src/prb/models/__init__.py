"""Reward models, one file a family. To add one: a file here, a factory, one decorator.

    @MODELS.register("shortest")
    def shortest() -> Scorer:
        '''Prefers the shorter answer.'''
        return Shortest()

Modules import heavy libraries only inside their factories, so that listing the names costs nothing.
"""

from __future__ import annotations

import math

from prb.registry import Registry
from prb.types import Failure, RewardModel

MODELS: Registry[RewardModel] = Registry("model", package="prb.models", group="prb.models")


def is_remote(model: object) -> bool:
    """Whether texts leave the machine: models and planners that send them say so with `remote = True`."""
    return bool(getattr(model, "remote", False))


LARGEST_REWARD = 1e100
"""Beyond it sums and squares of margins overflow; no model means such a reward."""


def checked_reward(reward: float | Failure) -> float | Failure:
    """A reward that statistics can use; NaN, infinity and overflow are failures."""
    if isinstance(reward, Failure) or abs(reward) <= LARGEST_REWARD:
        return reward
    return Failure("too large a number" if math.isfinite(reward) else "not a finite number", str(float(reward)))
