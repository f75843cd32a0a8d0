"""Users page: accuracy for every user with an interval, who is served worst, and groups with enough users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prb.reporting.gather import Group, Inputs
from prb.stats.estimate import Floats, Ints, by_label, chance_spread, codes, spread, user_intervals, user_means

MIN_USERS = 10
"""Smaller groups of users are not shown: they say more about single users than about the group."""


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        users = codes(list(group.users))
        labels = _labels(group)
        for condition in group.conditions:
            columns = {entry.name: column.credit for entry, column in group.under(condition)}
            models = {
                str(n): _model(group, columns[entry.name], users, labels)
                for n, entry in enumerate(group.entries)
                if entry.name in columns
            }
            yield (
                f"{group.id}/users-{condition}",
                {
                    "models": models,
                    "min_users": MIN_USERS,
                    "small_groups": {name: small for name, (_, small) in labels.items()},
                },
            )


def _model(
    group: Group, credit: Floats, users: Ints, labels: Mapping[str, tuple[Sequence[str | None], int]]
) -> dict[str, Any]:
    means, rows, present = user_means(credit, users)
    low, high = user_intervals(means, rows)
    order = np.lexsort((present, -rows, means))  # worst first; of equals those with more rows
    groups = {name: by_label(credit, group.clusters, kept) for name, (kept, _) in labels.items()}
    return {
        "user": present[order].tolist(),
        "value": means[order].round(4).tolist(),
        "low": low[order].round(4).tolist(),
        "high": high[order].round(4).tolist(),
        "rows": rows[order].tolist(),
        **spread(means),
        "by_chance": chance_spread(means, rows),
        "groups": {
            name: {label: estimate.as_dict() for label, estimate in sorted(found.items(), key=_rank)}
            for name, found in groups.items()
        },
    }


def _rank(item: tuple[str, Any]) -> tuple[float, str]:
    return (1.0 if item[1].value is None else item[1].value, item[0])


def _labels(group: Group) -> dict[str, tuple[Sequence[str | None], int]]:
    """By attribute: the label of every row, without those of few users, and how many labels that left out."""
    rows = group.dataset.index.groups if group.dataset else []
    found: dict[str, tuple[Sequence[str | None], int]] = {}
    for attribute in sorted({name for row in rows for name in row}):
        users_of: dict[str, set[str]] = {}
        for row, user in zip(rows, group.users, strict=True):
            if attribute in row:
                users_of.setdefault(row[attribute], set()).add(user)
        large = {label for label, users in users_of.items() if len(users) >= MIN_USERS}
        kept = [row.get(attribute) if row.get(attribute) in large else None for row in rows]
        found[attribute] = kept, len(users_of) - len(large)
    return found
