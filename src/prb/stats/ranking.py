"""How well one ranking predicts another, whether that could be chance, and how many models it takes to tell.

Every measure takes `predicted` (scores on a benchmark) and `actual` (scores downstream), each one or many rows of n
models, and returns one number per row: all n! orders are measured in one call. Higher is better for all but `regret`.
The docstrings say how ties are handled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.stats.estimate import Bools, Floats, Ints

Measure = Callable[[Floats, Floats], Floats]

EXACT = 9
"""All 9! = 362,880 orders of up to nine models are measured; of more models, orders are sampled."""
EXACT_SWAPS = 16
DRAWS = 20_000
CELLS = 1 << 19
"""Numbers per block of a pairwise measure; blocks that fit the processor's cache take half the time."""
_ROUNDING = 1e-9


def rankdata(values: Any, **settings: Any) -> Any:
    """`scipy.stats.rankdata`; scipy.stats takes half a second to import, so it is imported when first needed."""
    from scipy.stats import rankdata as rank

    return rank(values, **settings)


def pearson(predicted: Floats, actual: Floats) -> Floats:
    """Linear correlation; undefined (NaN) where a column is constant."""
    x, y = (rows - rows.mean(axis=1, keepdims=True) for rows in map(np.atleast_2d, (predicted, actual)))
    return _cosine(x, y)


def _cosine(x: Floats, y: Floats) -> Floats:
    """Of rows, NaN where one is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))


def spearman(predicted: Floats, actual: Floats) -> Floats:
    """Pearson correlation of ranks (Spearman 1904); ties get their average rank."""
    return pearson(rankdata(np.atleast_2d(predicted), axis=1), rankdata(np.atleast_2d(actual), axis=1))


def kendall(predicted: Floats, actual: Floats) -> Floats:
    """τ-b (Kendall 1945): concordant minus discordant pairs, corrected for ties on both sides."""
    return _cosine(_signs(predicted), _signs(actual))


def _signs(rows: Floats) -> Floats:
    """Of the differences between every two models."""
    rows = np.atleast_2d(rows)
    i, j = np.triu_indices(rows.shape[1], 1)
    return np.sign(rows[:, i] - rows[:, j])


def weighted_kendall(predicted: Floats, actual: Floats) -> Floats:
    """Weighted τ (Vigna 2015): a pair counts 1/rank + 1/rank, so the top matters most.

    The mean of ranking by either side. Ties are ranked by the other side, then by position, as in
    `scipy.stats.weightedtau`.
    """
    x, y = np.broadcast_arrays(np.atleast_2d(predicted), np.atleast_2d(actual))
    return (_weighted(x, y) + _weighted(y, x)) / 2


def _weighted(ranked: Floats, other: Floats) -> Floats:
    """Weighted τ with ranks by `ranked`, best first, ties broken by `other`."""
    n = ranked.shape[1]
    # of two models equal in both columns the later one comes first: scipy sorts ascending and reads from the end
    place = np.arange(n)
    order = np.lexsort((np.broadcast_to(place, ranked.shape), other, ranked), axis=1)[:, ::-1]
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(place, order.shape), axis=1)
    i, j = np.triu_indices(n, 1)
    weight = 1 / (1 + ranks[:, i]) + 1 / (1 + ranks[:, j])
    x, y = _signs(ranked), _signs(other)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt((weight * x**2).sum(axis=1) * (weight * y**2).sum(axis=1))
        return np.asarray((weight * x * y).sum(axis=1) / scale)


def ndcg(predicted: Floats, actual: Floats) -> Floats:
    """Normalized discounted gain of taking models in the benchmark's order (Järvelin & Kekäläinen 2002).

    Relevance is the rank downstream, n for the best, average ranks where tied; gain 2^rel − 1, discount
    log2(1 + place). Models that the benchmark ties share the mean discount of their places, as in scikit-learn's
    `ndcg_score`.
    """
    gain = 2.0 ** rankdata(np.atleast_2d(actual), axis=1) - 1
    discount = 1 / np.log2(np.arange(2, gain.shape[1] + 2))
    ideal = -np.sort(-gain, axis=1) @ discount
    negated = -np.atleast_2d(predicted)
    first, last = (rankdata(negated, method=method, axis=1).astype(np.intp) for method in ("min", "max"))
    upto = np.concatenate([[0.0], np.cumsum(discount)])
    shared_discount = (upto[last] - upto[first - 1]) / (last - first + 1)
    return np.asarray((gain * shared_discount).sum(axis=1) / ideal)


def rbo(predicted: Floats, actual: Floats, p: float = 0.9) -> Floats:
    """Rank-biased overlap, extrapolated (Webber, Moffat & Zobel 2010, eq. 32).

    Tied models enter together (§ 5.2): agreement at depth d is 2 |S∩T| / (|S| + |T|), where S and T are all models of
    rank d or better.
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


def regret(predicted: Floats, actual: Floats) -> Floats:
    """Downstream loss of taking the benchmark's best model instead of the true best; a mean over ties."""
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
"""Measures with a sign: a strong negative value is as surprising as a strong positive one."""


class PermutationTest(NamedTuple):
    p: float
    exact: bool

    @classmethod
    def of(cls, extreme: Bools, *, exact: bool) -> PermutationTest:
        """A sampled p counts the observed order as one of the permutations, so it is never zero."""
        hits, orders = int(extreme.sum()), len(extreme)
        return cls(hits / orders if exact else (1 + hits) / (1 + orders), exact)


@cache
def orders(n: int) -> NDArray[np.intp]:
    return np.array(list(permutations(range(n))), dtype=np.intp)


def permutation_p(
    name: str, predicted: Floats, actual: Floats, *, seed: int = 0, draws: int = DRAWS
) -> PermutationTest:
    """How often a random order does as well: exact up to nine models, sampled above.

    Correlations are tested two-sided, by absolute value; NDCG, RBO and regret one-sided.
    """
    rows = np.concatenate([actual[None], reorderings(actual, draws, seed)])
    values = measured(MEASURES[name], predicted[None], rows)
    strength = -values if name == "regret" else np.abs(values) if name in TWO_SIDED else values
    return PermutationTest.of(strength[1:] >= strength[0] - _ROUNDING, exact=len(predicted) <= EXACT)


def reorderings(values: Floats, draws: int, seed: int) -> Floats:
    """All orders of the values of up to nine models, else a sample of orders."""
    if len(values) <= EXACT:
        return np.asarray(values[orders(len(values))])
    return np.random.default_rng(seed).permuted(np.tile(values, (draws, 1)), axis=1)


def measured(measure: Measure, predicted: Floats, actual: Floats) -> Floats:
    """A measure over many rows, in blocks; either side may be a single row."""
    total, n = max(len(predicted), len(actual)), actual.shape[1]
    step = max(1, CELLS // (n * n))

    def part(rows: Floats, start: int) -> Floats:
        return rows if len(rows) == 1 else rows[start : start + step]

    return np.concatenate([measure(part(predicted, k), part(actual, k)) for k in range(0, total, step)])


def swap_p(
    name: str, first: Floats, second: Floats, actual: Floats, *, seed: int = 0, draws: int = DRAWS
) -> PermutationTest:
    """Whether two benchmarks predict differently: if they do not, the two ranks of any model can be swapped.

    All 2^n swaps of up to 16 models, else a sample. Ranks are compared, so that scales do not matter.
    """
    a, b = rankdata(first), rankdata(second)
    n = len(a)
    exact = n <= EXACT_SWAPS
    if exact:
        swap = np.arange(2**n)[:, None] >> np.arange(n) & 1
    else:
        swap = np.random.default_rng(seed).integers(0, 2, (draws, n))

    def gap(one: Floats, other: Floats) -> Floats:
        # a swap may leave a benchmark with nothing but ties, which predict nothing: 0, not unknown
        known = [np.nan_to_num(measured(MEASURES[name], rows, actual[None])) for rows in (one, other)]
        return np.abs(known[0] - known[1])

    extreme = gap(np.where(swap, b, a), np.where(swap, a, b)) >= gap(a[None], b[None])[0] - _ROUNDING
    return PermutationTest.of(extreme, exact=exact)


def williams(first: Floats, second: Floats, actual: Floats) -> float:
    """Two-sided p that two Pearson correlations with the same column are equal (Williams 1959, Steiger 1980)."""
    from scipy.stats import t

    n = len(actual)
    a, b, c = (float(np.corrcoef(x, y)[0, 1]) for x, y in ((first, actual), (second, actual), (first, second)))
    determinant = 1 - a**2 - b**2 - c**2 + 2 * a * b * c
    scale = 2 * determinant * (n - 1) / (n - 3) + ((a + b) / 2) ** 2 * (1 - c) ** 3
    if scale <= _ROUNDING:
        return 1.0  # one is a linear function of the other
    return float(2 * t.sf(abs(a - b) * np.sqrt((n - 1) * (1 + c) / scale), n - 3))


def resampled(predicted: Floats, actual: Floats, *, seed: int = 0, draws: int = 2000) -> tuple[Floats, Floats]:
    """Bootstrap samples of the models, for both columns (Efron 1979)."""
    n = len(predicted)
    drawn = np.random.default_rng(seed).integers(0, n, (draws, n))
    return predicted[drawn], actual[drawn]


def percentiles(name: str, predicted: Floats, actual: Floats) -> tuple[float, float] | None:
    """The middle 95 % of a measure over rows, leaving out undefined ones; `None` if most are undefined."""
    values = measured(MEASURES[name], predicted, actual)
    known = values[~np.isnan(values)]
    if len(known) < len(values) / 2:
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


@cache
def power(rho: float, n: int, *, alpha: float = 0.05, studies: int = 4000, seed: int = 0) -> float:
    """Share of studies with n models that would find a true Spearman ρ significant, by simulating normal scores.

    A normal pair with correlation 2 sin(πρ/6) has Spearman correlation ρ (Pearson 1907).
    """
    rng = np.random.default_rng(seed)
    r = 2 * np.sin(np.pi * rho / 6)
    x = rng.normal(size=(studies, n))
    y = r * x + np.sqrt(1 - r**2) * rng.normal(size=(studies, n))
    by_x = np.take_along_axis(y, np.argsort(x, axis=1), axis=1)
    place = np.arange(n, dtype=np.float64)
    observed = np.abs(spearman(place, by_x))
    # the critical value is the smallest |ρ| that chance reaches in at most `alpha` of all orders, if there is one
    rows = reorderings(place, DRAWS, seed)
    values, counts = np.unique(np.round(np.abs(spearman(place, rows)), 9), return_counts=True)
    rare = values[np.cumsum(counts[::-1])[::-1] <= alpha * len(rows)]
    return float(np.mean(observed >= rare[0] - _ROUNDING)) if len(rare) else 0.0


def models_needed(rho: float, *, target: float = 0.8, most: int = 512, seed: int = 0) -> int | None:
    """The fewest models with which a true ρ is found with the target power; `None` if more than `most`."""
    high = 4
    while power(rho, high, seed=seed) < target:
        high *= 2
        if high > most:
            return None
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(rho, middle, seed=seed) >= target else (middle + 1, high)
    return low


STABILITY_DRAWS = 200


def cluster_sums(credit: Floats, clusters: Ints, groups: int) -> tuple[Floats, Floats]:
    """Of each cluster 0 … groups − 1 the sum of credit and the number of answered rows."""
    answered = ~np.isnan(credit)
    sums = np.bincount(clusters[answered], weights=credit[answered], minlength=groups)
    return sums.astype(np.float64), np.bincount(clusters[answered], minlength=groups).astype(np.float64)


def random_orders(groups: int, draws: int = STABILITY_DRAWS, seed: int = 0) -> Ints:
    """(draws, groups): in each draw the place of every cluster in a random order."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(groups) for _ in range(draws)]) if draws else np.zeros((0, groups), np.int64)


def accuracies(keep: Bools, sums: Floats, sizes: Floats) -> Floats:
    """(draws, models) from (draws, groups) and (models, groups); NaN where a model answered none of the rows."""
    kept = keep.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((kept @ sums.T) / (kept @ sizes.T))


def without_random(orders: Ints, k: int, sums: Floats, sizes: Floats) -> dict[str, Any]:
    """Without the first k clusters of every order: mean and central 95 % of accuracies, how often a model is first;
    models that tie share the draw."""
    values = accuracies(orders >= k, sums, sizes)
    best = values == np.nanmax(values, axis=1, keepdims=True)
    first = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
    low, high = np.quantile(values, (0.025, 0.975), axis=0)
    columns = {"value": values.mean(axis=0), "low": low, "high": high, "first": first}
    return {name: column.round(5).tolist() for name, column in columns.items()}


def clusters_to_overtake(leads: Floats) -> int | None:
    """The fewest clusters without which the first model is no longer ahead; `None` if it always is.

    `leads` are per-cluster sums of credit differences. Without the k largest ones their sum is the smallest that any k
    removals leave. At least one cluster must remain.
    """
    falling = np.sort(leads)[::-1]
    left = falling.sum() - np.concatenate([[0.0], np.cumsum(falling)])[:-1]
    enough = np.flatnonzero(left <= 1e-9)
    return int(enough[0]) if len(enough) else None


def split_half(orders: Ints, sums: Floats, sizes: Floats) -> dict[str, Any] | None:
    """Spearman's ρ of the models' accuracies between two random halves of the clusters: mean and central 95 %.

    A draw in which a half ties all models, or a model answered nothing, has no ρ and is left out.
    """
    groups = orders.shape[1]
    if groups < 2 or len(sums) < 3:
        return None
    half = orders < groups // 2
    rho = spearman(accuracies(half, sums, sizes), accuracies(~half, sums, sizes))
    rho = rho[~np.isnan(rho)]
    if not len(rho):
        return None
    low, high = np.quantile(rho, (0.025, 0.975))
    return {"value": float(rho.mean()), "low": float(low), "high": float(high), "draws": len(rho)}
