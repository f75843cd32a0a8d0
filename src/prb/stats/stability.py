"""Does a ranking of models survive other users? Clusters are left out, or split in halves.

A model's accuracy is Σ sums / Σ sizes over the clusters that are kept, so per-cluster sums of credit are all it takes.
The worst case asks for the fewest clusters whose removal reverses a comparison (Broderick, Giordano & Meager 2020,
arXiv 2011.14999); for a difference of sums it is exact, not an approximation: the most favorable clusters go first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prb.stats.estimate import Bools, Floats, Ints
from prb.stats.ranking import spearman

DRAWS = 200


def cluster_sums(credit: Floats, clusters: Ints, groups: int) -> tuple[Floats, Floats]:
    """Of each cluster 0 … groups − 1 the sum of credit and the number of answered rows."""
    answered = ~np.isnan(credit)
    sums = np.bincount(clusters[answered], weights=credit[answered], minlength=groups)
    return sums.astype(np.float64), np.bincount(clusters[answered], minlength=groups).astype(np.float64)


def random_orders(groups: int, draws: int = DRAWS, seed: int = 0) -> Ints:
    """(draws, groups): in each draw the place of every cluster in a random order."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(groups) for _ in range(draws)]) if draws else np.zeros((0, groups), np.int64)


def accuracies(keep: Bools, sums: Floats, sizes: Floats) -> Floats:
    """(draws, models) from (draws, groups) and (models, groups); NaN where a model answered none of the rows."""
    kept = keep.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((kept @ sums.T) / (kept @ sizes.T))


def first_shares(values: Floats) -> Floats:
    """Of (draws, models): how often each model is first; models that tie share the draw."""
    best = values == np.nanmax(values, axis=1, keepdims=True)
    return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0))


def without_random(orders: Ints, k: int, sums: Floats, sizes: Floats) -> dict[str, Any]:
    """Without the first k clusters of every order: mean and central 95 % of accuracies, how often a model is first."""
    values = accuracies(orders >= k, sums, sizes)
    low, high = np.quantile(values, (0.025, 0.975), axis=0)
    columns = {"value": values.mean(axis=0), "low": low, "high": high, "first": first_shares(values)}
    return {name: column.round(5).tolist() for name, column in columns.items()}


def cluster_leads(a: Floats, b: Floats, clusters: Ints, groups: int) -> Floats:
    """By how many rows model a is ahead of b in each cluster, over the rows that both answered."""
    return cluster_sums(a - b, clusters, groups)[0]


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
