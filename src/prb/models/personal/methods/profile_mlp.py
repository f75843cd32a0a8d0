"""A small network on [question; person; answer; person × answer]: what one would try first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Params, View, normal
from prb.models.personal.methods.bilinear import nearest_posts


@dataclass(frozen=True)
class ProfileMlp(Method):
    hidden: int
    sharp: float

    grid: ClassVar = {"hidden": (16, 64)}
    looks_at_posts = True
    free = frozenset({"bias"})

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:
        weights = {name: normal(rng, size, self.hidden) / 2 for name in ("question", "person", "answer", "product")}
        return {**weights, "bias": np.zeros(self.hidden), "out": np.zeros(self.hidden)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        person = nearest_posts(view, self.sharp)
        summed = view.question @ params["question"] + person @ params["person"] + answer @ params["answer"]
        inner = summed + (person * answer) @ params["product"] + params["bias"]
        return inner.relu() @ params["out"] + (inner * 0.1) @ params["out"]


@METHODS.register("profile-mlp")
def profile_mlp(hidden: int = 32, sharp: float = 5.0) -> Method:
    """A two-layer network on question, person, answer and person × answer."""
    return ProfileMlp(hidden, sharp)
