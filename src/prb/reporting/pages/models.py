"""Model page, users page, histories page: where a model is right, for which users, and with which of their posts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import to_builtins

from prb.evaluation.outcomes import Column
from prb.reporting.gather import DataFile, Entry, Group, Inputs
from prb.stats.bias import by_margin, histogram
from prb.stats.estimate import (
    Floats,
    Ints,
    by_label,
    chance_spread,
    codes,
    spread,
    user_intervals,
    user_means,
)
from prb.types import Estimate

BINS = 4
EXAMPLES = 5
"""Pairs shown for each reason of failure."""
MIN_USERS = 10
"""Smaller groups of users are not shown: they say more about single users than about the group."""
COVERAGE = ("all found", "some found", "none found")
"""Of the posts that bear on a question, which ones the retrieval found."""


# --- one model: where it is right, its biases and calibration, failures and cost ---
def model_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        users = codes(list(group.users))
        yield f"{group.id}/people", {"names": list(dict.fromkeys(group.users)), "pairs": np.bincount(users).tolist()}
        for n, entry in enumerate(group.entries):
            conditions = {
                c: _condition(group, entry, c, column, users) for c, column in group.columns_of(entry).items()
            }
            contrasts = to_builtins(list(entry.run.summary.contrasts_of(entry.model).values()))
            model = {"conditions": conditions, "contrasts": contrasts, "other_k": _other_k(group, entry)}
            yield f"{group.id}/model-{n}", model


def _condition(group: Group, entry: Entry, condition: str, column: Column, users: Ints) -> dict[str, Any]:
    result = entry.result(condition)
    assert result is not None
    posts = [len(detail.post_ids) for detail in column.details]
    means, _, present = user_means(column.credit, users)
    accuracy_of = dict(zip(present.tolist(), means.tolist(), strict=True))
    failures: dict[str, list[int]] = {}
    for n, detail in enumerate(column.details):
        if detail.failure is not None:
            failures.setdefault(detail.failure.partition(": ")[0], []).append(n)
    return {
        **{key: value for key, value in result.as_json().items() if key not in ("model", "condition")},
        "by_history": None if group.history is None else _binned(group, column, group.history),
        "by_posts": _binned(group, column, posts) if any(posts) else None,
        "people": [round(accuracy_of[n], 4) if n in accuracy_of else None for n in range(int(users.max()) + 1)],
        "margins": histogram(column.margin),
        "by_margin": by_margin(column.margin, column.credit, group.clusters),
        "cost": {"seconds": column.seconds, "tokens": column.tokens, "money": column.cost, "outcomes": len(column)},
        "reasons": [
            {"reason": reason, "n": len(rows), "pairs": rows[:EXAMPLES], "example": column.details[rows[0]].failure}
            for reason, rows in sorted(failures.items(), key=lambda item: -len(item[1]))
        ],
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
            rows.append({"k": other.run.settings.k, "run": other.run.folder.name, **to_builtins(result.accuracy)})
    return sorted(rows, key=lambda row: row["k"]) if len({row["k"] for row in rows}) > 1 else []


# --- users: accuracy for every one with an interval, who is served worst, groups with enough users ---
def users_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        users = codes(list(group.users))
        labels, small = _user_groups(group)
        for condition in group.conditions:
            models = {}
            for n, column in group.under(condition):
                models[str(n)] = _accuracy_of_users(column.credit, users)
                models[str(n)]["groups"] = {
                    attribute: _worst_first(by_label(column.credit, group.clusters, row_labels))
                    for attribute, row_labels in labels.items()
                }
            page = {"models": models, "min_users": MIN_USERS, "small_groups": small}
            yield f"{group.id}/users-{condition}", page


def _accuracy_of_users(credit: Floats, users: Ints) -> dict[str, Any]:
    means, rows, present = user_means(credit, users)
    low, high = user_intervals(means, rows)
    order = np.lexsort((present, -rows, means))  # worst first; of equals those with more rows
    return {
        "user": present[order].tolist(),
        "value": means[order].round(4).tolist(),
        "low": low[order].round(4).tolist(),
        "high": high[order].round(4).tolist(),
        "rows": rows[order].tolist(),
        **spread(means),
        "by_chance": chance_spread(means, rows),
    }


def _worst_first(estimates: dict[str, Estimate]) -> dict[str, Any]:
    ranked = sorted((1.0 if e.value is None else e.value, label) for label, e in estimates.items())
    return {label: estimates[label].as_dict() for _, label in ranked}


def _user_groups(group: Group) -> tuple[dict[str, list[str | None]], dict[str, int]]:
    """By attribute: the label of every row, without labels of few users, and how many labels that left out."""
    rows = group.dataset.index.groups if group.dataset else []
    labels: dict[str, list[str | None]] = {}
    small: dict[str, int] = {}
    for attribute in sorted({name for row in rows for name in row}):
        users_of: dict[str, set[str]] = {}
        for row, user in zip(rows, group.users, strict=True):
            if attribute in row:
                users_of.setdefault(row[attribute], set()).add(user)
        large = {label for label, users in users_of.items() if len(users) >= MIN_USERS}
        labels[attribute] = [row.get(attribute) if row.get(attribute) in large else None for row in rows]
        small[attribute] = len(users_of) - len(large)
    return labels, small


# --- histories: which posts the retrieval picked ---
def histories_data(inputs: Inputs) -> Iterator[DataFile]:
    """What each retrieval picked under `profile`; models that were shown the same posts share a view.

    Rows with `bearing_posts`, the ids of the posts from which the preference follows, also give its recall, and
    accuracy by what was found.
    """
    for group in inputs.groups:
        bearing = _bearing_posts(group)
        views: dict[tuple[tuple[str, ...], ...], dict[str, Any]] = {}
        for n, column in group.under("profile"):
            picked = tuple(detail.post_ids for detail in column.details)
            if not any(picked):
                continue
            if picked not in views:
                views[picked] = _view(group.entries[n], picked, bearing)
            views[picked]["models"].append(n)
            if bearing:
                labels = [
                    None if not posts else COVERAGE[0] if found == len(posts) else COVERAGE[1] if found else COVERAGE[2]
                    for found, posts in zip(views[picked]["found"], bearing, strict=True)
                ]
                estimates = by_label(column.credit, group.clusters, labels)
                accuracy = {label: estimates[label].as_dict() for label in COVERAGE if label in estimates}
                views[picked]["accuracy"].append(accuracy)
        ids = [sorted(posts) for posts in bearing] if bearing else None
        yield f"{group.id}/histories", {"bearing": ids, "views": list(views.values())}


def _bearing_posts(group: Group) -> list[frozenset[str]] | None:
    """Of each pair the ids of the posts that bear on it; `None` if the dataset does not say, for any pair."""
    if group.dataset is None:
        return None
    listed = [value if isinstance(value, list) else [] for value in group.dataset.other("bearing_posts")]
    return [frozenset(map(str, ids)) for ids in listed] if any(listed) else None


def _view(entry: Entry, picked: Sequence[Sequence[str]], bearing: Sequence[frozenset[str]] | None) -> dict[str, Any]:
    settings = entry.run.settings
    view = {"models": [], "ranker": settings.shown.ranker, "k": settings.k, "picked": [len(ids) for ids in picked]}
    if bearing is None:
        return view
    found = [len(posts & set(ids)) for posts, ids in zip(bearing, picked, strict=True)]
    shares = [n / len(posts) for n, posts in zip(found, bearing, strict=True) if posts]
    return view | {"found": found, "recall": sum(shares) / len(shares), "accuracy": []}
