"""The exact expected grade of best-of-k from N samples per query, without drawing subsets.

A sample's weight is its probability of being the highest-scored of k samples picked at random from the N, so the
expected grade of best-of-k is a weighted mean of all N grades: the unbiased estimator of Hilton & Gao 2022 ("Measuring
Goodhart's law"). Tied samples share their probability. Rows are queries and NaN is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import comb, log
from typing import Any

import numpy as np

from prb.errors import BadInput
from prb.stats.estimate import ROUNDING, Floats, Ints, Totals, totals
from prb.stats.paired import bootstrap_interval, difference

LEVEL = 0.05
"""Of significance, for over-optimization."""


def powers(n: int) -> tuple[int, ...]:
    """1, 2, 4, … and N itself."""
    return tuple(sorted({*(2**e for e in range(n.bit_length())), n}))


def kl_bound(k: int) -> float:
    """Upper bound on the KL divergence of best-of-k from the policy, in nats (Beirami et al., arXiv 2401.01879)."""
    return log(k) - (k - 1) / k


def weights(scores: Floats, k: int) -> Floats:
    """Probability of each sample to be the best of k; samples tied at ascending ranks l..u share theirs equally."""
    n = len(scores)
    if not 1 <= k <= n:
        raise BadInput(f"best-of-{k} is not defined for {n} samples per query")
    _, rank, ties = np.unique(scores, return_inverse=True, return_counts=True)
    upto = np.cumsum(ties).tolist()
    # integers until the one division, so that large N neither overflows nor cancels
    share = [(comb(u, k) - comb(u - t, k)) / (t * comb(n, k)) for u, t in zip(upto, ties.tolist(), strict=True)]
    return np.array(share)[rank]


def curves(scores: Floats, grades: Floats, ks: Sequence[int]) -> Floats:
    """Expected grade of best-of-k, queries × ks; a query with any failure among its samples is NaN."""
    expected = np.full((len(scores), len(ks)), np.nan)
    for row in np.flatnonzero(~np.isnan(scores + grades).any(axis=1)):
        expected[row] = [weights(scores[row], k) @ grades[row] for k in ks]
    return expected


def headroom(got: Floats, chance: Floats, best: Floats, clusters: Ints, *, seed: int = 0) -> dict[str, Any]:
    """Σ(got − chance) / Σ(best − chance): the share of what a perfect choice would add, with a bootstrap interval.

    A cluster whose samples all have the same grade says nothing about the share, so the bootstrap leaves it out.
    """
    known = ~np.isnan(got + chance + best)
    room = totals((best - chance)[known], clusters[known]).sums
    gain = totals((got - chance)[known], clusters[known]).sums
    informative = room > ROUNDING
    if not informative.any():
        return {"value": None, "low": None, "high": None, "n": int(known.sum())}
    ratio = Totals(gain[informative], room[informative])
    low, high = bootstrap_interval(ratio, seed=seed)
    return {"value": ratio.mean, "low": low, "high": high, "n": int(known.sum())}


def overoptimization(curve: Floats, ks: Sequence[int], clusters: Ints, *, seed: int = 0) -> dict[str, Any] | None:
    """Whether the grade falls as k grows (Gao et al., arXiv 2210.10760).

    The peak of the mean curve is compared with its end, query by query: mean drop with its interval, and a sign-flip p
    times the number of ks the peak was chosen from (Bonferroni). `down` if that p is below 0.05.
    """
    known = ~np.isnan(curve).any(axis=1)
    if len(ks) < 2 or not known.any():
        return None
    peak = int(curve[known].mean(axis=0).argmax())
    if peak == len(ks) - 1:
        return {"peak": ks[-1], "drop": 0.0, "low": None, "high": None, "p": None, "down": False}
    drop = difference(curve[:, peak], curve[:, -1], clusters, seed=seed)
    assert drop.p is not None
    p = min(1.0, drop.p * (len(ks) - 1))
    return {"peak": ks[peak], "drop": drop.value, "low": drop.low, "high": drop.high, "p": p, "down": p < LEVEL}


def meetings(n: int) -> list[tuple[int, int]]:
    """All ordered pairs of n samples."""
    return list(permutations(range(n), 2))


def win_rates(n: int, credits: Sequence[float]) -> list[float]:
    """Mean credit of each sample, given that of the first of each of `meetings(n)`; ½ for a single sample."""
    won = [0.0] * n
    for (first, second), credit in zip(meetings(n), credits, strict=True):
        won[first] += credit
        won[second] += 1 - credit
    return [w / (2 * (n - 1)) for w in won] if n > 1 else [0.5]
