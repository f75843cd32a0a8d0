"""How far a learner gets that never sees the person: a linear Bradley-Terry model on answers alone, out of fold.

Folds keep clusters whole. With folds by person mirror twins would be split, and the learner, having seen one twin with
the other label, would fall below chance instead of standing at it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def blind_margins(
    chosen: Matrix, rejected: Matrix, clusters: Sequence[str], *, folds: int = 5, strength: float = 1e-2, seed: int = 0
) -> NDArray[np.float64] | None:
    """Reward of chosen minus that of rejected for each pair, by a model fitted on other clusters; `None` if too few.

    P(a beats b) = σ(w·(a − b)) (Bradley & Terry 1952), w by L2-penalised logistic regression without intercept on
    differences scaled by the training folds' root mean square. `strength` is scikit-learn's C.
    """
    names = np.asarray(clusters)
    order = np.random.default_rng(seed).permutation(np.unique(names))
    if len(order) < 2 * folds:
        return None
    differences = np.asarray(chosen, dtype=np.float64) - np.asarray(rejected, dtype=np.float64)
    margins = np.zeros(len(differences))
    for held_out in np.array_split(order, folds):
        test = np.isin(names, held_out)
        margins[test] = differences[test] @ bradley_terry(differences[~test], strength)
    return margins


def bradley_terry(differences: Matrix, strength: float) -> NDArray[np.float64]:
    """Weights that make as many differences positive as the penalty allows."""
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((differences**2).mean(axis=0))
    scaled = differences / np.where(scale > 0, scale, 1)
    # without an intercept a second copy with opposite sign and label changes nothing but gives the solver two classes
    both = np.concatenate([scaled, -scaled])
    labels = np.repeat([1, 0], len(scaled))
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000).fit(both, labels)
    return np.asarray(model.coef_[0] / np.where(scale > 0, scale, 1), dtype=np.float64)


def credits_of(margins: NDArray[np.float64]) -> list[float]:
    """1 for a pair put right, 0.5 for a tie, 0 for one put wrong."""
    return [float(m > 0) + 0.5 * float(m == 0) for m in margins]
