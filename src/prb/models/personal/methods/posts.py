"""Heads that know a user by the posts: bilinear, attention and a small network.

bilinear: reward = α p·a + (pV + code)·(aU) + taste·a, with p the mean of the posts near the question. The correction
UVᵀ is of low rank and starts at zero, so training begins at plain affinity. The code is zero for unknown users; labeled
pairs of a user move it within the learned subspace U.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.config import Count, NonNegative
from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal

LEAK = 0.1
"""Slope that a linear path adds to the ReLU, so that no unit is dead at the start."""


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


@dataclass(frozen=True)
class Bilinear(Method):
    rank: int
    sharp: float
    prior: float = 5.0

    grid: ClassVar = {"rank": (4, 16), "sharp": (0, 5)}
    uses_posts = True
    unpenalized = frozenset({"affinity"})

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

    def user(self, params: Params, view: View) -> Array:  # noqa: ARG002
        return nearest_posts(view, self.sharp)

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        user = self.user(params, view)
        affinity = params["affinity"] * (user * answer).sum(-1)
        learned = ((user @ params["person"] + view.code) * (answer @ params["answer"])).sum(-1)
        return affinity + learned + answer @ params["taste"]


@dataclass(frozen=True)
class Attention(Bilinear):
    """Weights softmax(sharp · cosine + (qA)·(pB)/√rank); the learned part starts at zero."""

    grid: ClassVar = {"rank": (4, 16)}
    unpenalized = frozenset({"affinity", "sharp"})

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        attention = {
            "query": normal(rng, size, self.rank),
            "key": np.zeros((size, self.rank)),
            "sharp": np.full(1, self.sharp),
        }
        return {**super().start(size, rng), **attention}

    def user(self, params: Params, view: View) -> Array:
        learned = ((view.question @ params["query"])[:, None, :] * (view.posts @ params["key"])).sum(-1)
        scores = params["sharp"] * cosine(view) + learned / self.rank**0.5
        return weighted(view, scores.masked_fill(view.mask == 0, -1e9).softmax(-1) * view.mask)


@dataclass(frozen=True)
class ProfileMlp(Method):
    """A small network on [question; user; answer; user × answer]: what one would try first."""

    hidden: int
    sharp: float

    grid: ClassVar = {"hidden": (16, 64)}
    uses_posts = True
    unpenalized = frozenset({"bias"})

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        weights = {name: normal(rng, size, self.hidden) / 2 for name in ("question", "person", "answer", "product")}
        return {**weights, "bias": np.zeros(self.hidden), "out": np.zeros(self.hidden)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        user = nearest_posts(view, self.sharp)
        inner = view.question @ params["question"] + user @ params["person"] + answer @ params["answer"]
        inner = inner + (user * answer) @ params["product"] + params["bias"]
        return inner.relu() @ params["out"] + (inner * LEAK) @ params["out"]


@METHODS.register("bilinear")
def bilinear(rank: Count = 4, sharp: NonNegative = 5.0, prior: NonNegative = 5.0) -> Method:
    """Posts near the question × answer: affinity plus a low-rank correction."""
    return Bilinear(rank, sharp, prior)


@METHODS.register("attention")
def attention(rank: Count = 4, sharp: NonNegative = 5.0, prior: NonNegative = 5.0) -> Method:
    """Bilinear with learned attention of the question over the posts."""
    return Attention(rank, sharp, prior)


@METHODS.register("profile-mlp")
def profile_mlp(hidden: Count = 32, sharp: NonNegative = 5.0) -> Method:
    """A two-layer network on question, user, answer and user × answer."""
    return ProfileMlp(hidden, sharp)
