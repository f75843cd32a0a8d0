"""A share with an interval that knows about clusters.

Rows of one person, and of a person's mirror twin, are not independent. The clustered variance is the usual
sandwich with the small-sample factor G/(G−1) (Liang & Zeger 1986, doi:10.1093/biomet/73.1.13; for model
evaluation: Miller 2024, arXiv 2411.00640). It enters Wilson's interval (1927, doi:10.1080/01621459.1927.10502953)
as an effective sample size n / design effect, with a t quantile on G−1 degrees of freedom
(Korn & Graubard 1998, Survey Methodology 24).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.types import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Z95 = 1.959963984540054


class Totals(NamedTuple):
    """Per-cluster sums: all that intervals and resampling need."""

    sums: Floats
    sizes: Floats

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.sizes.sum())


def codes(names: list[str]) -> Ints:
    """Names as small integers, by first appearance."""
    number: dict[str, int] = {}
    return np.fromiter((number.setdefault(name, len(number)) for name in names), dtype=np.int64, count=len(names))


def totals(values: Floats, clusters: Ints) -> Totals:
    _, dense = np.unique(clusters, return_inverse=True)
    sums = np.bincount(dense, weights=values).astype(np.float64)
    return Totals(sums, np.bincount(dense).astype(np.float64))


def clustered_stderr(values: Floats, clusters: Ints) -> float | None:
    """Standard error of the mean; `None` from a single cluster, which says nothing about the next one."""
    sums, sizes = totals(values, clusters)
    if len(sums) < 2:
        return None
    # cluster residuals that cancel exactly (mirror twins) must give exactly 0, so the mean is kept as a ratio
    residuals = sums - sizes * (values.sum() / len(values))
    residuals[np.abs(residuals) < 1e-12 * sizes.max()] = 0.0
    groups = len(sums)
    return float(np.sqrt(groups / (groups - 1) * np.square(residuals).sum()) / len(values))


def wilson(share: float, n: float, quantile: float = Z95) -> tuple[float, float]:
    squared = quantile * quantile
    centre = (share + squared / (2 * n)) / (1 + squared / n)
    half = quantile / (1 + squared / n) * np.sqrt(share * (1 - share) / n + squared / (4 * n * n))
    # rounding must not push the ends past a share of exactly 0 or 1
    return max(0.0, min(share, float(centre - half))), min(1.0, max(share, float(centre + half)))


def share(values: Floats, clusters: Ints, *, failed: int = 0) -> Estimate:
    """Mean of values in 0..1 (1 won, 0.5 tied, 0 lost) with its 95 % interval."""
    n, ties = len(values), int((values == 0.5).sum())
    if not n:
        return Estimate(value=None, low=None, high=None, n=0, failed=failed)
    mean = float(values.sum() / n)
    low, high = _interval(mean, values, clusters, ties)
    return Estimate(value=mean, low=low, high=high, n=n, failed=failed, ties=ties)


def _interval(mean: float, values: Floats, clusters: Ints, ties: int) -> tuple[float, float]:
    n, groups = len(values), len(np.unique(clusters))
    if groups == n and not ties:
        return wilson(mean, n)
    if groups < 2:
        return 0.0, 1.0
    if mean in (0.0, 1.0):
        # no variance was seen, so the design effect is unknown: count whole clusters as one observation
        return wilson(mean, groups, _t95(groups - 1))
    error = clustered_stderr(values, clusters)
    assert error is not None
    if error == 0.0 and mean == 0.5:
        return mean, mean  # twins that cancel in every cluster: true by construction of the rows
    if error == 0.0:
        return wilson(mean, groups, _t95(groups - 1))  # equal by luck, so the variance is unknown here too
    return wilson(mean, mean * (1 - mean) / error**2, _t95(groups - 1))


def _t95(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))
