"""Reward models, one file per family. To add one: a file here, a factory, one decorator.

    @MODELS.register("shortest")
    def shortest() -> Scorer:
        '''Prefers the shorter answer.'''
        return Shortest()

Modules import heavy libraries only inside their factories, so that listing the names is cheap.
"""

from __future__ import annotations

from prb.registry import Registry
from prb.types import RewardModel

MODELS: Registry[RewardModel] = Registry("model", package="prb.models", group="prb.models")


def is_remote(model: object) -> bool:
    """Whether texts leave the machine; models and planners that send them have `remote = True`."""
    return bool(getattr(model, "remote", False))
