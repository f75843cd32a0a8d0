"""Users as mixtures of what all users share: LoRe's reward directions, PAL's ideal points.

Unknown users get the mixture of the average training user. With labeled pairs the papers fit the weights of a new user;
here they are the mean of training users' weights, by how well these explain the pairs, which needs fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.config import Count, NonNegative
from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal


@dataclass(frozen=True)
class LoRe(Method):
    """Low-rank reward modeling (Bose et al., arXiv 2504.14439): a user's simplex weights mix a few shared rewards."""

    rank: int
    prior: float

    grid: ClassVar = {"rank": (4, 8)}
    tabled = needs_pairs = True

    @property
    def code_size(self) -> int:  # type: ignore[override]
        return self.rank

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {"basis": normal(rng, size, self.rank)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return ((answer @ params["basis"]) * view.code.softmax(-1)).sum(-1)


@dataclass(frozen=True)
class Pal(Method):
    """Pluralistic alignment by ideal points (Chen et al., arXiv 2406.08469; its variant A).

    A user's ideal answer is a convex mixture of shared prototypes; the reward of an answer is minus its squared
    distance from the ideal, in a learned space. The map starts small and the prototypes far apart, so that users
    separate before the map does.
    """

    prototypes: int
    space: int
    prior: float

    grid: ClassVar = {"prototypes": (4, 8)}
    tabled = needs_pairs = True
    unpenalized = frozenset({"prototypes"})

    @property
    def code_size(self) -> int:  # type: ignore[override]
        return self.prototypes

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            "map": normal(rng, size, self.space) / 8,
            "prototypes": 4 * rng.standard_normal((self.prototypes, self.space)),
        }

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        ideal = view.code.softmax(-1) @ params["prototypes"]
        return -(answer @ params["map"] - ideal).square().sum(-1)


@METHODS.register("lore")
def lore(rank: Count = 4, prior: NonNegative = 0.05) -> Method:
    """LoRe: a low-rank basis of rewards, mixed by each user's simplex weights (arXiv 2504.14439)."""
    return LoRe(rank, prior)


@METHODS.register("pal")
def pal(prototypes: Count = 4, space: Count = 4, prior: NonNegative = 0.05) -> Method:
    """PAL: distance to a mixture of prototype ideal points (arXiv 2406.08469)."""
    return Pal(prototypes, space, prior)
