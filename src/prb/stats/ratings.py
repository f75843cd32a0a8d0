"""How well scores follow a user's own ratings, user by user.

A reward has no unit, so it is first mapped to the user's scale by a line fitted on that user's *other* rows. The slope
is never negative: a model with the order reversed is not credited for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prb.stats.estimate import ROUNDING, Floats, Ints, t95

MIN_ROWS = 3
"""Users with fewer answered rows are left out: a line through one other row says nothing."""
EM_STEPS = 60
RANGES = {
    "alignment": (0.0, 1.0),
    "mae": (0.0, 1.0),
    "calibrated_mae": (0.0, 1.0),
    "skill": (-np.inf, 1.0),
    "spearman": (-1.0, 1.0),
    "concordance": (0.0, 1.0),
}
"""Of each metric; intervals stay within."""
METRICS = tuple(RANGES)


def rating_metrics(score: Floats, rating: Floats, users: Ints) -> dict[int, dict[str, Any]]:
    """For each user code with at least three answered rows, the metrics and n."""
    from scipy.stats import spearmanr

    answered = ~np.isnan(score)
    if not answered.any():
        return {}
    order = np.argsort(users[answered], kind="stable")
    codes, starts = np.unique(users[answered][order], return_index=True)
    scores, ratings = np.split(score[answered][order], starts[1:]), np.split(rating[answered][order], starts[1:])
    calibrated = np.split(shrunken_lines(scores, ratings), starts[1:])
    metrics = {}
    for code, x, y, predicted in zip(codes, scores, ratings, calibrated, strict=True):
        if len(x) < MIN_ROWS:
            continue
        varied = np.ptp(y) > 0
        error = float(np.abs(left_out_line(x, y) - y).mean())
        others_mean = (y.sum() - y) / (len(y) - 1)
        metrics[int(code)] = {
            "n": len(x),
            "alignment": 1 - error,
            "mae": error,
            "calibrated_mae": round(float(np.abs(predicted - y).mean()), 12),
            "skill": 1 - error / float(np.abs(others_mean - y).mean()) if varied else None,
            "spearman": float(spearmanr(x, y).statistic) if varied and np.ptp(x) > 0 else None,
            "concordance": concordance(x, y),
        }
    return metrics


def left_out_line(score: Floats, rating: Floats) -> Floats:
    """For each row the prediction of a line (slope ≥ 0) fitted on the other rows, clipped to 0..1."""
    n = len(score) - 1
    sx, sy = score.sum() - score, rating.sum() - rating
    sxx, sxy = np.square(score).sum() - np.square(score), (score * rating).sum() - score * rating
    spread = sxx - sx * sx / n
    joint = sxy - sx * sy / n
    # subtracting a huge row from a sum leaves rounding of that row's size, so flatness is judged against all rows
    flat = spread <= ROUNDING * np.square(score).sum()
    slope = np.where(flat, 0.0, np.maximum(0.0, joint / np.where(flat, 1.0, spread)))
    return np.asarray(np.clip(sy / n + slope * (score - sx / n), 0.0, 1.0))


def shrunken_lines(scores: Sequence[Floats], ratings: Sequence[Floats]) -> Floats:
    """For each row the prediction of a line from the user's other rows, shrunk toward the lines of all users.

    Empirical Bayes for a random intercept and slope per user (Laird and Ware 1982, doi:10.2307/2529876), fitted by EM
    on sums per user: the fewer rows a user has, the more the population's line counts. Slopes are not below 0.
    """
    x, y = np.concatenate(scores), np.concatenate(ratings)
    scale = float(x.std()) or 1.0
    x = (x - x.mean()) / scale
    user = np.repeat(np.arange(len(scores)), [len(each) for each in scores])
    one = np.ones(len(x))
    of_rows = np.stack([one, x, x * x, y, x * y, y * y], axis=1)
    sums = np.stack([np.bincount(user, column) for column in of_rows.T], axis=1).astype(np.float64)
    center, spread, noise = np.array([y.mean(), 0.0]), np.diag([y.var() + ROUNDING, 0.1]), float(y.var()) + ROUNDING
    for _ in range(EM_STEPS):
        lines, doubt = _posterior(sums, center, spread, noise)
        center = lines.mean(axis=0)
        apart = lines - center
        spread = (doubt + apart[:, :, None] * apart[:, None, :]).mean(axis=0) + ROUNDING * np.eye(2)
        n, sx, sxx, sy, sxy, syy = sums.T
        a, b = lines.T
        squares = syy - 2 * (a * sy + b * sxy) + a * a * n + 2 * a * b * sx + b * b * sxx
        squares += doubt[:, 0, 0] * n + 2 * doubt[:, 0, 1] * sx + doubt[:, 1, 1] * sxx
        noise = max(ROUNDING, float(squares.sum()) / len(x))
    lines, _ = _posterior(sums[user] - of_rows, center, spread, noise)
    return np.asarray(np.clip(lines[:, 0] + np.maximum(0.0, lines[:, 1]) * x, 0.0, 1.0))


def _posterior(sums: Floats, center: Floats, spread: Floats, noise: float) -> tuple[Floats, Floats]:
    """Mean and covariance of intercept and slope, given sums over rows."""
    n, sx, sxx, sy, sxy, _ = sums.T
    precision = np.linalg.inv(spread)
    known = np.stack([np.stack([n, sx], axis=1), np.stack([sx, sxx], axis=1)], axis=1) / noise
    doubt = np.linalg.inv(known + precision)
    right = np.stack([sy, sxy], axis=1) / noise + precision @ center
    return np.asarray((doubt @ right[:, :, None])[:, :, 0]), np.asarray(doubt)


def concordance(score: Floats, rating: Floats) -> float | None:
    """Share of row pairs with different ratings that the scores order in the same way; ties count half."""
    i, j = np.triu_indices(len(score), 1)
    expected, given = np.sign(rating[i] - rating[j]), np.sign(score[i] - score[j])
    differ = expected != 0
    return float(((expected * given)[differ] + 1).mean() / 2) if differ.any() else None


def mean_over_users(metric: str, values: list[float | None]) -> dict[str, Any]:
    """Mean with a t interval over users; users for whom the metric is undefined are left out of n."""
    known = np.array([v for v in values if v is not None], dtype=np.float64)
    if not len(known):
        return {"value": None, "low": None, "high": None, "n": 0}
    mean = float(known.mean())
    if len(known) < 2:
        return {"value": mean, "low": None, "high": None, "n": 1}
    half = float(t95(len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    least, most = RANGES[metric]
    return {"value": mean, "low": max(least, mean - half), "high": min(most, mean + half), "n": len(known)}
