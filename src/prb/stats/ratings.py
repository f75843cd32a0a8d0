"""How well scores follow a person's own ratings, person by person.

A reward has no unit, so it is first brought to the person's scale by a line fitted on that person's *other*
rows. The slope is never negative: a model that has the order wrong is not turned around.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints

MIN_ROWS = 3
METRICS = ("alignment", "mae", "skill", "spearman", "concordance")


def rating_metrics(score: Floats, rating: Floats, users: Ints) -> dict[int, dict[str, Any]]:
    """For each user code with at least three answered rows, the five metrics and n."""
    answered = ~np.isnan(score)
    if not answered.any():
        return {}
    order = np.argsort(users[answered], kind="stable")
    codes, starts = np.unique(users[answered][order], return_index=True)
    scores, ratings = np.split(score[answered][order], starts[1:]), np.split(rating[answered][order], starts[1:])
    everyone = zip(codes, scores, ratings, strict=True)
    return {int(code): _one_user(x, y) for code, x, y in everyone if len(x) >= MIN_ROWS}


def _one_user(score: Floats, rating: Floats) -> dict[str, Any]:
    error = float(np.abs(left_out_line(score, rating) - rating).mean())
    others_mean = (rating.sum() - rating) / (len(rating) - 1)
    baseline = float(np.abs(others_mean - rating).mean())
    return {
        "n": len(score),
        "alignment": 1 - error,
        "mae": error,
        "skill": 1 - error / baseline if np.ptp(rating) > 0 else None,
        "spearman": _spearman(score, rating),
        "concordance": concordance(score, rating),
    }


def left_out_line(score: Floats, rating: Floats) -> Floats:
    """For each row the prediction of a line (slope ≥ 0) fitted on the other rows, kept within 0..1."""
    n = len(score) - 1
    sx, sy = score.sum() - score, rating.sum() - rating
    sxx, sxy = np.square(score).sum() - np.square(score), (score * rating).sum() - score * rating
    spread = sxx - sx * sx / n
    joint = sxy - sx * sy / n
    # taking a huge row out of a sum leaves rounding of that row's size, so flatness is judged against all rows
    flat = spread <= 1e-12 * np.square(score).sum()
    slope = np.where(flat, 0.0, np.maximum(0.0, joint / np.where(flat, 1.0, spread)))
    return np.asarray(np.clip(sy / n + slope * (score - sx / n), 0.0, 1.0))


def concordance(score: Floats, rating: Floats) -> float | None:
    """Share of row pairs with different ratings that the scores order alike, ties half."""
    i, j = np.triu_indices(len(score), 1)
    wanted, got = np.sign(rating[i] - rating[j]), np.sign(score[i] - score[j])
    differ = wanted != 0
    return float(((wanted * got)[differ] + 1).mean() / 2) if differ.any() else None


def _spearman(score: Floats, rating: Floats) -> float | None:
    from scipy.stats import spearmanr

    if np.ptp(score) == 0 or np.ptp(rating) == 0:
        return None
    return float(spearmanr(score, rating).statistic)


def mean_over_users(values: list[float | None]) -> dict[str, Any]:
    """Mean with a t interval over users; users for whom the metric is undefined are left out of n."""
    from scipy.stats import t

    known = np.array([v for v in values if v is not None], dtype=np.float64)
    if not len(known):
        return {"value": None, "low": None, "high": None, "n": 0}
    mean = float(known.mean())
    if len(known) < 2:
        return {"value": mean, "low": None, "high": None, "n": 1}
    half = float(t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return {"value": mean, "low": mean - half, "high": mean + half, "n": len(known)}
