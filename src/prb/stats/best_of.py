"""Best-of-k from N samples of each query, exactly: no draw, and not merely the first k.

A sample's weight is its chance to be the highest-scored of k samples picked from the N at random, so the expected
grade of best-of-k is a weighted mean of all N grades: the unbiased estimator of Hilton & Gao 2022 ("Measuring
Goodhart's law"), here with ties, which share their chance. Rows are queries and NaN is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import comb, log
from typing import Any

import numpy as np

from prb.errors import BadInput
from prb.stats.estimate import Floats, Ints, Totals, clustered_stderr, totals
from prb.stats.paired import bootstrap_interval, difference
from prb.types import Estimate

LEVEL = 0.05


def powers(n: int) -> tuple[int, ...]:
    """1, 2, 4, … and N itself."""
    return tuple(sorted({*(2**e for e in range(n.bit_length())), n}))


def kl_bound(k: int) -> float:
    """The most that best-of-k can move from the policy, in nats of KL (Beirami et al., arXiv 2401.01879)."""
    return log(k) - (k - 1) / k


def weights(scores: Floats, k: int) -> Floats:
    """Each sample's chance to be picked as best of k; samples tied at ascending ranks l..u share theirs equally."""
    n = len(scores)
    if not 1 <= k <= n:
        raise BadInput(f"best of {k} cannot be told from {n} samples")
    _, rank, ties = np.unique(scores, return_inverse=True, return_counts=True)
    upto = np.cumsum(ties).tolist()
    # whole numbers until the one division, so that large N neither overflow nor cancel
    share = [(comb(u, k) - comb(u - t, k)) / (t * comb(n, k)) for u, t in zip(upto, ties.tolist(), strict=True)]
    return np.array(share)[rank]


def curves(scores: Floats, grades: Floats, ks: Sequence[int]) -> Floats:
    """Expected grade of best-of-k, queries × ks; a query with any failure among its samples is NaN."""
    found = np.full((len(scores), len(ks)), np.nan)
    for row in np.flatnonzero(~np.isnan(scores + grades).any(axis=1)):
        found[row] = [weights(scores[row], k) @ grades[row] for k in ks]
    return found


def average(values: Floats, clusters: Ints) -> Estimate:
    """Mean of values in 0..1 with a 95 % t interval on clusters − 1; rows that are NaN failed."""
    known = ~np.isnan(values)
    n, failed = int(known.sum()), int((~known).sum())
    if not n:
        return Estimate(value=None, low=None, high=None, n=0, failed=failed)
    mean, error = float(values[known].mean()), clustered_stderr(values[known], clusters[known])
    if error is None:
        return Estimate(value=mean, low=None, high=None, n=n, failed=failed)
    from scipy.stats import t

    half = float(t.ppf(0.975, len(np.unique(clusters[known])) - 1)) * error
    return Estimate(value=mean, low=max(0.0, mean - half), high=min(1.0, mean + half), n=n, failed=failed)


def headroom(got: Floats, chance: Floats, best: Floats, clusters: Ints, *, seed: int = 0) -> dict[str, Any]:
    """Σ(got − chance) / Σ(best − chance): the share of what perfect choice would add. Interval: whole clusters redrawn.

    A cluster whose samples are all graded alike has nothing to gain: it says nothing of the share, and is not redrawn.
    """
    known = ~np.isnan(got + chance + best)
    room = totals((best - chance)[known], clusters[known]).sums
    gain = totals((got - chance)[known], clusters[known]).sums
    open_ = room > 1e-12
    if not open_.any():
        return {"value": None, "low": None, "high": None, "n": int(known.sum())}
    ratio = Totals(gain[open_], room[open_])
    low, high = bootstrap_interval(ratio, seed=seed)
    return {"value": ratio.mean, "low": low, "high": high, "n": int(known.sum())}


def bend(curve: Floats, ks: Sequence[int], clusters: Ints, *, seed: int = 0) -> dict[str, Any] | None:
    """Does picking harder make it worse (over-optimisation: Gao et al., arXiv 2210.10760)?

    The peak of the mean curve is set against its end, query by query: mean drop, bootstrap interval over clusters, and
    a sign-flip p times the number of ks the peak was chosen from (Bonferroni). `down` if that p is below 0.05.
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
    """Everybody against everybody, in both orders."""
    return list(permutations(range(n), 2))


def win_rates(n: int, credits: Sequence[float]) -> list[float]:
    """Mean credit of each over its meetings, given that of the first in each of `meetings(n)`; one alone has a half."""
    won = [0.0] * n
    for (first, second), credit in zip(meetings(n), credits, strict=True):
        won[first] += credit
        won[second] += 1 - credit
    return [w / (2 * (n - 1)) for w in won] if n > 1 else [0.5]
