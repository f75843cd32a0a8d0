"""The light head: logistic regression on answer, person × answer and affinity. numpy and scikit-learn, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.models.personal.method import METHODS, Array, Floats, Method, Pairs, Params, View
from prb.models.personal.methods.bilinear import nearest_posts


@dataclass(frozen=True)
class Light(Method):
    c: float
    sharp: float

    grid: ClassVar = {"c": (1e-5, 1e-4, 1e-3, 1e-2), "sharp": (0, 5, 20)}
    looks_at_posts = True
    closed_form = True

    def solve(self, pairs: Pairs) -> dict[str, Floats]:
        """Every pair in both orders, without an intercept: the head cannot care which answer came first."""
        from sklearn.linear_model import LogisticRegression

        rows = self._describe(pairs.view, pairs.chosen) - self._describe(pairs.view, pairs.rejected)
        labels = np.r_[np.ones(len(rows)), np.zeros(len(rows))]
        model = LogisticRegression(C=self.c, fit_intercept=False, max_iter=1000, tol=1e-6)
        return {"weights": model.fit(np.r_[rows, -rows], labels).coef_[0]}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        return self._describe(view, answer) @ params["weights"]

    def _describe(self, view: View, answer: Array) -> Array:
        """The affinity is scaled so that the penalty hardly touches it: one number against hundreds."""
        product = nearest_posts(view, self.sharp) * answer
        affinity = product.sum(axis=1, keepdims=True) / np.sqrt(answer.shape[1])
        return np.concatenate([answer, product, affinity * 10], axis=1)


@METHODS.register("light")
def light(c: float = 1e-3, sharp: float = 5.0) -> Method:
    """Logistic regression on answer, person × answer and affinity: no torch, trained in seconds."""
    return Light(c, sharp)
