"""Clusters, and means with intervals that respect them.

Rows of one user are not independent, nor are those of linked users (mirror twins, a shared question or answer): linked
users form one cluster, see `data/load.py`. The clustered variance is the usual sandwich with the small-sample factor
G/(G−1) (Liang & Zeger 1986, doi:10.1093/biomet/73.1.13; for model evaluation: Miller 2024, arXiv 2411.00640). It enters
Wilson's interval (1927, doi:10.1080/01621459.1927.10502953) as an effective sample size n / design effect, with a t
quantile on G−1 degrees of freedom (Korn & Graubard 1998, Survey Methodology 24). G is the effective number of clusters
(Σn)² / Σn² (Kish 1965): where one user has half of the rows, there are fewer than four.

`clusters` is one code per row. Where links join nearly everybody into a few clusters, it is a table with four codes per
row instead: the user, the twin's user (−1 without one), and the question (and −1) or the two answers. Rows are then
dependent if they share a user or a question or answer on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.types import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
ALIKE = 2 / 3
"""Intra-class correlation that is assumed where the data cannot show one, as with a perfect score."""
COMBINED = 1 << 14
"""About how many better results `_better_results` returns at most, of which the lowest limit is taken."""
ROUNDING = 1e-12
"""Relative size below which a sum that should cancel counts as zero."""


def components(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each linked name to the smallest name of its connected component (union-find with path halving)."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for a, b in links:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return {name: root(name) for name in parent}


def links_by_text(texts: Ints, users: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Links between users whose texts, given as hashes, are equal."""
    order = np.argsort(texts, kind="stable")
    for n in np.flatnonzero(texts[order[1:]] == texts[order[:-1]]):
        a, b = users[order[n]], users[order[n + 1]]
        if a != b:
            yield a, b


def codes(names: list[str]) -> Ints:
    """Names as small integers, by first appearance."""
    number: dict[str, int] = {}
    return np.fromiter((number.setdefault(name, len(number)) for name in names), dtype=np.int64, count=len(names))


class Totals(NamedTuple):
    """Per-cluster sums: all that intervals and resampling need."""

    sums: Floats
    sizes: Floats

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.sizes.sum())


def totals(values: Floats, clusters: Ints) -> Totals:
    """Sums that cancel but for rounding are exactly 0: thirds of a credit leave 1e-16."""
    _, dense = np.unique(clusters, return_inverse=True)
    sums, sizes = np.bincount(dense, weights=values), np.bincount(dense).astype(np.float64)
    sums[np.abs(sums) <= ROUNDING * np.bincount(dense, weights=np.abs(values))] = 0.0
    return Totals(sums.astype(np.float64), sizes)


FEW, ENOUGH = 5, 5
"""With fewer effective clusters than `FEW` nothing can be significant; crossing must give `ENOUGH` times as many."""


def crossed(clusters: Ints, users: Ints, twins: Ints, questions: Ints, answers: Ints, *, complete: bool) -> Ints:
    """`clusters`, or users crossed with questions, or with answers (two columns) where there are few questions.

    They are crossed where clusters are not `complete`, since links through questions would have joined nearly all
    users, or where there are fewer than `FEW` effective clusters and crossing gives at least `ENOUGH` times as many.
    """
    worth = effective_clusters(clusters) if len(clusters) else np.inf
    if complete and worth >= FEW:
        return clusters
    couples = np.stack([users, np.where(twins >= 0, users[twins], -1)], axis=1)
    asked, answered = (
        np.unique(texts, return_inverse=True)[1].reshape(len(texts), -1) for texts in (questions, answers)
    )
    for shared in (np.hstack([asked, np.full_like(asked, -1)]), answered):
        table = np.hstack([couples, shared])
        if effective_clusters(table) >= ENOUGH * (worth if complete else 1):
            return table
    return clusters


def cluster_sizes(clusters: Ints) -> list[Floats]:
    """Rows per cluster; of a crossed table rows per user and per question or answer, on either side."""
    sides = [clusters] if clusters.ndim == 1 else [side[side >= 0] for side in (clusters[:, :2], clusters[:, 2:])]
    return [np.unique(codes, return_counts=True)[1].astype(np.float64) for codes in sides]


def effective_clusters(clusters: Ints) -> float:
    """(Σn)² / Σn² over cluster sizes n; the smaller of that of users and that of questions or answers."""
    return min(float(sizes.sum() ** 2 / np.square(sizes).sum()) for sizes in cluster_sizes(clusters))


def clustered_stderr(values: Floats, clusters: Ints) -> float | None:
    """Standard error of the mean; `None` for a single cluster, which says nothing about the next one."""
    if min(map(len, cluster_sizes(clusters))) < 2:
        return None
    return float(np.sqrt(small_sample_factor(clusters) * _squared_residuals(values, clusters)) / len(values))


def small_sample_factor(clusters: Ints) -> float:
    """What residuals from the mean of all lack: G/(G−1) with G clusters.

    Where a row has two of G members, the residuals of a member also lack what the others bring: in a balanced set of
    all couples their sum is (G−2)/(G−1) of what it should be. Of users and questions or answers the larger factor.
    """
    sides = [clusters[:, None]] if clusters.ndim == 1 else [clusters[:, :2], clusters[:, 2:]]
    factors = []
    for side, sizes in zip(sides, cluster_sizes(clusters), strict=True):
        groups = float(sizes.sum() ** 2 / np.square(sizes).sum())
        coupled = clusters.ndim == 2 and bool((side[:, 1] >= 0).any())
        factors.append(groups / (groups - 1) * (((groups - 1) / max(groups - 2, 1)) ** 2 if coupled else 1))
    return max(factors)


def _squared_residuals(values: Floats, clusters: Ints) -> float:
    """Σ over all dependent pairs of rows of the product of their residuals, at least that of users or of questions.

    Of crossed tables: pairs with a user in common, plus those with a question in common, less those with both (Cameron,
    Gelbach & Miller 2011, doi:10.1198/jbes.2010.07136). A pair of rows of the same two users is found once under either
    user, so it is taken off once (Aronow, Samii & Assenova 2015, doi:10.1093/pan/mpv018); so are two shared answers.
    """
    if clusters.ndim == 1:
        sums, sizes = totals(values, clusters)
        # cluster residuals that cancel exactly (mirror twins) must give exactly 0, so the mean is kept as a ratio
        residuals = sums - sizes * (values.sum() / len(values))
        residuals[np.abs(residuals) < ROUNDING * sizes.max()] = 0.0
        return float(np.square(residuals).sum())
    residuals = values - values.sum() / len(values)

    def in_common(*sides: list[tuple[int, list[Ints]]]) -> float:
        """Σ over pairs of rows with a code in common on each of the sides."""
        total = 0.0
        for views in product(*sides):
            rows = np.concatenate([np.stack(columns, axis=1) for columns in product(*(view for _, view in views))])
            known = (rows >= 0).all(axis=1)
            if known.any():
                sums = totals(np.tile(residuals, len(rows) // len(values))[known], _joined(*rows[known].T)).sums
                total += int(np.prod([sign for sign, _ in views])) * float(np.square(sums).sum())
        return total

    sides = []
    for one, other in (clusters[:, :2].T, clusters[:, 2:].T):
        # a row is counted under each of the two codes (+), and under both together (−); −1 where there is no second
        two = (other >= 0) & (other != one)
        both = _joined(np.minimum(one, other), np.maximum(one, other))
        sides.append([(1, [one, np.where(two, other, -1)]), (-1, [np.where(two, both, -1)])])
    by_user, by_shared = map(in_common, sides)
    return max(0.0, by_user, by_shared, by_user + by_shared - in_common(*sides))


def _joined(*columns: Ints) -> Ints:
    """One code per distinct combination."""
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def t95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t distribution; with next to no freedom a very large number."""
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    return min(1e6, float(stdtrit(max(freedom, 0.01), 0.975)))


def wilson(share: float | Floats, n: float | Ints | Floats, quantile: float = Z95) -> tuple[Any, Any]:
    squared = quantile * quantile
    center = (share + squared / (2 * n)) / (1 + squared / n)
    half = quantile / (1 + squared / n) * np.sqrt(share * (1 - share) / n + squared / (4 * n * n))
    # rounding must not push the ends past a share of exactly 0 or 1
    return np.clip(np.minimum(share, center - half), 0, 1), np.clip(np.maximum(share, center + half), 0, 1)


def cancels(margins: Floats, twins: Ints, rows: Bools | None = None) -> bool:
    """Whether all `rows` are mirror rows, and every margin is exactly the opposite of its twin's.

    A model that does not know the user gives such margins by construction, so its accuracy of ½ is no estimate. A row
    whose twin failed cannot be checked; at most half of the answered rows may be such.
    """
    rows = np.ones(len(margins), dtype=bool) if rows is None else rows
    mirrored = bool((rows <= (twins >= 0)).all() and rows[twins[rows]].all())
    answered = rows & ~np.isnan(margins)
    both = answered & answered[twins]
    opposite = mirrored and bool((margins[both] + margins[twins[both]] == 0).all())
    return opposite and bool(both.any()) and 2 * int(both.sum()) >= int(answered.sum())


def is_exact(estimate: Estimate) -> bool:
    """Whether a value holds by construction: only then has its interval no width."""
    return estimate.low is not None and estimate.low == estimate.high


def share(values: Floats, clusters: Ints, *, failed: int = 0, exact: bool = False) -> Estimate:
    """Mean of values in 0..1 (1 won, 0.5 tied, 0 lost) with its 95 % interval; ½ without width if that is `exact`."""
    n, ties = len(values), int((values == 0.5).sum())
    if not n:
        return Estimate(value=None, low=None, high=None, n=0, failed=failed)
    if exact:
        return Estimate(value=0.5, low=0.5, high=0.5, n=n, failed=failed, ties=ties)
    mean, low, high = float(values.sum() / n), 0.0, 1.0
    if all(len(sizes) == n for sizes in cluster_sizes(clusters)):
        low, high = map(float, wilson(mean, n))
    elif min(map(len, cluster_sizes(clusters))) > 1:
        low, high = min(mean, _lower_limit(values, clusters)), max(mean, 1 - _lower_limit(1 - values, clusters))
    return Estimate(value=mean, low=low, high=high, n=n, failed=failed, ties=ties)


def _lower_limit(values: Floats, clusters: Ints) -> float:
    """Wilson's lower end of this result or of a better one, whichever is lower: so one more miss never raises it.

    Better results have no misses in some of the clusters. The end is concave in the misses of a cluster, so nothing in
    between is lower; and of equally large clusters, those with most misses keep theirs.
    """
    n, groups = len(values), effective_clusters(clusters)
    quantile = t95(groups - 1)
    # Few misses hardly show how alike the rows of a cluster are, and no miss does not show it at all: a few rows are
    # added that have the design effect of an assumed intra-class correlation.
    added, assumed = quantile**2 / 4, 1 + ALIKE * (n / groups - 1)
    if clusters.ndim == 2:
        missed = np.array([(1 - values).sum(), 0.0])
        squares = np.array([_squared_residuals(values, clusters), 0.0])
    else:
        missed, squares = _better_results(*totals(1 - values, clusters))
    factor = small_sample_factor(clusters)
    effective = n * (missed * (1 - missed / n) + added) / (factor * squares + added * assumed)
    return float(wilson(1 - missed / n, effective, quantile)[0].min())


def _better_results(misses: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Misses and squared residuals of results in which only some clusters keep their misses.

    The largest clusters are combined in every way, with the others in order of how much they are above the mean.
    """
    equal = sizes.min() == sizes.max()
    largest = 0 if equal else min(len(sizes), 8, int(np.log2(COMBINED / len(sizes))) if len(sizes) < COMBINED else 0)
    order = np.lexsort((-misses, -sizes))
    few, rest = order[:largest], order[largest:]
    rest = rest[np.lexsort((sizes[rest], sizes[rest] * misses.sum() / sizes.sum() - misses[rest]))]
    columns = np.stack([misses, misses**2, misses * sizes])
    kept = np.arange(1 << largest) >> np.arange(largest)[:, None] & 1
    first = np.concatenate([np.zeros((3, 1)), np.cumsum(columns[:, rest], axis=1)], axis=1)
    missed, squares, products = ((columns[:, few] @ kept)[:, :, None] + first[:, None, :]).reshape(3, -1)
    mean = missed / sizes.sum()
    return missed, np.maximum(squares - 2 * mean * products + mean**2 * np.square(sizes).sum(), 0)


def average(values: Floats, clusters: Ints, limits: tuple[float, float] = (0.0, 1.0)) -> Estimate:
    """Mean of values within limits, with a 95 % t interval on effective clusters − 1; rows that are NaN failed."""
    known = ~np.isnan(values)
    n, failed = int(known.sum()), int((~known).sum())
    if not n:
        return Estimate(value=None, low=None, high=None, n=0, failed=failed)
    mean, error = float(values[known].mean()), clustered_stderr(values[known], clusters[known])
    if error is None:
        return Estimate(value=mean, low=None, high=None, n=n, failed=failed)
    half = t95(effective_clusters(clusters[known]) - 1) * error
    return Estimate(value=mean, low=max(limits[0], mean - half), high=min(limits[1], mean + half), n=n, failed=failed)


def by_label(
    credit: Floats,
    clusters: Ints,
    labels: Sequence[str | None],
    margin: Floats | None = None,
    twins: Ints | None = None,
) -> dict[str, Estimate]:
    """Accuracy of the rows under each label; failures are counted with their label.

    With `margin` and `twins`, labels on whose rows all margins cancel get an interval of width zero.
    """
    names = np.array([label or "" for label in labels], dtype=object)
    answered = ~np.isnan(credit)
    failed = np.isnan(credit if margin is None else margin)  # a row without a right answer has a margin and no credit
    estimates = {}
    for name in sorted(set(names[answered | failed]) - {""}):
        rows = names == name
        known = rows & answered
        exact = margin is not None and twins is not None and cancels(margin, twins, rows)
        estimates[name] = share(credit[known], clusters[known], failed=int((rows & failed).sum()), exact=exact)
    return estimates


def by_group(
    credit: Floats,
    clusters: Ints,
    groups: Sequence[Mapping[str, str]],
    margin: Floats | None = None,
    twins: Ints | None = None,
) -> dict[str, Any]:
    """For each attribute (age, region, …) the accuracy of its groups and the gap between the best and the worst."""
    table = {}
    for attribute in sorted({key for row in groups for key in row}):
        estimates = by_label(credit, clusters, [row.get(attribute) for row in groups], margin, twins)
        values = {name: e.value for name, e in estimates.items() if e.value is not None}
        table[attribute] = {
            "groups": {name: e.as_dict() for name, e in estimates.items()},
            "worst": min(values, key=values.__getitem__) if values else None,
            "gap": max(values.values()) - min(values.values()) if values else None,
        }
    return table


def user_means(credit: Floats, users: Ints) -> tuple[Floats, Ints, Ints]:
    """Mean credit of each user with an answered row, their answered rows, and their codes."""
    answered = ~np.isnan(credit)
    present, dense = np.unique(users[answered], return_inverse=True)
    n = np.bincount(dense)
    return np.bincount(dense, weights=credit[answered]) / np.maximum(n, 1), n, present


def chance_spread(means: Floats, rows: Ints) -> float | None:
    """The standard deviation that user means would have if every row were won with the same probability."""
    if len(means) < 2:
        return None
    overall = float((means * rows).sum() / rows.sum())
    return float(np.sqrt(overall * (1 - overall) * (1 / rows).mean()))


def spread(means: Floats) -> dict[str, Any]:
    """Over users: mean, standard deviation, and the mean of the worst-served tenth."""
    if not len(means):
        return {"n": 0, "mean": None, "spread": None, "worst_decile": None}
    worst = np.sort(means)[: max(1, len(means) // 10)]
    return {
        "n": len(means),
        "mean": float(means.mean()),
        "spread": float(means.std(ddof=1)) if len(means) > 1 else None,
        "worst_decile": float(worst.mean()),
    }
