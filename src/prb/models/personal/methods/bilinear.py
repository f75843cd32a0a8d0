"""Person vector × answer: reward = α p·a + (pV + code)·(aU) + taste·a, with p the mean of the posts near the question.

The correction UVᵀ is of low rank and starts at zero, so training begins at plain affinity (α = 1). The code is zero
for strangers; labelled pairs of a person move it within the learned subspace U.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal


@dataclass(frozen=True)
class Bilinear(Method):
    rank: int
    sharp: float
    prior: float = 5.0

    grid: ClassVar = {"rank": (4, 16), "sharp": (0, 5)}
    looks_at_posts = True
    free = frozenset({"affinity"})

    @property
    def code_size(self) -> int:  # type: ignore[override]
        return self.rank

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        return {
            "affinity": np.full(1, 1.0 / size),
            "taste": np.zeros(size),
            "person": np.zeros((size, self.rank)),
            "answer": normal(rng, size, self.rank),
        }

    def person(self, params: Params, view: View) -> Array:  # noqa: ARG002
        return nearest_posts(view, self.sharp)

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        person = self.person(params, view)
        affinity = params["affinity"] * (person * answer).sum(-1)
        learned = ((person @ params["person"] + view.code) * (answer @ params["answer"])).sum(-1)
        return affinity + learned + answer @ params["taste"]


def nearest_posts(view: View, sharp: float) -> Array:
    """Posts averaged with weights exp(sharp × cosine to the question); zero where there are none."""
    scores = sharp * cosine(view)
    return weighted(view, (np.exp(scores) if isinstance(scores, np.ndarray) else scores.exp()) * view.mask)


def cosine(view: View) -> Array:
    lengths = (view.posts**2).sum(-1) * (view.question**2).sum(-1)[:, None]
    return (view.posts * view.question[:, None, :]).sum(-1) / (lengths + 1e-9) ** 0.5


def weighted(view: View, weights: Array) -> Array:
    total = weights.sum(-1)[:, None]
    return (view.posts * weights[:, :, None]).sum(1) / (total + (total == 0))


@METHODS.register("bilinear")
def bilinear(rank: int = 4, sharp: float = 5.0, prior: float = 5.0) -> Method:
    """Posts near the question × answer, affinity plus a low-rank correction."""
    return Bilinear(rank, sharp, prior)
