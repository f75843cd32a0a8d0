"""Biases and calibration: does a model prefer the longer answer or the first one, and do its margins mean anything?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints, effective_clusters, share, t95
from prb.types import Estimate

FOLDS = 5
BINS = 10
PENALTY = np.diag([0.0, 0.01])
"""On the slope of the length regression: so weak that it only keeps separable data finite."""
NEWTON = 100
"""Steps; usually six are enough."""


def length_bias(credit: Floats, clusters: Ints, chosen: Floats, rejected: Floats) -> dict[str, Any] | None:
    """Accuracy where the chosen answer is longer, where it is shorter, and at equal length.

    The last is the intercept of a logistic regression of winning on the log length ratio, as in
    length-controlled AlpacaEval (Dubois et al. 2024, arXiv 2404.04475).
    """
    answered = ~np.isnan(credit)
    if not answered.any():
        return None
    credit, clusters = credit[answered], clusters[answered]
    ratio = np.log(chosen[answered] / rejected[answered])
    longer, shorter = ratio > 0, ratio < 0
    accuracy, slope = logistic(ratio, credit)
    return {
        "chosen_longer": share(credit[longer], clusters[longer]).as_dict(),
        "chosen_shorter": share(credit[shorter], clusters[shorter]).as_dict(),
        "accuracy_at_equal_length": accuracy,
        "slope": slope,
    }


def logistic(ratio: Floats, credit: Floats) -> tuple[float | None, float | None]:
    """σ(intercept) and slope per standard deviation."""
    if np.ptp(ratio) == 0 or len(np.unique(credit)) < 2:
        return None, None
    from scipy.special import expit

    center, scale = ratio.mean(), ratio.std()
    design = np.stack([np.ones(len(ratio)), (ratio - center) / scale], axis=1)
    weights = np.zeros(2)
    for _ in range(NEWTON):  # scikit-learn takes a second to import
        chance = expit(design @ weights)
        gradient = design.T @ (chance - credit) + PENALTY @ weights
        step = np.linalg.solve((design * (chance * (1 - chance))[:, None]).T @ design + PENALTY, gradient)
        loss = _log_loss(design, credit, weights)
        while _log_loss(design, credit, weights - step) > loss and np.abs(step).max() > 1e-12:
            step /= 2
        weights = weights - step
        if np.abs(step).max() <= 1e-12:
            break
    return float(expit(weights[0] - weights[1] * center / scale)), float(weights[1])


def _log_loss(design: Floats, credit: Floats, weights: Floats) -> float:
    logits = design @ weights
    return float((np.logaddexp(0, logits) - credit * logits).sum() + weights @ PENALTY @ weights / 2)


def length_controlled(
    credit: Floats, clusters: Ints, chosen: Floats, rejected: Floats, *, exact: bool = False
) -> Estimate:
    """Accuracy at equal length: σ(intercept) of `length_bias`, with an interval that respects clusters.

    The interval is a t interval on clusters − 1 of the intercept, with its clustered (sandwich) variance, on the logit
    scale. Where length cannot matter (all credits or all length ratios are alike, or the value of ½ is `exact`, see
    `cancels`) it is the accuracy itself.
    """
    answered = ~np.isnan(credit)
    failed = int((~answered).sum())
    credit, clusters = credit[answered], clusters[answered]
    ratio = np.log(chosen[answered] / rejected[answered])
    value, slope = logistic(ratio, credit) if len(credit) and not exact else (None, None)
    if value is None or slope is None:
        return share(credit, clusters, failed=failed, exact=exact)
    ties, groups = int((credit == 0.5).sum()), len(np.unique(clusters))
    if groups < 2:
        return Estimate(value=value, low=0.0, high=1.0, n=len(credit), failed=failed, ties=ties)
    intercept = float(np.log(value / (1 - value)))
    half = t95(effective_clusters(clusters) - 1) * _intercept_error(
        ratio / ratio.std(), credit, clusters, intercept, slope
    )
    low, high = (float(1 / (1 + np.exp(-(intercept + side)))) for side in (-half, half))
    return Estimate(value=value, low=low, high=high, n=len(credit), failed=failed, ties=ties)


def _intercept_error(column: Floats, credit: Floats, clusters: Ints, intercept: float, slope: float) -> float:
    """Clustered standard error of the intercept: A⁻¹ B A⁻¹ with the factor G/(G−1) (Liang & Zeger 1986)."""
    design = np.stack([np.ones_like(column), column], axis=1)
    chance = 1 / (1 + np.exp(-(intercept + slope * column)))
    information = (design * (chance * (1 - chance))[:, None]).T @ design + PENALTY
    _, dense = np.unique(clusters, return_inverse=True)
    scores = np.zeros((dense.max() + 1, 2))
    np.add.at(scores, dense, design * (credit - chance)[:, None])
    inverse = np.linalg.inv(information)
    return float(np.sqrt((inverse @ (scores.T @ scores) @ inverse)[0, 0] * len(scores) / (len(scores) - 1)))


def position_bias(verdicts: Sequence[Sequence[str | None]]) -> dict[str, Any] | None:
    """Over pairs asked in both orders: how often the same answer wins, and how often the first one does."""
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


def calibration(margin: Floats, credit: Floats, clusters: Ints) -> dict[str, Any] | None:
    """Brier score, expected calibration error and reliability curve of the confidence σ(|margin| / T).

    The temperature T of a row is fitted on other clusters only, so no user calibrates themselves (temperature scaling:
    Guo et al. 2017, arXiv 1706.04599; Brier 1950). `None` where there is nothing to fit.
    """
    answered = ~(np.isnan(margin) | np.isnan(credit))
    margin, credit, groups = np.abs(margin[answered]), credit[answered], clusters[answered]
    _, dense = np.unique(groups, return_inverse=True)
    if len(margin) == 0 or dense.max() + 1 < FOLDS or not margin.any():
        return None
    fold = dense % FOLDS
    temperatures = [fit_temperature(margin[fold != k], credit[fold != k]) for k in range(FOLDS)]
    confidence = 1 / (1 + np.exp(-margin / np.array(temperatures)[fold]))
    bins = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)  # over [½, 1]
    curve = []
    for rows in (bins == k for k in range(BINS)):
        if rows.any():
            point = {"confidence": float(confidence[rows].mean()), "accuracy": float(credit[rows].mean())}
            curve.append({**point, "n": int(rows.sum())})
    return {
        "n": len(margin),
        "temperature": float(np.median(temperatures)),
        "brier": float(np.square(confidence - credit).mean()),
        "ece": float(sum(b["n"] * abs(b["confidence"] - b["accuracy"]) for b in curve) / len(credit)),
        "curve": curve,
    }


def fit_temperature(margin: Floats, credit: Floats) -> float:
    """The T that minimizes the log loss of σ(margin / T), searched on a log scale around the size of the margins."""
    from scipy.optimize import minimize_scalar

    scale = float(margin[margin > 0].mean()) if (margin > 0).any() else 1.0
    sizes, counts = np.unique(margin, return_counts=True)
    missed = float((margin * (1 - credit)).sum())

    def loss(log_t: float) -> float:
        # log(1 + eᶻ) = z + log(1 + e⁻ᶻ), so a lost pair costs z more than a won one with the same margin
        t = scale * np.exp(log_t)
        return float((np.logaddexp(0, -sizes / t) * counts).sum() + missed / t) / len(margin)

    best = minimize_scalar(loss, bounds=(-6.0, 6.0), method="bounded", options={"xatol": 1e-6})
    return scale * float(np.exp(best.x))


DECILES = 10
MARGIN_BINS, REACH = 24, 3.0
"""Bars of the histogram, and its range in units of `margin_scale`; the outermost bars hold everything beyond."""


def margin_scale(margin: Floats) -> float | None:
    """Median absolute margin, zeros left out: every model has its own scale."""
    sizes = np.abs(margin[~np.isnan(margin)])
    return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else None


def histogram(margin: Floats) -> dict[str, Any] | None:
    """Margins in units of `margin_scale`: positive ones prefer the chosen answer. Zeros are counted apart."""
    scale = margin_scale(margin)
    if scale is None:
        return None
    known = margin[~np.isnan(margin)]
    relative = np.clip(known[known != 0] / scale, -REACH, np.nextafter(REACH, 0))
    counts, _ = np.histogram(relative, bins=MARGIN_BINS, range=(-REACH, REACH))
    return {"scale": scale, "reach": REACH, "counts": counts.tolist(), "zeros": int((known == 0).sum())}


def by_margin(margin: Floats, credit: Floats, clusters: Ints) -> list[dict[str, Any]]:
    """Accuracy by decile of |margin|, smallest first; equal margins are never split, so there may be fewer bins.

    If margins mean anything, accuracy rises with them: a pair the model is sure of is more often right.
    """
    answered = ~(np.isnan(margin) | np.isnan(credit))
    sizes, credit, clusters = np.abs(margin[answered]), credit[answered], clusters[answered]
    if not len(sizes):
        return []
    cuts = np.unique(np.quantile(sizes, np.arange(1, DECILES) / DECILES, method="lower"))
    bins = np.searchsorted(cuts, sizes, side="left")
    table = []
    for rows in (bins == n for n in np.unique(bins)):
        ends = {"from": float(sizes[rows].min()), "to": float(sizes[rows].max())}
        table.append({**ends, **share(credit[rows], clusters[rows]).as_dict()})
    return table
