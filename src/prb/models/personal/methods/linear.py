"""Linear heads: pooled Bradley-Terry (Bradley & Terry 1952, doi:10.1093/biomet/39.3-4.324), and a logistic regression
that needs neither torch nor epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.config import NonNegative, Positive
from prb.models.personal.method import METHODS, Array, Floats, Method, Pairs, Params, View
from prb.models.personal.methods.posts import nearest_posts

AFFINITY_SCALE = 10
"""Makes the penalty on the affinity negligible: it is one feature against hundreds."""


class BradleyTerry(Method):
    """One taste for everybody."""

    def start(self, size: int, rng: np.random.Generator) -> dict[str, Floats]:  # noqa: ARG002
        return {"taste": np.zeros(size)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:  # noqa: ARG002
        return answer @ params["taste"]


class BradleyTerryWithProfile(BradleyTerry):
    """The same linear head, on answers that were encoded after the user's posts."""

    joint = True


@dataclass(frozen=True)
class Light(Method):
    c: float
    sharp: float

    grid: ClassVar = {"c": (1e-5, 1e-4, 1e-3, 1e-2), "sharp": (0, 5, 20)}
    uses_posts = True
    closed_form = True

    def solve(self, pairs: Pairs) -> dict[str, Floats]:
        """Every pair in both orders, without an intercept: the head cannot prefer a position."""
        from sklearn.linear_model import LogisticRegression

        rows = self._describe(pairs.view, pairs.chosen) - self._describe(pairs.view, pairs.rejected)
        labels = np.r_[np.ones(len(rows)), np.zeros(len(rows))]
        model = LogisticRegression(C=self.c, fit_intercept=False, max_iter=1000, tol=1e-6)
        return {"weights": model.fit(np.r_[rows, -rows], labels).coef_[0]}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return self._describe(view, answer) @ params["weights"]

    def _describe(self, view: View, answer: Array) -> Array:
        """Answer, user × answer, and their affinity."""
        product = nearest_posts(view, self.sharp) * answer
        affinity = product.sum(axis=1, keepdims=True) / np.sqrt(answer.shape[1])
        return np.concatenate([answer, product, affinity * AFFINITY_SCALE], axis=1)


@METHODS.register("bt")
def bt() -> Method:
    """Pooled Bradley-Terry, user-blind: the baseline every other method has to beat."""
    return BradleyTerry()


@METHODS.register("bt-profile")
def bt_profile() -> Method:
    """Pooled Bradley-Terry on answers encoded with the user's posts in the prompt (for features=hidden)."""
    return BradleyTerryWithProfile()


@METHODS.register("light")
def light(c: Positive = 1e-3, sharp: NonNegative = 5.0) -> Method:
    """Logistic regression on answer, user × answer and affinity: no torch, trained in seconds."""
    return Light(c, sharp)
