"""How well one ranking predicts another: rows are orders, so that all n! of them are measured at once.

Every measure takes `predicted` (scores of a benchmark) and `actual` (scores downstream), one row or many of n models on
either side, and gives one number a row. Higher is better in all of them but `regret`. Ties are handled by each as its
docstring says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
Measure = Callable[[Array, Array], Array]


def pearson(predicted: Array, actual: Array) -> Array:
    """Linear correlation; undefined (nan) where a column is constant."""
    x, y = _centred(np.atleast_2d(predicted)), _centred(np.atleast_2d(actual))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def spearman(predicted: Array, actual: Array) -> Array:
    """Pearson correlation of ranks (Spearman 1904); ties get their average rank."""
    return pearson(rankdata(np.atleast_2d(predicted), axis=1), rankdata(np.atleast_2d(actual), axis=1))


def kendall(predicted: Array, actual: Array) -> Array:
    """τ-b (Kendall 1945): concordant minus discordant pairs, corrected for ties on both sides."""
    x, y = _signs(predicted), _signs(actual)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def weighted_kendall(predicted: Array, actual: Array) -> Array:
    """Weighted τ (Vigna 2015): a pair counts 1/rank + 1/rank, so the top matters most.

    The mean of ranking by either side. Ties are ranked by the other side, then by position, as in
    `scipy.stats.weightedtau`.
    """
    x, y = np.broadcast_arrays(np.atleast_2d(predicted), np.atleast_2d(actual))
    return (_weighted(x, y) + _weighted(y, x)) / 2


def ndcg(predicted: Array, actual: Array) -> Array:
    """Normalised discounted gain of taking models in the benchmark's order (Järvelin & Kekäläinen 2002).

    Relevance is the rank downstream, n for the best, average ranks where tied; gain 2^rel − 1, discount
    log2(1 + place). Models the benchmark ties share the mean discount of their places, as in scikit-learn's
    `ndcg_score`.
    """
    gain = 2.0 ** rankdata(np.atleast_2d(actual), axis=1) - 1
    discount = 1 / np.log2(np.arange(2, gain.shape[1] + 2))
    ideal = -np.sort(-gain, axis=1) @ discount
    return np.asarray((gain * _mean_discount(predicted, discount)).sum(axis=1) / ideal)


def rbo(predicted: Array, actual: Array, p: float = 0.9) -> Array:
    """Rank-biased overlap, extrapolated (Webber, Moffat & Zobel 2010, eq. 32).

    Tied models enter together (their § 5.2): agreement at depth d is 2 |S∩T| / (|S| + |T|), S and T being all whose
    rank is d or better.
    """
    ours = rankdata(-np.atleast_2d(predicted), method="min", axis=1)
    theirs = rankdata(-np.atleast_2d(actual), method="min", axis=1)
    n = theirs.shape[1]
    agreement = total = np.zeros(1)
    for depth in range(1, n + 1):
        s, t = ours <= depth, theirs <= depth
        agreement = 2 * (s & t).sum(axis=1) / (s.sum(axis=1) + t.sum(axis=1))
        total = total + agreement * p**depth
    return np.asarray(agreement * p**n + (1 - p) / p * total)


def regret(predicted: Array, actual: Array) -> Array:
    """What is lost downstream by taking the benchmark's first choice instead of the best; the mean over tied firsts."""
    actual, predicted = np.atleast_2d(actual), np.atleast_2d(predicted)
    first = predicted == predicted.max(axis=1, keepdims=True)
    return np.asarray(actual.max(axis=1) - (actual * first).sum(axis=1) / first.sum(axis=1))


MEASURES: dict[str, Measure] = {
    "spearman": spearman,
    "kendall": kendall,
    "weighted_kendall": weighted_kendall,
    "pearson": pearson,
    "ndcg": ndcg,
    "rbo": rbo,
    "regret": regret,
}
TWO_SIDED = frozenset({"spearman", "kendall", "weighted_kendall", "pearson"})
"""Measures with a sign: a strong negative value is as surprising as a positive one."""


def _centred(rows: Array) -> Array:
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))


@cache
def _pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    i, j = zip(*combinations(range(n), 2), strict=True)
    return np.array(i), np.array(j)


def _signs(rows: Array) -> Array:
    rows = np.atleast_2d(rows)
    i, j = _pairs(rows.shape[1])
    return np.sign(rows[:, i] - rows[:, j])


def _weighted(ranked: Array, other: Array) -> Array:
    """Weighted τ with ranks by `ranked`, best first, ties broken by `other`."""
    n = ranked.shape[1]
    # the later of two that are equal in both comes first: scipy sorts ascending and reads the order from its end
    place = np.arange(n)
    order = np.lexsort((np.broadcast_to(place, ranked.shape), other, ranked), axis=1)[:, ::-1]
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(place, order.shape), axis=1)
    i, j = _pairs(n)
    weight = 1 / (1 + ranks[:, i]) + 1 / (1 + ranks[:, j])
    x, y = _signs(ranked), _signs(other)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt((weight * x**2).sum(axis=1) * (weight * y**2).sum(axis=1))
        return np.asarray((weight * x * y).sum(axis=1) / scale)


def _mean_discount(predicted: Array, discount: Array) -> Array:
    """For each model the mean discount of the places it may take."""
    rows = -np.atleast_2d(predicted)
    first, last = (rankdata(rows, method=method, axis=1).astype(np.intp) for method in ("min", "max"))
    upto = np.concatenate([[0.0], np.cumsum(discount)])
    return np.asarray((upto[last] - upto[first - 1]) / (last - first + 1))
