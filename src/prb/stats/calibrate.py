"""Do margins mean anything? Confidence σ(|margin| / T) against how often the model is right.

The temperature T of a row is fitted on other clusters only, so a person never calibrates themselves
(temperature scaling: Guo et al. 2017, arXiv 1706.04599; Brier 1950).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints

FOLDS = 5
BINS = 10


def calibration(margin: Floats, credit: Floats, clusters: Ints) -> dict[str, Any] | None:
    """Brier score, expected calibration error and the curve behind it; `None` where there is nothing to fit."""
    answered = ~(np.isnan(margin) | np.isnan(credit))
    margin, credit, groups = np.abs(margin[answered]), credit[answered], clusters[answered]
    _, dense = np.unique(groups, return_inverse=True)
    if len(margin) == 0 or dense.max() + 1 < FOLDS or not margin.any():
        return None
    fold = dense % FOLDS
    temperatures = [fit_temperature(margin[fold != k], credit[fold != k]) for k in range(FOLDS)]
    confidence = _sigmoid(margin / np.array(temperatures)[fold])
    return {
        "n": len(margin),
        "temperature": float(np.median(temperatures)),
        "brier": float(np.square(confidence - credit).mean()),
        **_reliability(confidence, credit),
    }


def fit_temperature(margin: Floats, credit: Floats) -> float:
    """T that minimises the log loss of σ(margin / T), searched on a log scale around the margins' own size."""
    from scipy.optimize import minimize_scalar

    scale = float(margin[margin > 0].mean()) if (margin > 0).any() else 1.0
    sizes, counts = np.unique(margin, return_counts=True)
    missed = float((margin * (1 - credit)).sum())

    def loss(log_t: float) -> float:
        # log(1 + eᶻ) = z + log(1 + e⁻ᶻ), so a loss costs z more than a win of the same margin
        t = scale * np.exp(log_t)
        return float((np.logaddexp(0, -sizes / t) * counts).sum() + missed / t) / len(margin)

    found = minimize_scalar(loss, bounds=(-6.0, 6.0), method="bounded", options={"xatol": 1e-6})
    return scale * float(np.exp(found.x))


def _reliability(confidence: Floats, credit: Floats) -> dict[str, Any]:
    """Ten bins over [½, 1]; the error is the mean gap, weighted by how many rows a bin holds."""
    bins = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    curve = []
    for k in range(BINS):
        rows = bins == k
        if rows.any():
            point = {"confidence": float(confidence[rows].mean()), "accuracy": float(credit[rows].mean())}
            curve.append({**point, "n": int(rows.sum())})
    gap = sum(b["n"] * abs(b["confidence"] - b["accuracy"]) for b in curve) / len(credit)
    return {"ece": float(gap), "curve": curve}


def _sigmoid(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-z)))
