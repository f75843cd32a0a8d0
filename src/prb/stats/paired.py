"""Differences between two columns of credits on the same rows: clustered intervals, permutation p-values, Holm.

All draws work on per-cluster sums. Identical clusters are drawn together (a multinomial over the distinct kinds, a
binomial over equal magnitudes): the same distribution as drawing them one by one, thousands of times faster when there
are many users and few possible sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints, Totals, clustered_stderr, totals

EXACT_CLUSTERS = 20
"""Up to 2^20 sign patterns are enumerated; with more clusters, patterns are sampled."""
DRAWS = 100_000
DETECTABLE = 2.8
"""Standard errors: z(0.975) + z(0.8), so a true difference of that size is significant in 80 % of repetitions."""
_CHUNK = 1 << 22
"""Numbers drawn at once, to bound memory."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean difference of two columns on the rows both answered."""

    value: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int
    dropped: int
    """Rows that failed on either side."""
    test: str
    smallest_detectable: float | None
    """The true difference that 80 % of repetitions would find significant at the 5 % level."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def difference(a: Floats, b: Floats, clusters: Ints, *, seed: int = 0) -> Difference:
    """a − b over rows where neither is NaN."""
    both = ~(np.isnan(a) | np.isnan(b))
    delta, groups = (a - b)[both], clusters[both]
    dropped = int((~both).sum())
    if not len(delta):
        return Difference(
            value=None, low=None, high=None, p=None, n=0, dropped=dropped, test="none", smallest_detectable=None
        )
    sums = totals(delta, groups)
    low, high = bootstrap_interval(sums, seed=seed)
    p, test = paired_p(a[both], b[both], groups, seed=seed)
    error = clustered_stderr(delta, groups)
    return Difference(
        value=float(delta.mean()),
        low=low,
        high=high,
        p=p,
        n=len(delta),
        dropped=dropped,
        test=test,
        smallest_detectable=None if error is None else DETECTABLE * error,
    )


def paired_p(a: Floats, b: Floats, clusters: Ints, *, seed: int = 0) -> tuple[float, str]:
    """Two-sided p and the name of its test: McNemar's mid-p for tie-free singletons, else sign flips."""
    tie_free = bool(np.isin(a, (0.0, 1.0)).all() and np.isin(b, (0.0, 1.0)).all())
    if tie_free and len(np.unique(clusters)) == len(clusters):
        return mcnemar_midp(int((a > b).sum()), int((b > a).sum())), "mcnemar-midp"
    return sign_flip(totals(a - b, clusters).sums, seed=seed), "sign-flip"


def bootstrap(sums: Totals, *, draws: int = 10_000, seed: int = 0) -> Floats:
    """Means of resamples of whole clusters (Field & Welsh 2007, doi:10.1111/j.1467-9868.2007.00593.x)."""
    kinds, counts = np.unique(np.column_stack([sums.sums, sums.sizes]), axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // len(kinds))
    means = []
    for start in range(0, draws, step):
        drawn = rng.multinomial(counts.sum(), counts / counts.sum(), size=min(step, draws - start))
        means.append((drawn @ kinds[:, 0]) / (drawn @ kinds[:, 1]))
    return np.concatenate(means)


def bootstrap_interval(sums: Totals, *, draws: int = 10_000, seed: int = 0) -> tuple[float | None, float | None]:
    """95 % percentile interval; unknown from a single cluster."""
    if len(sums.sums) < 2:
        return None, None
    low, high = np.quantile(bootstrap(sums, draws=draws, seed=seed), [0.025, 0.975])
    return float(low), float(high)


def sign_flip(sums: Floats, *, seed: int = 0, draws: int = DRAWS) -> float:
    """P(|Σ ± s| ≥ |Σ s|) if each cluster's sign were a coin flip (Fisher 1935; exact up to 20 clusters)."""
    nonzero = sums[sums != 0]
    if not len(nonzero):
        return 1.0
    sizes = np.abs(nonzero)
    observed = abs(nonzero.sum()) - 1e-9 * sizes.sum()  # totals that are equal but for rounding count as equal
    if len(nonzero) <= EXACT_CLUSTERS:
        flips = np.zeros(1)  # the totals under all sign patterns, by doubling
        for value in nonzero:
            flips = np.concatenate([flips + value, flips - value])
        return float(np.mean(np.abs(flips) >= observed))
    # of m clusters with the same |sum| only the number of plus signs matters: Binomial(m, ½)
    kinds, counts = np.unique(np.round(sizes / sizes.max(), 12), return_counts=True)
    rng = np.random.default_rng(seed)
    flips = np.zeros(draws)
    for size, count in zip(kinds, counts, strict=True):
        flips += size * (2.0 * rng.binomial(count, 0.5, size=draws) - count)
    extreme = int((np.abs(flips * sizes.max()) >= observed).sum())
    return (extreme + 1) / (draws + 1)


def mcnemar_midp(wins: int, losses: int) -> float:
    """McNemar's mid-p on discordant pairs (Fagerland et al. 2013, doi:10.1186/1471-2288-13-91)."""
    from scipy.stats import binom

    n, k = wins + losses, min(wins, losses)
    if not n:
        return 1.0
    return float(min(1.0, 2 * binom.cdf(k, n, 0.5) - binom.pmf(k, n, 0.5)))


def holm(ps: Sequence[float]) -> list[float]:
    """Step-down adjusted p-values (Holm 1979, Scandinavian Journal of Statistics 6:65–70)."""
    order = np.argsort(ps, kind="stable")
    scaled = np.asarray(ps, dtype=float)[order] * np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(p) for p in adjusted]


def flip_rate(a: Floats, b: Floats) -> float | None:
    """Share of rows whose verdict (won, tied, lost) differs between the two columns."""
    both = ~(np.isnan(a) | np.isnan(b))
    return float(np.mean(np.sign(a[both] - 0.5) != np.sign(b[both] - 0.5))) if both.any() else None
