"""Histories page: of the posts that bear on a question, which ones did the retrieval pick, and does it matter?

Needs rows with `bearing_posts`, ids of the posts from which the preference follows. Without them the page still shows
what was picked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prb.reporting.gather import Entry, Group, Inputs
from prb.stats.estimate import by_label

FIELD = "bearing_posts"
CONDITION = "profile"
PARTS = ("all found", "some found", "none found")


def bearing_posts(group: Group) -> list[frozenset[str]] | None:
    """Of each pair the ids of the posts that bear on it; `None` if the dataset does not say, for any pair."""
    if group.dataset is None:
        return None
    listed = [value if isinstance(value, list) else [] for value in group.dataset.other(FIELD)]
    return [frozenset(map(str, ids)) for ids in listed] if any(listed) else None


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        bearing = bearing_posts(group)
        views: dict[tuple[tuple[str, ...], ...], dict[str, Any]] = {}
        for n, entry in enumerate(group.entries):
            column = group.columns.get((entry.name, CONDITION))
            if column is None or not any(detail.post_ids for detail in column.details):
                continue
            picked = tuple(detail.post_ids for detail in column.details)
            view = views.setdefault(picked, _view(entry, picked, bearing))
            view["models"].append(n)
            if bearing:
                labels = [_part(found, len(posts)) for found, posts in zip(view["found"], bearing, strict=True)]
                estimates = by_label(column.credit, group.clusters, labels)
                view["accuracy"].append({part: estimates[part].as_dict() for part in PARTS if part in estimates})
        ids = [sorted(posts) for posts in bearing] if bearing else None
        yield f"{group.id}/histories", {"bearing": ids, "views": list(views.values())}


def _view(entry: Entry, picked: Sequence[Sequence[str]], bearing: Sequence[frozenset[str]] | None) -> dict[str, Any]:
    """What one retrieval picked; models of a run share it."""
    settings = entry.run.settings
    view: dict[str, Any] = {"models": [], "ranker": settings["ranker"], "k": settings["k"]}
    view["picked"] = [len(ids) for ids in picked]
    if bearing is None:
        return view
    found = [len(posts & set(ids)) for posts, ids in zip(bearing, picked, strict=True)]
    shares = [n / len(posts) for n, posts in zip(found, bearing, strict=True) if posts]
    return view | {"found": found, "recall": sum(shares) / len(shares), "accuracy": []}


def _part(found: int, bearing: int) -> str | None:
    return None if not bearing else PARTS[0] if found == bearing else PARTS[1] if found else PARTS[2]
