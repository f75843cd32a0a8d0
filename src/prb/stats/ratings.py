"""Ratings and votes: how well scores follow a user's own ratings, and whose taste votes show.

A reward has no unit, so it is first mapped to the user's scale by a line fitted on that user's *other* rows. The slope
is never negative: a model with the order reversed is not credited for it.

A vote y of user u on item i is μ + item + user + group × item + individual + noise, all random and uncorrelated. Each
part is a difference of mean products of two votes: of different users on the same item, of the same user on different
items, of the same group, of the same user on the same item again, and of nothing in common. These need no balanced
table (covariance components by U-statistics: Koch 1967, doi:10.1080/00401706.1967.10490444; Owen
2007, doi:10.1214/07-AOAS122). Individual taste and noise are told apart by votes that were given twice. Without any,
the part of what is left that a user's *other* votes predict is a lower bound of the individual part: each vote is
predicted from the user's others with the covariance of items among other users, leaving it out. Intervals are by the
jackknife over users plus that over items, which counts noise twice and is wide rather than narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prb.stats.estimate import ROUNDING, Floats, Ints, average, t95
from prb.stats.paired import DETECTABLE
from prb.types import Estimate

MIN_ROWS = 3
"""Users with fewer answered rows are left out: a line through one other row says nothing."""
RANGES = {
    "alignment": (0.0, 1.0),
    "mae": (0.0, 1.0),
    "skill": (-np.inf, 1.0),
    "spearman": (-1.0, 1.0),
    "concordance": (0.0, 1.0),
}
"""Of each metric; intervals stay within."""
BLOCKS = 40
"""Parts of users, and of items, that the jackknife leaves out in turn."""
PSEUDO_VOTES = 10.0
"""What shrinks a covariance of two items that few users have in common."""
FACTORS = 12
"""Directions of taste that the covariance of items may have."""
LEAST_USERS, LEAST_ITEMS = 10, 5
PARTS = ("shared", "leaning", "group", "individual", "noise")


# --- scores and ratings, user by user ---


def rating_metrics(score: Floats, rating: Floats, users: Ints) -> dict[int, dict[str, Any]]:
    """For each user code with at least three answered rows, the metrics and n."""
    from scipy.stats import spearmanr

    answered = ~np.isnan(score)
    if not answered.any():
        return {}
    order = np.argsort(users[answered], kind="stable")
    codes, starts = np.unique(users[answered][order], return_index=True)
    scores, ratings = np.split(score[answered][order], starts[1:]), np.split(rating[answered][order], starts[1:])
    metrics = {}
    for code, x, y in zip(codes, scores, ratings, strict=True):
        if len(x) < MIN_ROWS:
            continue
        varied = np.ptp(y) > 0
        error = float(np.abs(left_out_line(x, y) - y).mean())
        others_mean = (y.sum() - y) / (len(y) - 1)
        metrics[int(code)] = {
            "n": len(x),
            "alignment": 1 - error,
            "mae": error,
            "skill": 1 - error / float(np.abs(others_mean - y).mean()) if varied else None,
            "spearman": float(spearmanr(x, y).statistic) if varied and np.ptp(x) > 0 else None,
            "concordance": concordance(x, y),
        }
    return metrics


def left_out_line(score: Floats, rating: Floats) -> Floats:
    """For each row the prediction of a line (slope ≥ 0) fitted on the other rows, clipped to 0..1."""
    n = len(score) - 1
    sx, sy = score.sum() - score, rating.sum() - rating
    sxx, sxy = np.square(score).sum() - np.square(score), (score * rating).sum() - score * rating
    spread = sxx - sx * sx / n
    joint = sxy - sx * sy / n
    # subtracting a huge row from a sum leaves rounding of that row's size, so flatness is judged against all rows
    flat = spread <= ROUNDING * np.square(score).sum()
    slope = np.where(flat, 0.0, np.maximum(0.0, joint / np.where(flat, 1.0, spread)))
    return np.asarray(np.clip(sy / n + slope * (score - sx / n), 0.0, 1.0))


def concordance(score: Floats, rating: Floats) -> float | None:
    """Share of row pairs with different ratings that the scores order in the same way; ties count half."""
    i, j = np.triu_indices(len(score), 1)
    expected, given = np.sign(rating[i] - rating[j]), np.sign(score[i] - score[j])
    differ = expected != 0
    return float(((expected * given)[differ] + 1).mean() / 2) if differ.any() else None


def mean_over_users(metric: str, values: Sequence[float | None]) -> Estimate:
    """Mean with a t interval over users; users for whom the metric is undefined are left out of n."""
    known = np.array([v for v in values if v is not None], dtype=np.float64)
    return average(known, np.arange(len(known)), RANGES[metric])


# --- whose votes they are ---


@dataclass(frozen=True)
class Ratings:
    """Votes or ratings, one entry each; a user may rate an item twice."""

    users: Ints
    items: Ints
    values: Floats
    groups: Ints | None = None
    """Of the user of each entry; −1 where unknown."""

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Ratings:
        groups = None if self.groups is None else self.groups[rows]
        return Ratings(self.users[rows], self.items[rows], self.values[rows], groups)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the variance, with its 95 % interval."""

    value: float
    low: float
    high: float
    detectable: float
    """A true share of this size is shown in 80 % of repetitions."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Parts of the variance; they add up to 1."""

    shared: Share
    leaning: Share
    group: Share | None
    individual: Share
    noise: Share
    repeated: int
    """Votes on an item that the user had voted on before; without any, `individual` is a lower bound."""
    votes: int
    users: int
    items: int

    @property
    def parts(self) -> dict[str, Share | None]:
        return {name: getattr(self, name) for name in PARTS}


def variance_shares(ratings: Ratings, seed: int = 0) -> Shares | None:
    """`None` where there are too few users or items, where users share no items, or where all votes are the same."""
    users, items = (np.unique(codes, return_inverse=True)[1] for codes in (ratings.users, ratings.items))
    ratings = Ratings(users, items, ratings.values, ratings.groups)
    if not len(ratings) or users.max() + 1 < LEAST_USERS or items.max() + 1 < LEAST_ITEMS:
        return None
    parts = variance_components(ratings)
    if not parts["total"] > 0:
        return None
    repeated = len(ratings) - len(np.unique(np.stack([users, items]), axis=1).T)
    predicted, predicted_error = (None, 0.0) if repeated else predictable(ratings, seed)
    whole = _shares(parts, predicted)
    if not np.isfinite(whole).all():
        return None
    rng = np.random.default_rng(seed)
    variances, blocks = np.zeros(len(whole)), []
    for codes in (users, items):
        count = min(BLOCKS, int(codes.max()) + 1)
        block = rng.permutation(int(codes.max()) + 1) % count
        left_out = [_shares(variance_components(ratings.take(block[codes] != n)), predicted) for n in range(count)]
        table = np.array([row for row in left_out if np.isfinite(row).all()])
        if not len(table):
            return None
        variances += (count - 1) * table.var(axis=0)
        blocks.append(count)
    variances[3:] += ((whole[3] + whole[4]) * predicted_error) ** 2  # what is predictable of the rest varies too
    errors, quantile = np.sqrt(variances), t95(min(blocks) - 1)
    shares: dict[str, Share] = {}
    for name, part, error in zip(PARTS, whole.tolist(), errors.tolist(), strict=True):
        value, low, high = np.clip([part, part - quantile * error, part + quantile * error], 0, 1).tolist()
        shares[name] = Share(value=value, low=low, high=high, detectable=DETECTABLE * error)
    return Shares(
        **shares if ratings.groups is not None else shares | {"group": None},
        repeated=repeated,
        votes=len(ratings),
        users=int(users.max()) + 1,
        items=int(items.max()) + 1,
    )


def _shares(parts: dict[str, float], predicted: float | None) -> Floats:
    """Shared, leaning, group, individual, noise, as shares of the total."""
    explained = parts["shared"] + parts["leaning"] + parts["group"]
    rest = parts["total"] - explained
    individual = parts["repeated"] - explained if predicted is None else max(0.0, predicted) * rest
    return np.array([parts["shared"], parts["leaning"], parts["group"], individual, rest - individual]) / parts["total"]


def variance_components(ratings: Ratings) -> dict[str, float]:
    """Variance of each part, from mean products of two votes with this or that in common; NaN where there are none."""
    # centered, since mean products over different pairs weigh users differently; the mean itself cancels
    y, users, items = ratings.values - ratings.values.mean(), ratings.users, ratings.items
    cells = users * (int(items.max()) + 1) + items

    def squares(codes: Ints) -> tuple[float, float]:
        """Σ of products, and number, of all ordered pairs of votes with the same code, themselves included."""
        _, dense = np.unique(codes, return_inverse=True)
        return float(np.square(np.bincount(dense, weights=y)).sum()), float(np.square(np.bincount(dense)).sum())

    def mean(*terms: tuple[int, tuple[float, float]]) -> float:
        total, pairs = (sum(sign * term[n] for sign, term in terms) for n in (0, 1))
        return total / pairs if pairs > 0 else float("nan")

    everything = float(y.sum() ** 2), float(len(y) ** 2)
    itself = float(np.square(y).sum()), float(len(y))
    user, item, cell = squares(users), squares(items), squares(cells)
    nothing = mean((1, everything), (-1, user), (-1, item), (1, cell))
    same_item, group = mean((1, item), (-1, cell)), 0.0
    same_user = mean((1, user), (-1, cell))
    leaning = same_user - nothing
    if ratings.groups is not None:
        grouped = np.where(ratings.groups >= 0, ratings.groups, ratings.groups.max() + 1 + users)
        by_group = squares(grouped)
        by_both = squares(grouped * (int(items.max()) + 1) + items)
        other_group = mean((1, item), (-1, by_both))
        within = mean((1, by_both), (-1, cell))
        nothing = mean((1, everything), (-1, by_group), (-1, item), (1, by_both))
        group = within - other_group
        leaning = same_user - mean((1, by_group), (-1, by_both), (-1, user), (1, cell))
        same_item = other_group
    return {
        "total": mean((1, itself)) - nothing,
        "shared": same_item - nothing,
        "leaning": leaning,
        "group": group,
        "repeated": mean((1, cell), (-1, itself)) - nothing,
    }


def predictable(ratings: Ratings, seed: int = 0) -> tuple[float, float]:
    """R² of each user's votes, item, group and leaning removed, from their other votes; and its standard error.

    The covariance of items is that of one half of the users for the other half, so nobody predicts themselves.
    """
    users, items = int(ratings.users.max()) + 1, int(ratings.items.max()) + 1
    table = np.full((users, items), np.nan)
    table[ratings.users, ratings.items] = ratings.values
    half = np.random.default_rng(seed).permutation(users) % 2
    missed, spread = np.zeros(users), np.zeros(users)
    for side in (0, 1):
        learn = _residuals(table, half != side, ratings)
        covariance, noise = _item_covariance(learn[half != side])
        for user in np.flatnonzero(half == side):
            seen = np.flatnonzero(~np.isnan(learn[user]))
            if len(seen) < 2:
                continue
            values = learn[user, seen]
            precision = np.linalg.inv(covariance[np.ix_(seen, seen)] + noise * np.eye(len(seen)))
            errors = (precision @ values) / np.diag(precision)  # of each vote, predicted from the others
            missed[user], spread[user] = float(errors @ errors), float(values @ values)
    known = spread > 0
    missed, spread = missed[known], spread[known]
    value = 1 - missed.sum() / spread.sum()
    residuals = missed - (1 - value) * spread
    error = np.sqrt(len(missed) / max(len(missed) - 1, 1) * np.square(residuals).sum()) / spread.sum()
    return float(value), float(error)


def _residuals(table: Floats, fitted: Any, ratings: Ratings) -> Floats:
    """Votes less the mean of their item among the fitted users (of the same group), and less the user's own mean."""
    codes = np.zeros(len(table), dtype=np.int64)
    if ratings.groups is not None:
        codes[ratings.users] = ratings.groups
    residuals = np.full_like(table, np.nan)
    for group in np.unique(codes):
        rows = fitted & (codes == group)
        known = ~np.isnan(table)
        overall = np.where(known[fitted], table[fitted], 0).sum(axis=0) / np.maximum(known[fitted].sum(axis=0), 1)
        sums = np.where(known[rows], table[rows], 0).sum(axis=0) + 2 * overall
        residuals[codes == group] = table[codes == group] - sums / (known[rows].sum(axis=0) + 2)
    counts = np.maximum((~np.isnan(residuals)).sum(axis=1), 1)
    own_mean = np.nansum(residuals, axis=1) / counts
    return np.asarray(residuals - own_mean[:, None])


def _item_covariance(residuals: Floats) -> tuple[Floats, float]:
    """Of at most `FACTORS` directions, shrunk where few users have two items in common; and what is left per vote."""
    known = ~np.isnan(residuals)
    filled = np.where(known, residuals, 0.0)
    together = known.astype(np.float64).T @ known.astype(np.float64)
    covariance = (filled.T @ filled) / (together + PSEUDO_VOTES)
    variance = float(np.square(filled).sum() / max(known.sum(), 1))
    np.fill_diagonal(covariance, 0.0)
    sizes, directions = np.linalg.eigh(covariance)
    kept = np.argsort(-sizes)[:FACTORS]
    kept = kept[sizes[kept] > 0]
    smooth = (directions[:, kept] * sizes[kept]) @ directions[:, kept].T
    noise = max(variance - float(np.diag(smooth).mean()), 0.1 * variance)
    return smooth, noise or 1.0
