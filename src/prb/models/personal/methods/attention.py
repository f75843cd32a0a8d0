"""Bilinear, with learned attention: which posts count for this question is trained too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal
from prb.models.personal.methods.bilinear import Bilinear, cosine, weighted


@dataclass(frozen=True)
class Attention(Bilinear):
    """Weights softmax(sharp · cosine + (qA)·(pB)/√rank); the learned part starts at zero."""

    grid: ClassVar = {"rank": (4, 16)}
    free = frozenset({"affinity", "sharp"})

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        own = {
            "query": normal(rng, size, self.rank),
            "key": np.zeros((size, self.rank)),
            "sharp": np.full(1, self.sharp),
        }
        return {**super().start(size, rng), **own}

    def person(self, params: Params, view: View) -> Array:
        learned = ((view.question @ params["query"])[:, None, :] * (view.posts @ params["key"])).sum(-1)
        scores = params["sharp"] * cosine(view) + learned / self.rank**0.5
        return weighted(view, scores.masked_fill(view.mask == 0, -1e9).softmax(-1) * view.mask)


@METHODS.register("attention")
def attention(rank: int = 4, sharp: float = 5.0, prior: float = 5.0) -> Method:
    """Bilinear with learned attention of the question over the posts."""
    return Attention(rank, sharp, prior)
