"""Leaderboard and compare page: estimates for every slice of the rows, all paired tests, significance letters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from string import ascii_lowercase
from typing import Any

import numpy as np

from prb.evaluation.summary import CONTRASTS
from prb.models import RECORDED
from prb.reporting.gather import BLIND, FLOORS, Entry, Group, Inputs
from prb.reporting.published import about, card_of
from prb.stats.bias import length_controlled
from prb.stats.estimate import Floats, cancels, share
from prb.stats.paired import Twins, correct, difference, flip_rate, mirror_accuracy, person_effect

LEVEL = 0.05
NOT_TESTED: Mapping[str, Any] = {"effect": {}, "mirror": {}, "gain": None, "control": None}
"""Of a slice of which only the accuracy is known."""
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        tests = {condition: paired_tests(group, condition) for condition in group.conditions}
        letters = {condition: _letters(group, condition, tests[condition]) for condition in group.conditions}
        slices = {"all": _all_rows(group), **dict(_equal_length(group)), **dict(_slices(group))}
        board = {"slices": slices, "letters": letters}
        published = about(inputs.published, group.about["name"])
        yield f"{group.id}/board", board | ({"published": published} if published else {})
        yield f"{group.id}/tests", tests


def describe(group: Group) -> dict[str, Any]:
    """What every page knows of a dataset and its models."""
    models = [
        {
            "name": entry.name,
            "spec": entry.spec,
            "run": entry.run.folder.name,
            "floor": entry.spec in FLOORS,
            "blind": entry.kind in BLIND,
            **({"recorded": True} if entry.kind in RECORDED else {}),
            **({"card": card} if (card := card_of(entry.metadata)) else {}),
            "conditions": [c for c in group.conditions if (entry.name, c) in group.columns],
            **{key: entry.run.settings[key] for key in ("k", "ranker", "budget", "protocol")},
        }
        for entry in group.entries
    ]
    return {
        "id": group.id,
        "label": group.label,
        "about": group.about,
        "conditions": group.conditions,
        "shown": group.shown,
        "models": models,
        "categories": _labels(group, "by_category"),
        "tiers": _labels(group, "by_tier"),
        "missing": group.missing,
    }


def _labels(group: Group, field: str) -> list[str]:
    return sorted(
        {label for e in group.entries for c in group.conditions for label in (e.result(c) or {}).get(field, {})}
    )


# --- numbers ---
def _all_rows(group: Group) -> list[dict[str, Any]]:
    """The numbers of the runs' summaries, with Holm's correction over all models of the group."""
    rows: list[dict[str, Any]] = []
    for entry in group.entries:
        results = {c: result for c in group.conditions if (result := entry.result(c))}
        contrasts = {row["kind"]: dict(row) for row in entry.run.summary["contrasts"] if row["model"] == entry.model}
        rows.append(
            {
                "accuracy": {c: row["accuracy"] for c, row in results.items()},
                "effect": {c: row["person_effect"] for c, row in results.items() if row["person_effect"]},
                "mirror": {c: row["mirror_accuracy"] for c, row in results.items() if row["mirror_accuracy"]},
                **{kind: contrasts.get(kind) for kind in CONTRASTS},
            }
        )
    correct([contrast for row in rows for kind in CONTRASTS if (contrast := row[kind])])
    return rows


def _slices(group: Group) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    index = group.dataset.index if group.dataset else None
    for field, name in (("by_category", "category"), ("by_tier", "tier")):
        for label in _labels(group, field):
            labels = (index.categories if name == "category" else index.tiers) if index else None
            mask = np.array([other == label for other in labels]) if labels is not None else None
            yield f"{name}:{label}", [_slice(group, entry, field, label, mask) for entry in group.entries]


def _equal_length(group: Group) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Length-controlled accuracy, shown like a slice: an estimate of what rows of equal length would give."""
    if group.dataset is None:
        return
    twins = np.array(group.dataset.index.twins, dtype=np.int64)
    lengths = [np.array(side, dtype=np.float64) for side in group.dataset.index.lengths]
    yield (
        "length:equal length",
        [
            {
                "accuracy": {
                    c: length_controlled(
                        column.credit, group.clusters, *lengths, exact=cancels(column.margin, twins)
                    ).as_dict()
                    for c in group.conditions
                    if (column := group.columns.get((entry.name, c)))
                },
                **NOT_TESTED,
            }
            for entry in group.entries
        ],
    )


def _slice(group: Group, entry: Entry, field: str, label: str, mask: Mask | None) -> dict[str, Any]:
    """Accuracy is in the summary; the rest needs the dataset, which says which rows these are."""
    results = {c: result for c in group.conditions if (result := entry.result(c))}
    accuracy = {c: row[field][label] for c, row in results.items() if label in row[field]}
    if mask is None:
        return {"accuracy": accuracy, **NOT_TESTED}
    effect, mirror = _twins(group, entry, mask)
    contrasts = {kind: _contrast(group, entry, conditions, mask) for kind, conditions in CONTRASTS.items()}
    return {"accuracy": accuracy, "effect": effect, "mirror": mirror, **contrasts}


def _twins(group: Group, entry: Entry, mask: Mask) -> tuple[dict[str, Any], dict[str, Any]]:
    """Person effect and mirror accuracy by condition."""
    assert group.dataset is not None
    twins = np.array(group.dataset.index.twins, dtype=np.int64)
    effects, mirrors = {}, {}
    for condition in group.conditions if (twins >= 0).any() else ():
        column = group.columns.get((entry.name, condition))
        halves = column and Twins.find(twins, group.clusters, ~np.isnan(column.credit) & mask)
        if column and halves:
            effect, p = person_effect(column.margin, halves, seed=entry.run.settings["seed"])
            effects[condition] = {**effect.as_dict(), "p": p}
            mirrors[condition] = mirror_accuracy(column.credit, halves).as_dict()
    return effects, mirrors


def _contrast(group: Group, entry: Entry, conditions: tuple[str, str], mask: Mask) -> dict[str, Any] | None:
    """Value and interval without a test: testing every slice would find something by chance."""
    a, b = (group.columns.get((entry.name, condition)) for condition in conditions)
    if a is None or b is None:
        return None
    assert group.dataset is not None
    twins = np.array(group.dataset.index.twins, dtype=np.int64)
    exact = all(cancels(column.margin, twins, mask) for column in (a, b))
    seed = entry.run.settings["seed"]
    contrast = difference(a.credit[mask], b.credit[mask], group.clusters[mask], exact=exact, seed=seed)
    if contrast.value is None:
        return None
    return {"value": contrast.value, "low": contrast.low, "high": contrast.high, "p": None, "p_holm": None}


# --- tests ---
def paired_tests(group: Group, condition: str) -> list[dict[str, Any]]:
    """Every two models under a condition, paired by row, with Holm's correction over all of them."""
    numbers = {entry.name: n for n, entry in enumerate(group.entries)}
    credits = [(numbers[entry.name], column.credit) for entry, column in group.under(condition)]
    seed = group.entries[0].run.settings["seed"]
    tests = []
    for (i, x), (j, y) in combinations(credits, 2):
        both = ~(np.isnan(x) | np.isnan(y))
        tests.append(
            {
                "a": i,
                "b": j,
                **difference(x, y, group.clusters, seed=seed).as_dict(),
                "p_holm": None,
                "accuracy_a": share(x[both], group.clusters[both]).value,
                "accuracy_b": share(y[both], group.clusters[both]).value,
                "changed_sides": flip_rate(x, y),
                "table": _crosstab(x[both], y[both]),
            }
        )
    correct(tests)
    return tests


def _crosstab(x: Floats, y: Floats) -> list[list[int]]:
    """Rows: the first model is right, ties, is wrong; columns: the second."""
    signs = (1, 0, -1)
    left, right = np.sign(x - 0.5), np.sign(y - 0.5)
    return [[int(((left == a) & (right == b)).sum()) for b in signs] for a in signs]


# --- letters ---
def _letters(group: Group, condition: str, tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """By model; empty for one without an answer under this condition."""
    values = {n: (e.result(condition) or {}).get("accuracy", {}).get("value") for n, e in enumerate(group.entries)}
    ranked = sorted((n for n, v in values.items() if v is not None), key=lambda n: -values[n])
    place = {n: k for k, n in enumerate(ranked)}
    differing = [(place[t["a"]], place[t["b"]]) for t in tests if t["p_holm"] is not None and t["p_holm"] < LEVEL]
    letters = significance_letters(len(ranked), differing)
    return [letters[place[n]] if n in place else "" for n in values]


def significance_letters(models: int, differing: Collection[tuple[int, int]]) -> list[str]:
    """Compact letter display of models 0, 1, …, best first: two share a letter unless they differ significantly.

    Each letter is a clique of models of which no two differ, and the cliques cover every such pair of models (Piepho
    2004, doi:10.1198/1061860043515). They are grown greedily from the best model down.
    """
    differ = {frozenset(two) for two in differing}
    cliques: list[list[int]] = []
    for i in range(models):
        alike = [j for j in range(i + 1, models) if frozenset((i, j)) not in differ]
        uncovered = [j for j in alike if not any(i in clique and j in clique for clique in cliques)]
        while uncovered:
            clique = [i, uncovered[0]]
            for k in range(models):
                if k not in clique and all(frozenset((k, member)) not in differ for member in clique):
                    clique.append(k)
            cliques.append(sorted(clique))
            uncovered = [j for j in uncovered if j not in clique]
        if not any(i in clique for clique in cliques):
            cliques.append([i])
    cliques.sort()
    return ["".join(_letter(n) for n, clique in enumerate(cliques) if i in clique) for i in range(models)]


def _letter(n: int) -> str:
    """a … z, a1 … z1, …: unambiguous even when written one after the other."""
    turn, place = divmod(n, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(turn) if turn else "")
