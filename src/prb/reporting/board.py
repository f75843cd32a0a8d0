"""Data of the leaderboard and of the compare page: estimates of every slice of the rows, and all paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from prb.evaluation.summary import CONTRASTS
from prb.reporting.gather import BLIND, FLOORS, Entry, Given, Group, columns
from prb.reporting.letters import letters
from prb.stats.estimate import Floats, share, totals
from prb.stats.mirror import Twins, mirror_accuracy, person_effect
from prb.stats.paired import bootstrap_interval, difference, flip_rate, holm

LEVEL = 0.05
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


def build(given: Given) -> Iterator[tuple[str, Any]]:
    for group in given.groups:
        tests = {condition: duels(group, condition) for condition in group.conditions}
        yield f"{group.id}/board", board(group, tests)
        yield f"{group.id}/tests", tests


def describe(group: Group) -> dict[str, Any]:
    """What every page knows of a dataset and its models."""
    return {
        "id": group.id,
        "label": group.label,
        "about": group.about,
        "conditions": group.conditions,
        "shown": group.shown,
        "models": [_model(group, entry) for entry in group.entries],
        "categories": _labels(group, "by_category"),
        "tiers": _labels(group, "by_tier"),
        "missing": group.missing,
    }


def _model(group: Group, entry: Entry) -> dict[str, Any]:
    settings = entry.run.settings
    return {
        "name": entry.name,
        "spec": entry.spec,
        "run": entry.run.folder.name,
        "floor": entry.spec in FLOORS,
        "blind": entry.kind in BLIND,
        "conditions": [c for c in group.conditions if (entry.name, c) in group.lines],
        **{key: settings[key] for key in ("k", "ranker", "budget", "protocol")},
    }


def _labels(group: Group, field: str) -> list[str]:
    return sorted(
        {label for e in group.entries for c in group.conditions for label in (e.result(c) or {}).get(field, {})}
    )


def board(group: Group, tests: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    return {
        "slices": {"all": _everything(group), **dict(_slices(group))},
        "letters": {condition: _letters(group, condition, tests[condition]) for condition in group.conditions},
    }


def _everything(group: Group) -> list[dict[str, Any]]:
    """All rows: as the runs' summaries have it, with Holm's correction over all models that stand together here."""
    rows = [_as_summarised(group, entry) for entry in group.entries]
    tested = [row[kind] for row in rows for kind in CONTRASTS if row[kind] and row[kind]["p"] is not None]
    for contrast, p in zip(tested, holm([contrast["p"] for contrast in tested]), strict=True):
        contrast["p_holm"] = p
    return rows


def _as_summarised(group: Group, entry: Entry) -> dict[str, Any]:
    results = {c: found for c in group.conditions if (found := entry.result(c))}
    contrasts = {row["kind"]: dict(row) for row in entry.run.summary["contrasts"] if row["model"] == entry.spec}
    return {
        "accuracy": {c: row["accuracy"] for c, row in results.items()},
        "effect": {c: row["person_effect"] for c, row in results.items() if row["person_effect"]},
        "mirror": {c: row["mirror_accuracy"] for c, row in results.items() if row["mirror_accuracy"]},
        **{kind: contrasts.get(kind) for kind in CONTRASTS},
    }


def _slices(group: Group) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for field, name in (("by_category", "category"), ("by_tier", "tier")):
        for label in _labels(group, field):
            mask = _mask(group, name, label)
            yield f"{name}:{label}", [_slice(group, entry, field, label, mask) for entry in group.entries]


def _mask(group: Group, name: str, label: str) -> Mask | None:
    if group.dataset is None:
        return None
    index = group.dataset.index
    return np.array([own == label for own in (index.categories if name == "category" else index.tiers)])


def _slice(group: Group, entry: Entry, field: str, label: str, mask: Mask | None) -> dict[str, Any]:
    """Accuracy stands in the summary; the rest needs to know which rows these are."""
    results = {c: found for c in group.conditions if (found := entry.result(c))}
    accuracy = {c: row[field][label] for c, row in results.items() if label in row[field]}
    if mask is None:
        return {"accuracy": accuracy, "effect": {}, "mirror": {}, "gain": None, "control": None}
    effect, mirror = _twins(group, entry, mask)
    return {
        "accuracy": accuracy,
        "effect": effect,
        "mirror": mirror,
        **{kind: _contrast(group, entry, conditions, mask) for kind, conditions in CONTRASTS.items()},
    }


def _twins(group: Group, entry: Entry, mask: Mask) -> tuple[dict[str, Any], dict[str, Any]]:
    assert group.dataset is not None
    twins = np.array(group.dataset.index.twins, dtype=np.int64)
    effect, mirror = {}, {}
    if (twins >= 0).any():
        for condition in group.conditions:
            lines = group.lines.get((entry.name, condition))
            halves = lines and Twins.find(twins, group.clusters, ~np.isnan(lines.credits) & mask)
            if lines and halves:
                found, p = person_effect(lines.margins, halves, seed=entry.run.settings["seed"])
                effect[condition] = {**found.as_dict(), "p": p}
                mirror[condition] = mirror_accuracy(lines.credits, halves).as_dict()
    return effect, mirror


def _contrast(group: Group, entry: Entry, conditions: tuple[str, str], mask: Mask) -> dict[str, Any] | None:
    """Value and interval; tests are made on all rows, so that looking at many slices finds nothing by chance."""
    a, b = (group.lines.get((entry.name, condition)) for condition in conditions)
    if a is None or b is None:
        return None
    delta = (a.credits - b.credits)[mask]
    both = ~np.isnan(delta)
    if not both.any():
        return None
    sums = totals(delta[both], group.clusters[mask][both])
    low, high = bootstrap_interval(sums, seed=entry.run.settings["seed"])
    return {"value": float(delta[both].mean()), "low": low, "high": high, "p": None, "p_holm": None}


def duels(group: Group, condition: str) -> list[dict[str, Any]]:
    """Every two models under a condition, paired, with Holm's correction over all couples."""
    numbers = {entry.name: n for n, entry in enumerate(group.entries)}
    asked = [(numbers[entry.name], lines.credits) for entry, lines in columns(group, condition)]
    seed = group.entries[0].run.settings["seed"]
    found = [{"a": i, "b": j, **_duel(group, x, y, seed)} for (i, x), (j, y) in combinations(asked, 2)]
    tested = [row for row in found if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return found


def _duel(group: Group, x: Floats, y: Floats, seed: int) -> dict[str, Any]:
    both = ~(np.isnan(x) | np.isnan(y))
    return {
        **difference(x, y, group.clusters, seed=seed).as_dict(),
        "p_holm": None,
        "accuracy_a": share(x[both], group.clusters[both]).value,
        "accuracy_b": share(y[both], group.clusters[both]).value,
        "changed_sides": flip_rate(x, y),
        "table": _crosstab(x[both], y[both]),
    }


def _crosstab(x: Floats, y: Floats) -> list[list[int]]:
    """Rows: the first model won, tied, lost; columns: the second."""
    kinds = (1, 0, -1)
    left, right = np.sign(x - 0.5), np.sign(y - 0.5)
    return [[int(((left == a) & (right == b)).sum()) for b in kinds] for a in kinds]


def _letters(group: Group, condition: str, tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """By model; empty for one that answered nothing under this condition."""
    values = {n: (e.result(condition) or {}).get("accuracy", {}).get("value") for n, e in enumerate(group.entries)}
    ranked = sorted((n for n, v in values.items() if v is not None), key=lambda n: -values[n])
    place = {n: k for k, n in enumerate(ranked)}
    apart = [(place[t["a"]], place[t["b"]]) for t in tests if t["p_holm"] is not None and t["p_holm"] < LEVEL]
    given = letters(len(ranked), apart)
    return [given[place[n]] if n in place else "" for n in values]
