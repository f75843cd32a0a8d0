"""Model page: where a model is right, for which users, its biases and calibration, failures and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from prb.evaluation.outcomes import Column
from prb.reporting.gather import Entry, Group, Inputs
from prb.stats.bias import by_margin, histogram
from prb.stats.estimate import Ints, by_label, codes, user_means

BINS = 4
EXAMPLES = 5
"""Pairs shown for each reason of failure."""


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        users = codes(list(group.users))
        yield f"{group.id}/people", {"names": list(dict.fromkeys(group.users)), "pairs": np.bincount(users).tolist()}
        for n, entry in enumerate(group.entries):
            conditions = [c for c in group.conditions if (entry.name, c) in group.columns]
            yield (
                f"{group.id}/model-{n}",
                {
                    "conditions": {c: _condition(group, entry, c, users) for c in conditions},
                    "contrasts": [row for row in entry.run.summary["contrasts"] if row["model"] == entry.model],
                    "other_k": _other_k(group, entry),
                },
            )


def _condition(group: Group, entry: Entry, condition: str, users: Ints) -> dict[str, Any]:
    column, result = group.columns[entry.name, condition], entry.result(condition)
    assert result is not None
    posts = [len(detail.post_ids) for detail in column.details]
    means, _, present = user_means(column.credit, users)
    accuracy_of = dict(zip(present.tolist(), means.tolist(), strict=True))
    return {
        **{key: value for key, value in result.items() if key not in ("model", "condition")},
        "by_history": None if group.history is None else _binned(group, column, group.history),
        "by_posts": _binned(group, column, posts) if any(posts) else None,
        "people": [round(accuracy_of[n], 4) if n in accuracy_of else None for n in range(int(users.max()) + 1)],
        "margins": histogram(column.margin),
        "by_margin": by_margin(column.margin, column.credit, group.clusters),
        "cost": {"seconds": column.seconds, "tokens": column.tokens, "money": column.cost, "outcomes": len(column)},
        "reasons": _reasons(column),
    }


def _binned(group: Group, column: Column, values: Sequence[int]) -> list[dict[str, Any]]:
    """Accuracy by a number of each row."""
    labels, order = bins(values)
    estimates = by_label(column.credit, group.clusters, labels)
    return [{"label": label, **estimates[label].as_dict()} for label in order]


def bins(values: Sequence[int], most: int = BINS) -> tuple[list[str], list[str]]:
    """About equally full bins, or one per number if there are few: the label of each value, and all labels in order."""
    numbers = np.array(values)
    distinct = np.unique(numbers)
    quantiles = np.quantile(numbers, np.arange(most) / most, method="higher")
    starts = distinct if len(distinct) <= most else np.unique(quantiles)
    place = np.searchsorted(starts, numbers, side="right") - 1
    spans = [(int(numbers[place == n].min()), int(numbers[place == n].max())) for n in range(len(starts))]
    names = [str(low) if low == high else f"{low}–{high}" for low, high in spans]
    return [names[n] for n in place], names


def _other_k(group: Group, entry: Entry) -> list[dict[str, Any]]:
    """The same model shown other numbers of posts, if runs with several `k` were given."""
    rows = []
    for other in group.entries:
        result = other.result("profile")
        if other.spec == entry.spec and result is not None:
            rows.append({"k": other.run.settings["k"], "run": other.run.folder.name, **result["accuracy"]})
    return sorted(rows, key=lambda row: row["k"]) if len({row["k"] for row in rows}) > 1 else []


def _reasons(column: Column) -> list[dict[str, Any]]:
    """Failures by reason, most frequent first, with examples."""
    rows_of: dict[str, list[int]] = {}
    for n, detail in enumerate(column.details):
        if detail.failure is not None:
            rows_of.setdefault(detail.failure.partition(": ")[0], []).append(n)
    return [
        {"reason": reason, "n": len(rows), "pairs": rows[:EXAMPLES], "example": column.details[rows[0]].failure}
        for reason, rows in sorted(rows_of.items(), key=lambda item: -len(item[1]))
    ]
