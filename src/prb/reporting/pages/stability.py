"""Stability page: the ranking without some clusters, and between halves of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from prb.reporting.gather import Group, Inputs
from prb.stats.estimate import Floats, Ints
from prb.stats.ranking import (
    STABILITY_DRAWS,
    accuracies,
    cluster_leads,
    cluster_sums,
    clusters_to_overtake,
    random_orders,
    split_half,
    without_random,
)

STEPS = 20
"""Positions of the slider, from no cluster to half of them."""


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        groups = int(group.clusters.max()) + 1
        steps = sorted({round(n * (groups // 2) / STEPS) for n in range(STEPS + 1)})
        orders = random_orders(groups, STABILITY_DRAWS, group.entries[0].run.settings["seed"])
        conditions = {c: _condition(group, c, groups, steps, orders) for c in group.conditions}
        yield (
            f"{group.id}/stability",
            {"clusters": groups, "draws": STABILITY_DRAWS, "steps": steps, "conditions": conditions},
        )


def _condition(group: Group, condition: str, groups: int, steps: list[int], orders: Ints) -> dict[str, Any] | None:
    """`None` unless two models answered something. Numbers of models are those of the group."""
    numbers = {entry.name: n for n, entry in enumerate(group.entries)}
    columns = [(numbers[entry.name], column.credit) for entry, column in group.under(condition)]
    columns = [(n, credit) for n, credit in columns if not np.isnan(credit).all()]
    if len(columns) < 2:
        return None
    sums, sizes = map(np.stack, zip(*(cluster_sums(credit, group.clusters, groups) for _, credit in columns)))  # noqa: B905
    ranked = np.argsort(-accuracies(np.ones((1, groups), bool), sums, sizes)[0], kind="stable").tolist()
    leader, second = ranked[:2]
    leads = [cluster_leads(columns[leader][1], credit, group.clusters, groups) for _, credit in columns]
    return {
        "models": [n for n, _ in columns],
        "ranked": ranked,
        "random": [without_random(orders, k, sums, sizes) for k in steps],
        "favorable": [_without_best(leads[second], k, sums, sizes) for k in steps],
        "overtaken": [None if n == leader else clusters_to_overtake(lead) for n, lead in enumerate(leads)],
        "split_half": split_half(orders, sums, sizes),
    }


def _without_best(leads: Floats, k: int, sums: Floats, sizes: Floats) -> list[float]:
    """Accuracies without the k clusters in which the leader is furthest ahead of the runner-up."""
    keep = np.ones((1, len(leads)), bool)
    keep[0, np.argsort(-leads, kind="stable")[:k]] = False
    return [round(value, 5) for value in accuracies(keep, sums, sizes)[0].tolist()]
