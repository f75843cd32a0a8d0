"""PAL: pluralistic alignment by ideal points (Chen et al., arXiv 2406.08469; its variant A).

A person's ideal answer is a convex mixture of shared prototypes; the reward of an answer is minus its squared
distance from the ideal, in a learned space. Strangers get the average mixture; with labelled
pairs the mean of training persons' mixtures, by how well these explain the pairs (the paper fits the weights).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal


@dataclass(frozen=True)
class Pal(Method):
    prototypes: int
    space: int
    prior: float

    grid: ClassVar = {"prototypes": (4, 8)}
    tabled = needs_pairs = True
    free = frozenset({"prototypes"})

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


@METHODS.register("pal")
def pal(prototypes: int = 4, space: int = 4, prior: float = 0.05) -> Method:
    """PAL: distance to a mixture of prototype ideal points (arXiv 2406.08469)."""
    return Pal(prototypes, space, prior)
