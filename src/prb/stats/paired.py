"""Differences between two columns of credits on the same rows, and statistics of mirror twins.

Everything works on per-cluster sums. The p-value flips the signs of whole clusters (Fisher 1935). The interval inverts
that test: with cluster sums s and sizes n, the shift θ leaves residuals s − θn, and flipping a subset of clusters gives
a total at least as large exactly if the mean of that subset is at most θ. So the ends are quantiles of the means of all
subsets (Hartigan 1969, doi:10.1080/01621459.1969.10501057), and the interval excludes 0 exactly if p < 0.05.

Twins are the same question and answers under two users, with the labels swapped. With margins m_A and m_B (chosen −
rejected), (m_A + m_B)/2 is what depends on the user and (m_A − m_B)/2 what does not: a model's general taste enters the
two margins with opposite signs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from prb.stats.estimate import (
    ROUNDING,
    Bools,
    Floats,
    Ints,
    Totals,
    clustered_stderr,
    effective_clusters,
    share,
    t95,
    totals,
    wilson,
)
from prb.types import Difference, Estimate, Tested

LEVEL = 0.05
EXACT_CLUSTERS = 20
"""Up to 2^20 sign patterns or subsets are enumerated."""
MERGED = 12
"""Clusters after which subsets are no longer merged if none were equal."""
SUBSETS = 20_000
"""Subsets drawn beyond that: a tail of 2.5 % is estimated to ±0.1 points."""
DRAWS = 100_000
"""Sign patterns drawn where there are many clusters and no common unit."""
MIDP = "mcnemar-midp"
SIGN_FLIP = "sign-flip"
T_TEST = "t"
UNTESTED = "none"
"""The test of a difference that no cluster shows: p is 1 whatever the signs."""
DETECTABLE = 2.8
"""Standard errors: z(0.975) + z(0.8), so a true difference of that size is significant in 80 % of repetitions."""
GRIDS = (1, 2, 4, 12, 24, 60)
"""Denominators of credits: ties count a half, two orders a quarter, ties among three answers a third …"""
LARGEST_GRID = 1 << 22
"""Points of the exact distribution; beyond it, sign patterns are drawn."""
FAR = 9.0
"""Standard deviations beyond which a total has a chance below 1e-17 (Hoeffding), less than rounding."""
WORD = 64
"""Bits of a random word."""
_CHUNK = 1 << 22
"""Numbers drawn at once, to bound memory."""


def difference(a: Floats, b: Floats, clusters: Ints, *, exact: bool = False, seed: int = 0) -> Difference:
    """a − b over rows where neither is NaN; `exact` if it is 0 by construction, so that nothing is uncertain."""
    both = ~(np.isnan(a) | np.isnan(b))
    a, b, groups = a[both], b[both], clusters[both]
    delta, dropped = a - b, int((~both).sum())
    if not len(delta):
        return Difference(n=0, dropped=dropped, test=UNTESTED)
    p, test = (1.0, UNTESTED) if exact else paired_p(a, b, groups, seed=seed)
    value = 0.0 if exact else float(delta.mean())
    limit = 1.0 if min(a.min(), b.min()) >= 0 and max(a.max(), b.max()) <= 1 else np.inf
    error = clustered_stderr(delta, groups)
    ends: tuple[float | None, float | None] = (-limit, limit) if np.isfinite(limit) else (None, None)
    if exact:
        ends = value, value
    elif groups.ndim == 1:
        ends = inverted_interval(totals(delta, groups), p, midp=test == MIDP, limit=limit, seed=seed)
    else:
        spread, freedom = crossed_error(delta, groups)
        half = t95(freedom) * spread
        if np.isfinite(half) and half:
            ends = max(-limit, value - half), min(limit, value + half)
    hopeless = ends in ((-limit, limit), (None, None))  # so few clusters that nothing can be significant
    return Difference(
        value=value,
        low=ends[0],
        high=ends[1],
        p=p,
        n=len(delta),
        dropped=dropped,
        test=test,
        smallest_detectable=None if error is None or hopeless else DETECTABLE * error,
    )


def paired_p(a: Floats, b: Floats, clusters: Ints, *, seed: int = 0) -> tuple[float, str]:
    """Two-sided p and the name of its test: McNemar's mid-p for tie-free singletons, else sign flips."""
    if clusters.ndim == 2:
        return crossed_p(a - b, clusters)
    sums = totals(a - b, clusters).sums
    if not sums.any():
        return 1.0, UNTESTED
    tie_free = bool(np.isin(a, (0.0, 1.0)).all() and np.isin(b, (0.0, 1.0)).all())
    if tie_free and len(np.unique(clusters)) == len(clusters):
        return mcnemar_midp(int((a > b).sum()), int((b > a).sum())), MIDP
    return sign_flip(sums, seed=seed), SIGN_FLIP


def crossed_error(delta: Floats, clusters: Ints) -> tuple[float, float]:
    """Standard error of a mean over crossed users and questions, and its degrees of freedom.

    Differences that are all alike would leave no error: t²/4 rows of the largest size are added, as in `share`.
    """
    freedom = effective_clusters(clusters) - 1
    largest = float(np.abs(delta).max()) * t95(freedom) / 2 / len(delta)
    return float(np.hypot(clustered_stderr(delta, clusters) or np.inf, largest)), freedom


def crossed_p(delta: Floats, clusters: Ints) -> tuple[float, str]:
    """Two-sided p by a t test: clusters that share users and questions cannot be flipped one by one."""
    from scipy.special import stdtr

    if not delta.any():
        return 1.0, UNTESTED
    error, freedom = crossed_error(delta, clusters)
    return float(2 * stdtr(freedom, -abs(delta.mean()) / error)), T_TEST


def inverted_interval(
    sums: Totals, p: float, *, midp: bool = False, limit: float = np.inf, seed: int = 0
) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean that agrees with `p`, its sign-flip p-value (or mid-p); unknown from one cluster.

    With so few clusters that nothing can be significant it is the whole range ±`limit`, unknown if that is infinite.
    """
    groups, mean = len(sums.sums), sums.mean
    if groups < 2:
        return None, None
    means, counts = subset_means(sums, seed=seed)
    patterns = counts.sum() + 1
    # the empty subset, which flips nothing, is as extreme as what was observed; a mid-p counts it half
    beyond = int(np.floor(LEVEL / 2 * patterns - (0.5 if midp else 1.0)))
    if beyond < 0:
        return (-limit, limit) if np.isfinite(limit) else (None, None)
    if means[-1] - means[0] <= ROUNDING * max(abs(means[0]), abs(means[-1])):
        # Clusters that are all alike would give an interval of width zero. They only bound how many others there are:
        # a share of 0 out of G, which may have no effect or twice the effect; if there is none, any.
        reach = abs(mean) or limit
        off = float(wilson(0.0, groups)[1]) * reach
        return (max(-limit, mean - off), min(limit, mean + off)) if np.isfinite(reach) else (None, None)
    low = float(means[np.searchsorted(np.cumsum(counts), beyond, side="right")])
    high = float(means[::-1][np.searchsorted(np.cumsum(counts[::-1]), beyond, side="right")])
    # drawn subsets, rounding, or the open end of a mid-p interval can leave an end on the wrong side of zero
    if p >= LEVEL:
        return min(low, 0.0), max(high, 0.0)
    if mean > 0:
        return (low if low > 0 else float(means[means > 0][0])), high
    return low, (high if high < 0 else float(means[means < 0][-1]))


def subset_means(sums: Totals, *, seed: int = 0) -> tuple[Floats, Floats]:
    """Sorted means of the subsets of clusters that are not empty, and how many subsets have each.

    All subsets are counted, cluster by cluster. Those equal in sum and size are merged, which for credits leaves few.
    """
    if len(sums.sums) > EXACT_CLUSTERS:
        total, size = subset_sums(np.column_stack([sums.sums, sums.sizes]), SUBSETS, seed)
        return np.sort(total[size > 0] / size[size > 0]), np.ones(int((size > 0).sum()))
    unit = np.abs(sums.sums).max() or 1.0
    states, counts = np.zeros(1, dtype=np.complex128), np.ones(1)  # size + sum·i
    for number, (total, size) in enumerate(zip(sums.sums / unit, sums.sizes, strict=True)):
        states = np.concatenate([states, states + complex(size, total)])
        counts = np.concatenate([counts, counts])
        if number < MERGED or len(states) < 1 << number:  # rewards have no equal sums, and sorting takes long
            _, first, same = np.unique(np.round(states, 12), return_index=True, return_inverse=True)
            states, counts = states[first], np.bincount(same, weights=counts).astype(np.float64)
    means = states[1:].imag / states[1:].real * unit  # the first is the empty subset
    order = np.argsort(means, kind="stable")
    return means[order], counts[1:][order]


def subset_sums(clusters: Floats, draws: int, seed: int) -> Floats:
    """Column sums over random subsets that hold each cluster with probability ½; columns × draws.

    Of identical clusters only the number in the subset matters: Binomial(count, ½).
    """
    kinds, counts = np.unique(clusters, axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    sums = np.zeros((clusters.shape[1], draws))
    for kind, count in zip(kinds, counts, strict=True):
        if count <= WORD:  # the ones among so many random bits: the same distribution, ten times faster
            words = rng.integers(0, 1 << WORD, size=draws, dtype=np.uint64)
            chosen = np.bitwise_count(words >> np.uint64(WORD - count)).astype(np.float64)
        else:
            chosen = rng.binomial(count, 0.5, size=draws).astype(np.float64)
        for n, value in enumerate(kind):
            sums[n] += value * chosen
    return sums


def bootstrap_interval(sums: Totals, *, draws: int = 10_000, seed: int = 0) -> tuple[float, float] | tuple[None, None]:
    """95 % percentile interval of the mean; unknown from a single cluster.

    From resamples of whole clusters (Field & Welsh 2007, doi:10.1111/j.1467-9868.2007.00593.x).
    """
    if len(sums.sums) < 2:
        return None, None
    kinds, counts = np.unique(np.column_stack([sums.sums, sums.sizes]), axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // len(kinds))
    means = []
    for start in range(0, draws, step):
        drawn = rng.multinomial(counts.sum(), counts / counts.sum(), size=min(step, draws - start))
        means.append((drawn @ kinds[:, 0]) / (drawn @ kinds[:, 1]))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def sign_flip(sums: Floats, *, seed: int = 0) -> float:
    """P(|Σ ± s| ≥ |Σ s|) if each cluster's sign were a coin flip: exact for credits, drawn for many other numbers."""
    sizes = np.abs(sums)
    sizes = sizes[sizes > ROUNDING * sizes.max(initial=0.0)]
    if not len(sizes):
        return 1.0
    observed = abs(float(sums.sum())) - 1e-9 * sizes.sum()  # totals that are equal but for rounding count as equal
    if len(sizes) <= EXACT_CLUSTERS:
        # a total is one of the first half plus one of the second
        one, other = (np.array([*product((1, -1), repeat=len(half))]) @ half for half in np.array_split(sizes, 2))
        beyond = len(other) - np.searchsorted(np.sort(other), observed - one)
        return min(1.0, 2 * float(beyond.sum()) / (len(one) * len(other)))
    for unit in (*(1 / grid for grid in GRIDS), *(sizes.min() / parts for parts in range(1, 13))):
        steps = np.rint(sizes / unit)
        on_grid = (np.abs(sizes / unit - steps) <= 1e-9 * steps).all()
        if on_grid and 4 * FAR * np.sqrt(np.square(steps).sum()) < LARGEST_GRID:
            return _exact_tail(steps.astype(np.int64), int(np.ceil(observed / unit)))
    scaled = np.round(sizes / sizes.max(), 12)
    flips = 2 * subset_sums(scaled[:, None], DRAWS, seed)[0] - scaled.sum()
    extreme = int((np.abs(flips) * sizes.max() >= observed).sum())
    return (extreme + 1) / (DRAWS + 1)


def _exact_tail(steps: Ints, least: int) -> float:
    """P(|Σ ± steps| ≥ least), from the characteristic function Π cos(kt) by a Fourier transform."""
    deviation = float(np.sqrt(np.square(steps).sum()))
    if least <= 0:
        return 1.0
    smallest = 2.0 ** (1 - min(len(steps), 1000))  # of the two outermost patterns, as far as floats go
    if least > FAR * deviation:  # the chance itself would be lost in rounding: Hoeffding's bound
        return max(smallest, float(2 * np.exp(-((least / deviation) ** 2) / 2)))
    reach = min(int(steps.sum()), int(2 * FAR * deviation))
    points = 1 << (2 * reach).bit_length()
    angle = 2 * np.pi * np.arange(points // 2 + 1) / points
    transform = np.ones(len(angle))
    for step, count in zip(*np.unique(steps, return_counts=True), strict=True):
        transform *= np.cos(step * angle) ** count
    chances = np.fft.irfft(transform, points)  # of totals 0, 1, … and, from the end, −1, −2, …
    # added up from the far end, where chances are small
    tail = 2 * float(np.clip(chances[least : points // 2], 0, None)[::-1].sum())
    return min(1.0, max(tail, smallest))


def mcnemar_midp(wins: int, losses: int) -> float:
    """McNemar's mid-p on discordant pairs (Fagerland et al. 2013, doi:10.1186/1471-2288-13-91)."""
    from scipy.special import bdtr

    n, k = wins + losses, min(wins, losses)
    if not n:
        return 1.0
    return float(min(1.0, bdtr(k, n, 0.5) + (bdtr(k - 1, n, 0.5) if k else 0.0)))  # half of what is as extreme


def holm(ps: Sequence[float]) -> list[float]:
    """Step-down adjusted p-values (Holm 1979, Scandinavian Journal of Statistics 6:65–70)."""
    order = np.argsort(ps, kind="stable")
    scaled = np.asarray(ps, dtype=float)[order] * np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(p) for p in adjusted]


def corrected(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with a `p` and a `test`, with `p_holm` added: corrected over those that were tested.

    A row that could not be significant whatever the signs does not count (Tarone 1990, doi:10.2307/2531456).
    """
    tested = [n for n, row in enumerate(rows) if row["p"] is not None and row["test"] != UNTESTED]
    p_holm = dict(zip(tested, holm([rows[n]["p"] for n in tested]), strict=True))
    return [{**row, "p_holm": p_holm.get(n, row["p"])} for n, row in enumerate(rows)]


def flip_rate(a: Floats, b: Floats) -> float | None:
    """Share of rows whose verdict (won, tied, lost) differs between the two columns."""
    both = ~(np.isnan(a) | np.isnan(b))
    return float(np.mean(np.sign(a[both] - 0.5) != np.sign(b[both] - 0.5))) if both.any() else None


def misapplied(own: Floats, without: Floats, clusters: Ints, *, exact: bool = False) -> Estimate:
    """Credit that rows lose from no history (credits `without`) to the user's own: the share that is lost only then.

    On rows that no history may decide. A tie has half a credit to lose: a model that decides nothing without a history
    has not lost what it then decides by chance. `exact` if the history changes nothing by construction, so that nothing
    is uncertain.
    """
    known = ~np.isnan(own + without)
    lost = np.maximum(without[known] - own[known], 0.0)
    if exact and len(lost):
        return Estimate(value=0.0, low=0.0, high=0.0, n=len(lost))
    return share(lost, clusters[known])


def pull(own: Floats, others: Floats, clusters: Ints, *, seed: int = 0) -> Tested | None:
    """Share of rows whose margin falls from another user's history to the user's own, with its sign-flip p.

    No change counts half. The person effect of rows that the history must not decide: 50 % if it does not.
    """
    known = ~np.isnan(own + others)
    fall = others[known] - own[known]
    fall = np.where(np.abs(fall) <= ROUNDING * (np.abs(own[known]) + np.abs(others[known])), 0.0, fall)
    return _tested_share((np.sign(fall) + 1) / 2, clusters[known], seed)


@dataclass(frozen=True)
class Twins:
    """Row numbers of twins that were both answered, and their clusters."""

    first: Ints
    second: Ints
    clusters: Ints

    @classmethod
    def find(cls, twins: Ints, clusters: Ints, answered: Bools) -> Twins:
        first = np.flatnonzero(twins > np.arange(len(twins)))
        first = first[answered[first] & answered[twins[first]]]
        return cls(first, twins[first], clusters[first])

    def __len__(self) -> int:
        return len(self.first)


def mirror_accuracy(credit: Floats, twins: Twins) -> Estimate:
    """Share of twins with both rows strictly right. A coin flip has 25 %, a user-blind model 0 %."""
    both = (credit[twins.first] == 1) & (credit[twins.second] == 1)
    return share(both.astype(np.float64), twins.clusters)


def person_effect(margin: Floats, twins: Twins, *, seed: int = 0) -> Tested | None:
    """Share of twins with m_A + m_B > 0, zero counting half, with its sign-flip p; `None` without twins.

    If general taste cancels on every twin it is exactly 50 %, with nothing to estimate or to test.
    """
    return _tested_share((np.sign(_margin_sums(margin, twins)) + 1) / 2, twins.clusters, seed)


def _tested_share(won: Floats, clusters: Ints, seed: int) -> Tested | None:
    """A share of 0, ½ and 1 with its interval and the p that it is ½; `None` if there are none."""
    if not len(won):
        return None
    blind = bool((won == 0.5).all())
    effect = share(won, clusters, exact=blind)
    if clusters.ndim == 2:
        p, test = crossed_p(won - 0.5, clusters)
    else:
        p = sign_flip(totals(won - 0.5, clusters).sums, seed=seed)
        test = UNTESTED if blind else SIGN_FLIP
    return Tested(**effect.as_dict(), p=p, test=test)


def average_user_share(margin: Floats, twins: Twins) -> float | None:
    """Σg² / (Σg² + Σp²): the share of the squared margins that does not depend on the user."""
    personal = np.square(_margin_sums(margin, twins) / 2).sum()
    general = np.square((margin[twins.first] - margin[twins.second]) / 2).sum()
    whole = float(general + personal)
    return float(general) / whole if whole else None


def _margin_sums(margin: Floats, twins: Twins) -> Floats:
    """m_A + m_B; margins that cancel but for rounding give exactly zero."""
    a, b = margin[twins.first], margin[twins.second]
    total = a + b
    return np.where(np.abs(total) <= ROUNDING * (np.abs(a) + np.abs(b)), 0.0, total)
