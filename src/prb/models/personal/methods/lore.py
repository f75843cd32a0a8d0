"""LoRe: low-rank reward modelling (Bose et al., arXiv 2504.14439).

A few shared reward directions; a person is a point of the simplex that mixes them. Strangers get the mixture of the
average training person. With labelled pairs the paper fits a stranger's few weights; here they are the mean of training
persons' weights, by how well these explain the pairs, which needs fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal


@dataclass(frozen=True)
class LoRe(Method):
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


@METHODS.register("lore")
def lore(rank: int = 4, prior: float = 0.05) -> Method:
    """LoRe: a low-rank basis of rewards, mixed by each person's simplex weights (arXiv 2504.14439)."""
    return LoRe(rank, prior)
