"""Cost page: what a pair costs each model in money, tokens and seconds; accuracy and control are the leaderboard's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prb.evaluation.outcomes import Column
from prb.reporting.gather import Inputs


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        cells = [
            {c: per_pair(column) for c in group.conditions if (column := group.columns.get((entry.name, c)))}
            for entry in group.entries
        ]
        yield f"{group.id}/cost", cells


def per_pair(column: Column) -> dict[str, float]:
    """Only what was measured: a model without tokens or a price is not one that costs nothing."""
    sums = {"money": column.cost, "tokens": float(column.tokens), "seconds": column.seconds}
    return {name: total / len(column) for name, total in sums.items() if total > 0}
