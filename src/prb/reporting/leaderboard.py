"""Leaderboard and compare page, cost page, stability page: how the models of a dataset rank, and how surely.

Estimates for every slice of the rows, all paired tests and the ranks they leave open; what a pair costs each model; the
ranking without some clusters, and between halves of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from msgspec import to_builtins

from prb.evaluation.compare import compare_credits
from prb.evaluation.metrics import Facts, Rows, compute
from prb.models import RECORDED
from prb.reporting.format import without_folders
from prb.reporting.gather import BLIND, DataFile, Entry, Group, Inputs
from prb.reporting.results import significant
from prb.stats.bias import length_controlled
from prb.stats.estimate import Bools, cancels, is_exact
from prb.stats.paired import corrected, paired_p
from prb.stats.ranking import (
    STABILITY_DRAWS,
    accuracies,
    cluster_sums,
    clusters_to_overtake,
    random_orders,
    split_half,
    without_random,
)
from prb.summary import CONDITIONS, MAIN, METRICS, Metric, short_name, shown_condition

STEPS = 20
"""Positions of the slider on the stability page, from no cluster to half of them."""


def describe(group: Group) -> dict[str, Any]:
    """What every page knows of a dataset and its models."""
    conclusion, data = group.verdict, group.about
    leader, results = (*conclusion.standings, *conclusion.references)[0], group.summary.pairs
    measured = {contrast.kind for contrast in group.summary.contrasts if contrast.value is not None}
    measured |= {key for result in results for key, value in result.metrics.items() if value is not None}
    ranked = "misapplication" if data.only_restraint and "misapplication" in measured else "control"
    attributes = ("key", "label", "unit", "better", "tested", "needs", "reference")
    metrics = [
        (metric.column, {**{name: getattr(metric, name) for name in attributes}, "says": metric.sentence})
        for metric in METRICS.values()
        if metric.task == "pairs"
    ]
    return {
        "id": group.id,
        "label": f"{short_name(data.name)}{f' · {data.split}' if data.split else ''} · {data.rows:,} pairs",
        "verdict": {"headline": conclusion.headline, "sentences": conclusion.sentences, "size": conclusion.size},
        "ranked": ranked if conclusion.measured else None,
        "about": {**to_builtins(data), "name": short_name(data.name)},  # never a path of this machine
        "conditions": group.conditions,
        "meanings": {name: CONDITIONS[name].shows for name in group.conditions},
        "metrics": [about for column, about in metrics if column],
        "others": [about for column, about in metrics if not column],
        "shown": shown_condition(group.conditions),
        "models": [describe_model(group, entry) for entry in group.entries],
        "leader": [entry.name for entry in group.entries].index(leader.model),
        "categories": sorted({label for result in results for label in result.by_category}),
        "tiers": sorted({label for result in results for label in result.by_tier}),
        "missing": group.missing,
    }


def describe_model(group: Group, entry: Entry) -> dict[str, Any]:
    standing = next((s for s in group.verdict.references if s.model == entry.name), None)
    about = {
        "name": entry.name,
        "spec": without_folders(entry.spec),
        "run": entry.run.folder.name,
        "source": "recorded" if entry.kind in RECORDED else "live",  # whether it was asked, or scored elsewhere
        "seen": _seen(group, entry),
        "conditions": list(group.columns_of(entry)),
        "blind": entry.kind in BLIND,
        # stands below the others, for comparison
        "reference": ("user-blind" if standing.rubric is None else "shown the rubric") if standing else None,
        "k": entry.run.settings.k,
        "ranker": entry.run.settings.shown.ranker,
        "protocol": entry.run.summary.protocol,
    }
    warnings = list(entry.run.summary.warnings(entry.model))
    return {**about, "warnings": warnings} if warnings else about


def _seen(group: Group, entry: Entry) -> str:
    """How much of the user's history a model saw under `profile`: of a live one the posts it was shown are counted;
    recorded scores say what they saw only if they are ours."""
    if entry.kind in BLIND:
        return "never sees the user"
    if entry.kind in RECORDED:
        return RECORDED[entry.kind]
    column = group.columns.get((entry.name, MAIN))
    if column is None:
        return ""
    shown = [len(detail.post_ids) for detail in column.details]
    if not any(shown):
        return "past choices" if entry.run.settings.shown.kind == "choices" else "no posts"

    def span(counts: Sequence[int]) -> str:
        low, high = min(counts), max(counts)
        return str(low) if low == high else f"{low}–{high}"

    if group.history is not None and list(group.history) == shown:
        return f"all {span(shown)} posts"
    return f"{span(shown)}{f' of {span(group.history)}' if group.history else ''} posts"


# --- leaderboard and compare ---
def board_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        rows: list[dict[str, Any]] = []
        for entry in group.entries:
            results = {c: result for c in group.conditions if (result := entry.result(c))}
            contrasts = group.summary.contrasts_of(entry.name)
            row: dict[str, Any] = {"accuracy": {c: to_builtins(result.accuracy) for c, result in results.items()}}
            for metric in columns():
                estimates = {c: e for c, r in results.items() if (e := r.estimate(metric.key)) is not None}
                row[metric.key] = to_builtins(contrasts.get(metric.key) if metric.needs else estimates)
            rows.append(row)
        for metric in columns():
            for condition in group.conditions if metric.tested and not metric.needs else ():
                of_models = [row[metric.key] for row in rows if condition in row[metric.key]]
                for values, test in zip(of_models, corrected([v[condition] for v in of_models]), strict=True):
                    values[condition] = test
        tests = {condition: paired_tests(group, condition) for condition in group.conditions}
        slices = {"all": rows, **dict(_slices(group))}
        yield f"{group.id}/board", {"slices": slices, "ranks": ranks(group, tests)}
        yield f"{group.id}/tests", tests


def columns() -> list[Metric]:
    """The metrics of pairs that the leaderboard shows beside accuracy."""
    return [metric for metric in METRICS.values() if metric.task == "pairs" and metric.column]


def _slices(group: Group) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Categories and tiers: accuracies are in the summaries; the rest needs the dataset, which knows their rows."""
    index = group.dataset.index if group.dataset else None
    facts = Facts(index) if index else None
    not_tested: dict[str, Any] = {metric.key: None if metric.needs else {} for metric in columns()}
    if facts:
        rows = []
        for entry in group.entries:
            accuracy = {}
            for condition, column in group.columns_of(entry).items():
                exact = cancels(column.margin, facts.twins)
                estimate = length_controlled(column.credit, group.clusters, *facts.lengths, exact=exact)
                accuracy[condition] = estimate.as_dict()
            rows.append({"accuracy": accuracy, **not_tested})
        yield "length:equal length", rows  # not a slice: what rows of equal length would give
    for name, labels in (("category", index.categories if index else ()), ("tier", index.tiers if index else ())):
        by_label = [
            {c: getattr(result, f"by_{name}") for c in group.conditions if (result := entry.result(c))}
            for entry in group.entries
        ]
        for label in sorted({label for results in by_label for estimates in results.values() for label in estimates}):
            rows = []
            for entry, results in zip(group.entries, by_label, strict=True):
                accuracy = {c: estimates[label].as_dict() for c, estimates in results.items() if label in estimates}
                part = np.array([other == label for other in labels])
                rows.append({"accuracy": accuracy, **(_of_part(group, entry, facts, part) if facts else not_tested)})
            yield f"{name}:{label}", rows


def _of_part(group: Group, entry: Entry, facts: Facts, part: Bools) -> dict[str, Any]:
    """The metrics over some rows, without tests: testing every slice would find something by chance."""
    rows = {c: Rows(col, facts, entry.run.settings.seed, part) for c, col in group.columns_of(entry).items()}
    numbers: dict[str, Any] = {}
    for metric in columns():
        if not metric.needs:
            values = {c: compute(metric, own) for c, own in rows.items()}
            numbers[metric.key] = {c: _untested(value) for c, value in values.items() if value is not None}
        elif set(metric.needs) <= set(rows):
            contrast = _untested(compute(metric, *(rows[c] for c in metric.needs)))
            numbers[metric.key] = contrast if contrast["value"] is not None else None
        else:
            numbers[metric.key] = None
    return numbers


def _untested(value: Any) -> dict[str, Any]:
    """An estimate, without its p, or a number."""
    content = {"value": value} if value is None or isinstance(value, float) else to_builtins(value)
    return {**content, "p": None, "p_holm": None} if "p" in content else content


def paired_tests(group: Group, condition: str) -> list[dict[str, Any]]:
    """Every two models under a condition, paired by row, with Holm's correction over all of them."""
    credits = [(n, column.credit) for n, column in group.under(condition)]
    results = [entry.result(condition) for entry in group.entries]
    known = [result is not None and is_exact(result.accuracy) for result in results]
    seed = group.entries[0].run.settings.seed
    signs = (1, 0, -1)
    tests = []
    for (i, x), (j, y) in combinations(credits, 2):
        both = ~(np.isnan(x) | np.isnan(y))
        left, right = np.sign(x[both] - 0.5), np.sign(y[both] - 0.5)
        # rows: the first model is right, ties, is wrong; columns: the second
        table = [[int(((left == a) & (right == b)).sum()) for b in signs] for a in signs]
        paired = compare_credits(x, y, group.clusters, exact=known[i] and known[j], seed=seed)
        tests.append({"a": i, "b": j, **paired, "table": table})
    return corrected(tests)


Range = tuple[int, int]
"""The first and the last rank that paired tests of every two models leave open."""


def ranks(group: Group, tests: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Range | None]]:
    """By model, of every condition and difference of two: `None` for references and for models without a number."""
    names = {standing.model for standing in group.verdict.standings}
    ranked = {n for n, entry in enumerate(group.entries) if entry.name in names}
    ranges = {}
    for condition, of_two in tests.items():
        present = {n for n, column in group.under(condition) if not np.isnan(column.credit).all()}
        ranges[condition] = rank_ranges(len(group.entries), ranked & present, of_two)
    for metric in columns():
        if metric.difference and set(metric.needs) <= set(group.conditions):
            to, since = (dict(group.under(condition)) for condition in metric.needs)
            values = {n: to[n].credit - since[n].credit for n in to if n in since and n in ranked}
            values = {n: value for n, value in values.items() if not np.isnan(value).all()}
            pairs, seed = list[dict[str, Any]](), group.entries[0].run.settings.seed
            for (i, x), (j, y) in combinations(values.items(), 2):
                both = ~(np.isnan(x) | np.isnan(y))
                p, test = paired_p(x[both], y[both], group.clusters[both], seed=seed) if both.any() else (None, "none")
                pairs.append({"a": i, "b": j, "value": float(np.sum(x[both] - y[both])), "p": p, "test": test})
            ranges[metric.key] = rank_ranges(len(group.entries), values, corrected(pairs))
    return ranges


def rank_ranges(models: int, ranked: Collection[int], tests: Sequence[Mapping[str, Any]]) -> list[Range | None]:
    """A model is behind those that are significantly better than it, and ahead of those that it is better than."""
    above, below = Counter[int](), Counter[int]()
    for test in tests:
        if significant(test["p_holm"]) and test["a"] in ranked and test["b"] in ranked:
            winner, loser = (test["a"], test["b"]) if test["value"] > 0 else (test["b"], test["a"])
            above[loser] += 1
            below[winner] += 1
    return [(1 + above[n], len(ranked) - below[n]) if n in ranked else None for n in range(models)]


# --- cost ---
def cost_data(inputs: Inputs) -> Iterator[DataFile]:
    """Per pair, and only what was measured: a model without tokens or a price is not one that costs nothing."""
    for group in inputs.groups:
        cells: list[dict[str, dict[str, float]]] = []
        for entry in group.entries:
            cells.append({})
            for condition, column in group.columns_of(entry).items():
                sums = {"money": column.cost, "tokens": float(column.tokens), "seconds": column.seconds}
                cells[-1][condition] = {name: total / len(column) for name, total in sums.items() if total > 0}
        yield f"{group.id}/cost", cells


# --- stability ---
def stability_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        clusters = int(group.clusters.max()) + 1
        steps = sorted({round(n * (clusters // 2) / STEPS) for n in range(STEPS + 1)})
        orders = random_orders(clusters, STABILITY_DRAWS, group.entries[0].run.settings.seed)
        conditions: dict[str, dict[str, Any] | None] = {}
        for condition in group.conditions:
            credits = {n: column.credit for n, column in group.under(condition) if not np.isnan(column.credit).all()}
            if len(credits) < 2:
                conditions[condition] = None
                continue
            parts = [cluster_sums(credit, group.clusters, clusters) for credit in credits.values()]
            sums, sizes = (np.stack(part) for part in zip(*parts, strict=True))
            ranked = np.argsort(-accuracies(np.ones((1, clusters), bool), sums, sizes)[0], kind="stable").tolist()
            leader, second = ranked[:2]
            first = list(credits.values())[leader]
            leads = [cluster_sums(first - credit, group.clusters, clusters)[0] for credit in credits.values()]
            furthest = np.argsort(-leads[second], kind="stable")  # where the leader is furthest ahead of the second
            favorable = []
            for k in steps:
                keep = np.ones((1, clusters), bool)
                keep[0, furthest[:k]] = False
                favorable.append([round(value, 5) for value in accuracies(keep, sums, sizes)[0].tolist()])
            conditions[condition] = {
                "models": list(credits),
                "ranked": ranked,
                "random": [without_random(orders, k, sums, sizes) for k in steps],
                "favorable": favorable,
                "overtaken": [None if n == leader else clusters_to_overtake(lead) for n, lead in enumerate(leads)],
                "split_half": split_half(orders, sums, sizes),
            }
        settings = {"clusters": clusters, "draws": STABILITY_DRAWS, "steps": steps}
        yield f"{group.id}/stability", {**settings, "conditions": conditions}
