"""Does a model prefer the longer answer, or the one it read first?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints, share


def length_bias(credit: Floats, clusters: Ints, chosen: Floats, rejected: Floats) -> dict[str, Any] | None:
    """Accuracy where the chosen answer is the longer and where it is the shorter one, and at equal length.

    The last is the intercept of a logistic regression of winning on the log length ratio, as in
    length-controlled AlpacaEval (Dubois et al. 2024, arXiv 2404.04475).
    """
    answered = ~np.isnan(credit)
    if not answered.any():
        return None
    credit, clusters = credit[answered], clusters[answered]
    ratio = np.log(chosen[answered] / rejected[answered])
    parts = {"chosen_longer": ratio > 0, "chosen_shorter": ratio < 0}
    intercept, slope = logistic(ratio, credit)
    return {
        **{name: share(credit[rows], clusters[rows]).as_dict() for name, rows in parts.items()},
        "accuracy_at_equal_length": intercept,
        "slope": slope,
    }


def logistic(ratio: Floats, credit: Floats) -> tuple[float | None, float | None]:
    """σ(intercept) and slope per standard deviation; a weak ridge keeps separable data finite."""
    from sklearn.linear_model import LogisticRegression

    scale = float(ratio.std())
    if np.ptp(ratio) == 0 or len(np.unique(credit)) < 2:
        return None, None
    column = (ratio / scale).reshape(-1, 1)
    rows = np.concatenate([column, column])
    labels = np.repeat([1, 0], len(credit))
    model = LogisticRegression(C=100.0, tol=1e-8).fit(rows, labels, sample_weight=np.concatenate([credit, 1 - credit]))
    return float(1 / (1 + np.exp(-model.intercept_[0]))), float(model.coef_[0, 0])


def position_bias(verdicts: Sequence[Sequence[str | None]]) -> dict[str, Any] | None:
    """Of pairs asked in both orders: how often the same answer wins, and how often the first one does."""
    both = [pair for pair in verdicts if len(pair) == 2 and None not in pair]
    if not both:
        return None
    swapped = {"first": "second", "second": "first", "tie": "tie"}
    consistent = sum(swapped[str(a)] == b for a, b in both)
    first = sum(choice == "first" for pair in both for choice in pair)
    decided = sum(choice != "tie" for pair in both for choice in pair)
    return {
        "n": len(both),
        "consistency": consistent / len(both),
        "first_share": first / decided if decided else None,
    }
