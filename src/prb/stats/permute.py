"""Could it be chance? Permutation tests for few models, intervals for more, and how many models it would take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from prb.stats.rank import MEASURES, TWO_SIDED, Array, Measure, spearman

EXACT = 9
"""9! = 362,880 orders are all looked at; of more models a sample is drawn."""
EXACT_SWAPS = 16
DRAWS = 20_000
CELLS = 1 << 19
"""Numbers a block of a pairwise measure may hold: what stays in the processor's cache is done in half the time."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Tested:
    p: float
    exact: bool
    orders: int
    """How many were looked at."""


@cache
def orders(n: int) -> NDArray[np.intp]:
    return np.array(list(permutations(range(n))), dtype=np.intp)


def permutation_p(name: str, predicted: Array, actual: Array, *, seed: int = 0, draws: int = DRAWS) -> Tested:
    """How often a random order does as well: exact up to nine models, else (1 + hits) / (1 + draws).

    Correlations are tested two-sided, by absolute value; NDCG, RBO and regret one-sided.
    """
    n = len(predicted)
    seen = _strength(name, MEASURES[name](predicted, actual))[0]
    exact = n <= EXACT
    rows = actual[orders(n)] if exact else _shuffled(actual, draws, seed)
    chance = _strength(name, measured(MEASURES[name], predicted[None], rows))
    return _tested(int(np.sum(chance >= seen - _ROUNDING)), len(rows), exact)


def _strength(name: str, values: Array) -> Array:
    if name == "regret":
        return -values
    return np.abs(values) if name in TWO_SIDED else values


def _shuffled(values: Array, draws: int, seed: int) -> Array:
    return np.random.default_rng(seed).permuted(np.tile(values, (draws, 1)), axis=1)


def _tested(hits: int, looked_at: int, exact: bool) -> Tested:
    p = hits / looked_at if exact else (1 + hits) / (1 + looked_at)
    return Tested(p, exact=exact, orders=looked_at)


def measured(measure: Measure, predicted: Array, actual: Array) -> Array:
    """A measure of many rows, in blocks; either side may be a single row."""
    total, n = max(len(predicted), len(actual)), actual.shape[1]
    step = max(1, CELLS // (n * n))

    def part(rows: Array, start: int) -> Array:
        return rows if len(rows) == 1 else rows[start : start + step]

    return np.concatenate([measure(part(predicted, k), part(actual, k)) for k in range(0, total, step)])


def swap_p(name: str, first: Array, second: Array, actual: Array, *, seed: int = 0, draws: int = DRAWS) -> Tested:
    """Whether two benchmarks predict differently: if not, any model's two ranks could as well be swapped.

    All 2^n swaps up to 16 models, else a sample. Ranks, so that scales do not matter.
    """
    both = np.stack([rankdata(first), rankdata(second)])
    n = both.shape[1]
    exact = n <= EXACT_SWAPS
    swap = np.arange(2**n)[:, None] >> np.arange(n) & 1 if exact else _coins(draws, n, seed)
    chance = np.abs(_differences(name, np.where(swap, both[1], both[0]), np.where(swap, both[0], both[1]), actual))
    seen = abs(_differences(name, both[:1], both[1:], actual)[0])
    return _tested(int(np.sum(chance >= seen - _ROUNDING)), len(swap), exact)


def _coins(draws: int, n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 2, (draws, n))


def _differences(name: str, first: Array, second: Array, actual: Array) -> Array:
    """A swap may leave a benchmark with nothing but ties, which predict nothing: 0, not unknown."""
    a, b = (np.nan_to_num(measured(MEASURES[name], rows, actual[None])) for rows in (first, second))
    return np.asarray(a - b)


def williams(first: Array, second: Array, actual: Array) -> float:
    """Two-sided p that two Pearson correlations with the same column are equal (Williams 1959, Steiger 1980)."""
    from scipy.stats import t

    n = len(actual)
    a, b, c = (float(np.corrcoef(x, y)[0, 1]) for x, y in ((first, actual), (second, actual), (first, second)))
    determinant = 1 - a**2 - b**2 - c**2 + 2 * a * b * c
    scale = 2 * determinant * (n - 1) / (n - 3) + ((a + b) / 2) ** 2 * (1 - c) ** 3
    if scale <= _ROUNDING:
        return 1.0  # one is a linear function of the other
    return float(2 * t.sf(abs(a - b) * np.sqrt((n - 1) * (1 + c) / scale), n - 3))


def resampled(predicted: Array, actual: Array, *, seed: int = 0, draws: int = 2000) -> tuple[Array, Array]:
    """Both columns of as many models, drawn anew with replacement (Efron 1979)."""
    n = len(predicted)
    drawn = np.random.default_rng(seed).integers(0, n, (draws, n))
    return predicted[drawn], actual[drawn]


def percentiles(name: str, predicted: Array, actual: Array) -> tuple[float, float] | None:
    """The middle 95 % of a measure over rows; rows in which it is undefined are left out."""
    values = measured(MEASURES[name], predicted, actual)
    known = values[~np.isnan(values)]
    if len(known) < len(values) / 2:
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


@cache
def power(rho: float, n: int, *, alpha: float = 0.05, studies: int = 4000, seed: int = 0) -> float:
    """Share of studies with n models that would see a true Spearman ρ, by simulation of normal scores.

    A normal pair with correlation 2 sin(πρ/6) has Spearman correlation ρ (Pearson 1907).
    """
    rng = np.random.default_rng(seed)
    r = 2 * np.sin(np.pi * rho / 6)
    x = rng.normal(size=(studies, n))
    y = r * x + np.sqrt(1 - r**2) * rng.normal(size=(studies, n))
    by_x = np.take_along_axis(y, np.argsort(x, axis=1), axis=1)
    seen = np.abs(spearman(np.arange(n, dtype=np.float64), by_x))
    return float(np.mean(seen >= _critical(n, alpha, seed) - _ROUNDING))


def _critical(n: int, alpha: float, seed: int) -> float:
    """The smallest |ρ| that chance reaches in at most `alpha` of all orders; infinite if there is none."""
    place = np.arange(n, dtype=np.float64)
    rows = place[orders(n)] if n <= EXACT else _shuffled(place, DRAWS, seed)
    values, counts = np.unique(np.round(np.abs(spearman(place, rows)), 9), return_counts=True)
    rare = values[np.cumsum(counts[::-1])[::-1] <= alpha * len(rows)]
    return float(rare[0]) if len(rare) else np.inf


def models_needed(rho: float, *, wanted: float = 0.8, most: int = 512, seed: int = 0) -> int | None:
    """The fewest models with which a true ρ would be seen often enough; `None` if more than `most`."""
    high = 4
    while power(rho, high, seed=seed) < wanted:
        high *= 2
        if high > most:
            return None
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(rho, middle, seed=seed) >= wanted else (middle + 1, high)
    return low
