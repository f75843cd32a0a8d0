"""Data of the model page: where it is good, for whom, what it prefers, how sure it is, what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from prb.reporting.gather import Entry, Given, Group, Lines
from prb.stats.estimate import Ints, by_label, codes, user_means

BINS = 4


def build(given: Given) -> Iterator[tuple[str, Any]]:
    for group in given.groups:
        users = codes(list(group.users))
        yield f"{group.id}/people", {"names": list(dict.fromkeys(group.users)), "pairs": np.bincount(users).tolist()}
        for n, entry in enumerate(group.entries):
            yield f"{group.id}/model-{n}", model(group, entry, users)


def model(group: Group, entry: Entry, users: Ints) -> dict[str, Any]:
    asked = [c for c in group.conditions if (entry.name, c) in group.lines]
    return {
        "conditions": {c: _condition(group, entry, c, users) for c in asked},
        "contrasts": [row for row in entry.run.summary["contrasts"] if row["model"] == entry.spec],
        "other_k": _other_k(group, entry),
    }


def _condition(group: Group, entry: Entry, condition: str, users: Ints) -> dict[str, Any]:
    lines, result = group.lines[entry.name, condition], entry.result(condition)
    assert result is not None
    posts = [len(said.posts) for said in lines.said]
    return {
        **{key: value for key, value in result.items() if key not in ("model", "condition")},
        "by_history": _binned(group, lines, group.history),
        "by_posts": _binned(group, lines, posts) if any(posts) else None,
        "people": _people(lines, users),
        "cost": {"seconds": lines.seconds, "tokens": lines.tokens, "money": lines.cost, "outcomes": len(lines.pairs)},
        "reasons": _reasons(lines),
    }


def _people(lines: Lines, users: Ints) -> list[float | None]:
    means, _, present = user_means(lines.credits, users)
    known = dict(zip(present.tolist(), means.tolist(), strict=True))
    return [round(known[code], 4) if code in known else None for code in range(int(users.max()) + 1)]


def _binned(group: Group, lines: Lines, values: Sequence[int] | None) -> list[dict[str, Any]] | None:
    """Accuracy by a number of each row, in about equally full bins; few distinct numbers are their own bins."""
    if values is None:
        return None
    labels, order = bins(values)
    found = by_label(lines.credits, group.clusters, labels)
    return [{"label": label, **found[label].as_dict()} for label in order]


def bins(values: Sequence[int], most: int = BINS) -> tuple[list[str], list[str]]:
    """The label of each value, and all labels from low to high."""
    numbers = np.array(values)
    distinct = np.unique(numbers)
    if len(distinct) <= most:
        starts = distinct
    else:
        starts = np.unique(np.quantile(numbers, np.arange(most) / most, method="higher"))
    place = np.searchsorted(starts, numbers, side="right") - 1
    spans = [(int(numbers[place == n].min()), int(numbers[place == n].max())) for n in range(len(starts))]
    names = [str(low) if low == high else f"{low}–{high}" for low, high in spans]
    return [names[n] for n in place], names


def _other_k(group: Group, entry: Entry) -> list[dict[str, Any]]:
    """The same model shown other numbers of posts, if runs of that were given too."""
    same = [e for e in group.entries if e.spec == entry.spec and (e.name, "profile") in group.lines]
    found = [{"k": e.run.settings["k"], "run": e.run.folder.name, **_profile_accuracy(e)} for e in same]
    return sorted(found, key=lambda row: row["k"]) if len({row["k"] for row in found}) > 1 else []


def _profile_accuracy(entry: Entry) -> dict[str, Any]:
    result = entry.result("profile")
    assert result is not None
    return dict(result["accuracy"])


def _reasons(lines: Lines, most: int = 5) -> list[dict[str, Any]]:
    """Failures by reason, most frequent first, each with the first pairs it befell."""
    found: dict[str, list[int]] = {}
    for n, said in enumerate(lines.said):
        if said.failure is not None:
            found.setdefault(said.failure.partition(": ")[0], []).append(n)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {"reason": reason, "n": len(at), "pairs": at[:most], "example": lines.said[at[0]].failure}
        for reason, at in ranked
    ]
