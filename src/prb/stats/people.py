"""Not only the average: how accuracy is spread over people, groups and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prb.stats.estimate import Floats, Ints, share
from prb.types import Estimate


def by_label(credit: Floats, clusters: Ints, labels: Sequence[str | None]) -> dict[str, Estimate]:
    """Accuracy of the rows under each label; failures are counted with their label."""
    names = np.array([label or "" for label in labels], dtype=object)
    return {name: _share_of(credit[names == name], clusters[names == name]) for name in sorted(set(names)) if name}


def _share_of(credit: Floats, clusters: Ints) -> Estimate:
    answered = ~np.isnan(credit)
    return share(credit[answered], clusters[answered], failed=int((~answered).sum()))


def by_group(credit: Floats, clusters: Ints, groups: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """For each attribute (age, region, …) the accuracy of its groups and the gap from best to worst."""
    attributes = sorted({key for row in groups for key in row})
    return {key: _with_gap(by_label(credit, clusters, [row.get(key) for row in groups])) for key in attributes}


def _with_gap(estimates: dict[str, Estimate]) -> dict[str, Any]:
    values = {name: e.value for name, e in estimates.items() if e.value is not None}
    worst = min(values, key=lambda name: values[name]) if values else None
    gap = max(values.values()) - min(values.values()) if values else None
    return {"groups": {name: e.as_dict() for name, e in estimates.items()}, "worst": worst, "gap": gap}


def user_means(credit: Floats, users: Ints) -> tuple[Floats, Ints, Ints]:
    """Mean credit of each user with an answered row, their answered rows, and their codes."""
    answered = ~np.isnan(credit)
    present, dense = np.unique(users[answered], return_inverse=True)
    n = np.bincount(dense)
    return np.bincount(dense, weights=credit[answered]) / np.maximum(n, 1), n, present


def spread(means: Floats) -> dict[str, Any]:
    """Over users: mean, standard deviation, and the mean of the tenth that is served worst."""
    if not len(means):
        return {"n": 0, "mean": None, "spread": None, "worst_decile": None}
    worst = np.sort(means)[: max(1, len(means) // 10)]
    return {
        "n": len(means),
        "mean": float(means.mean()),
        "spread": float(means.std(ddof=1)) if len(means) > 1 else None,
        "worst_decile": float(worst.mean()),
    }
