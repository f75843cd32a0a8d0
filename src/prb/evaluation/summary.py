"""From columns of outcomes to `summary.json` and `users.json`. Nothing here depends on the clock.

A column is one model under one condition: arrays of credits and margins with one entry per row of the dataset. In pairs
a NaN margin marks a failure, a NaN credit a failure or a row without evidence. `stats/` computes everything from these
arrays and from what the dataset's index says of the rows.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prb import __version__
from prb.data.load import Dataset, Index
from prb.data.votes import VoteSource, retest
from prb.errors import BadSpec, GateFailed, unknown
from prb.evaluation.conditions import TRAINED
from prb.evaluation.config import CONDITIONS, EvaluateConfig, shown_condition
from prb.evaluation.outcomes import Column, Outcomes
from prb.evaluation.paper import lost_and_unparsed
from prb.failures import count_reasons, refuse_failures, share_problem
from prb.stats.bias import calibration, length_bias, position_bias
from prb.stats.credit import (
    SUBSETS,
    TIES,
    ScoredRow,
    final_score,
    pairwise_credit,
    rewardbench_sections,
    ties_score,
)
from prb.stats.estimate import Floats, Ints, by_group, by_label, cancels, codes, share, spread, user_means
from prb.stats.paired import Twins, average_user_share, correct, difference, flip_rate, mirror_accuracy, person_effect
from prb.stats.ratings import METRICS, mean_over_users, rating_metrics

LOPSIDED, INCONSISTENT, FEW_VERDICTS = 0.1, 0.5, 10
"""A position bias is named if the share of first answers is this far from a half, and fewer than this share of pairs
have the same winner in both orders; or if so many verdicts in one order are all the same."""
CONTRASTS = {"gain": ("profile", "none"), "control": ("profile", "shuffled")}


def summarize(config: EvaluateConfig, dataset: Dataset, outcomes: Outcomes) -> tuple[dict[str, Any], dict[str, Any]]:
    statistics = Statistics(dataset.index)
    describe = statistics.of_ratings if config.task == "ratings" else statistics.of_pairs
    paper = config.protocol == "paper"
    results = [
        {"model": model, "condition": condition, **describe(column, config.seed)}
        | ({"paper": lost_and_unparsed(column)} if paper else {})
        for (model, condition), column in outcomes.of.items()
    ]
    for condition in config.condition:
        correct([row["person_effect"] for row in results if row["condition"] == condition and row.get("person_effect")])
    summary = {
        "prb": __version__,
        "task": config.task,
        "protocol": config.protocol,
        "dataset": {
            **describe_dataset(dataset),
            **({"chance": dataset.index.chance} if dataset.index.most_answers > 2 else {}),
            **({"noise_ceiling": retest(dataset.source)} if isinstance(dataset.source, VoteSource) else {}),
        },
        "results": results,
        "contrasts": [] if config.task == "ratings" else statistics.contrasts(config, outcomes),
    }
    return summary, statistics.by_user(config, outcomes)


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "split": dataset.split,
        "rows": len(dataset),
        "users": len(set(dataset.index.users)),
        "clusters": len(set(dataset.index.clusters)),
        "clustered_by": dataset.index.clustered_by,
        "fingerprint": dataset.fingerprint,
        "left_out": dataset.left_out,
    }


class Statistics:
    """Statistics of columns, given what is known about the rows of the dataset."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._clusters: Ints = codes(index.clusters)
        self._users: Ints = codes(index.users)
        self._names = list(dict.fromkeys(index.users))
        self._twins: Ints = np.array(index.twins, dtype=np.int64)
        self._lengths = tuple(np.array(column, dtype=np.float64) for column in index.lengths)

    def of_pairs(self, column: Column, seed: int) -> dict[str, Any]:
        credit, margin = column.credit, column.margin
        counted = ~np.isnan(credit)
        failed, measured = sum(column.failures.values()), column.measured
        categories, tiers = (
            [label if known else None for label, known in zip(labels, measured, strict=True)]
            for labels in (self._index.categories, self._index.tiers)
        )
        groups = [row if known else {} for row, known in zip(self._index.groups, measured, strict=True)]
        won = np.where(credit == 1, 1.0, 0.0)
        exact = cancels(margin, self._twins)
        untied = exact and not bool((credit == 0.5).any())
        return {
            "accuracy": share(credit[counted], self._clusters[counted], failed=failed, exact=exact).as_dict(),
            "strict_accuracy": share(won[counted], self._clusters[counted], failed=failed, exact=untied).as_dict(),
            **self._of_several(column, credit, failed),
            **self._rewardbench(column, credit, margin),
            **self._mirror(credit, margin, counted, seed),
            "by_category": _dicts(by_label(credit, self._clusters, categories, margin, self._twins)),
            "by_tier": _dicts(by_label(credit, self._clusters, tiers, margin, self._twins)),
            "by_group": by_group(credit, self._clusters, groups, margin, self._twins),
            "users": spread(user_means(credit, self._users)[0]),
            "biases": {
                "length": length_bias(credit, self._clusters, *self._lengths),
                "position": position_bias(column.verdicts) or _one_order(column.verdicts),
                "calibration": calibration(margin, credit, self._clusters),
            },
            **_without_outcome(column),
            "cut_posts": column.cut,
            **({"leaking_choices": column.leaks} if column.leaks else {}),
            **self._indifference(credit, margin),
        }

    def _indifference(self, credit: Floats, margin: Floats) -> dict[str, Any]:
        """Rows without evidence in the history: margins should be small, and of twins neither should be preferred."""
        no_evidence = np.isnan(credit) & ~np.isnan(margin)
        if not no_evidence.any():
            return {}
        margins, others = margin[no_evidence], margin[~np.isnan(credit)]
        usual = np.median(np.abs(others)) if len(others) else 0.0
        relative = float(np.median(np.abs(margins)) / usual) if usual else None
        preferred = np.where(margins == 0, 0.5, margins > 0).astype(np.float64)
        chosen = share(preferred, self._clusters[no_evidence]).as_dict()
        return {"indifference": {"n": len(margins), "relative_margin": relative, "chosen": chosen}}

    def _of_several(self, column: Column, credit: Floats, failed: int) -> dict[str, Any]:
        """Additional metrics where rows have more than two answers."""
        if self._index.most_answers <= 2:
            return {}
        n_best = self._index.answers[0]
        pairwise = credit.copy()
        for n, values in column.several.items():
            pairwise[n] = pairwise_credit(values, n_best[n])
        answered = ~np.isnan(pairwise)
        estimate = share(pairwise[answered], self._clusters[answered], failed=failed)
        return {"pairwise_accuracy": estimate.as_dict()}

    def _rewardbench(self, column: Column, credit: Floats, margin: Floats) -> dict[str, Any]:
        """The official score, if these are the subsets of RewardBench 1, or of 2 with scores, and no row failed."""
        labels = np.array(self._index.categories)
        if np.isnan(credit).any():
            return {}
        won = credit if column.verdicts else margin > 0  # of scores, RewardBench 1 counts a tie as lost
        sections = rewardbench_sections({subset: float(won[labels == subset].mean()) for subset in np.unique(labels)})
        if sections:
            return {"rewardbench": sections}
        if set(labels.tolist()) != set(SUBSETS) or column.verdicts:
            return {}
        by_subset = {subset: float(credit[labels == subset].mean()) for subset in SUBSETS if subset != TIES}
        n_best = self._index.answers[0]
        # of two answers only the margin is kept, which is all that counts
        by_subset[TIES] = ties_score(
            [
                ScoredRow(self._index.ids[n], n_best[n], column.several.get(n, (float(margin[n]), 0.0)))
                for n in np.flatnonzero(labels == TIES).tolist()
            ]
        )
        return {"rewardbench2": {"score": final_score(by_subset), "by_subset": by_subset}}

    def _mirror(self, credit: Floats, margin: Floats, answered: Any, seed: int) -> dict[str, Any]:
        twins = Twins.find(self._twins, self._clusters, answered)
        if not len(twins):
            return {"mirror_accuracy": None, "person_effect": None, "average_user_share": None}
        return {
            "mirror_accuracy": mirror_accuracy(credit, twins).as_dict(),
            "person_effect": person_effect(margin, twins, seed=seed),
            "average_user_share": average_user_share(margin, twins),
        }

    def contrasts(self, config: EvaluateConfig, outcomes: Outcomes) -> list[dict[str, Any]]:
        """Gain and control of every model, Holm-corrected over all that can differ."""
        contrasts = []
        for model in config.names:
            for kind, (a, b) in CONTRASTS.items():
                if a in config.condition and b in config.condition:
                    left, right = outcomes.of[model, a], outcomes.of[model, b]
                    exact = all(cancels(column.margin, self._twins) for column in (left, right))
                    estimate = difference(left.credit, right.credit, self._clusters, exact=exact, seed=config.seed)
                    flips = flip_rate(left.credit, right.credit) if kind == "control" else None
                    row = {"model": model, "kind": kind, **estimate.as_dict(), "p_holm": None, "flip_rate": flips}
                    contrasts.append(row)
        correct(contrasts)
        return contrasts

    def of_ratings(self, column: Column, seed: int) -> dict[str, Any]:  # noqa: ARG002
        score = column.score
        users = rating_metrics(score, np.array(self._index.ratings), self._users)
        return {
            "n": int((~np.isnan(score)).sum()),
            "failed": sum(column.failures.values()),
            "users": len(users),
            "users_too_few_rows": len(np.unique(self._users)) - len(users),
            **{metric: mean_over_users(metric, [u[metric] for u in users.values()]) for metric in METRICS},
            "by_group": self._rating_groups(users),
            **_without_outcome(column),
        }

    def _rating_groups(self, users: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Mean alignment by attribute and value."""
        alignments: dict[str, dict[str, list[float | None]]] = {}
        groups_of = {int(code): row for code, row in zip(self._users, self._index.groups, strict=True) if row}
        for row in groups_of.values():
            for attribute, value in row.items():
                alignments.setdefault(attribute, {}).setdefault(value, [])
        for code, metrics in users.items():
            for attribute, value in groups_of.get(code, {}).items():
                alignments[attribute][value].append(metrics["alignment"])
        return {
            attribute: {value: mean_over_users("alignment", by_value[value]) for value in sorted(by_value)}
            for attribute, by_value in sorted(alignments.items())
        }

    def by_user(self, config: EvaluateConfig, outcomes: Outcomes) -> dict[str, Any]:
        """By column, so that the file of a million users stays small and readable."""
        results = []
        for (model, condition), column in outcomes.of.items():
            values: dict[str, list[Any]]
            if config.task == "ratings":
                users = rating_metrics(column.score, np.array(self._index.ratings), self._users)
                everyone = [users.get(code, {}) for code in range(len(self._names))]
                values = {name: [user.get(name) for user in everyone] for name in ("n", *METRICS)}
            else:
                values = {"accuracy": [None] * len(self._names), "n": [0] * len(self._names)}
                means, counts, present = user_means(column.credit, self._users)
                for code, mean, count in zip(present.tolist(), means.tolist(), counts.tolist(), strict=True):
                    values["accuracy"][code], values["n"][code] = mean, count
            results.append({"model": model, "condition": condition, **values})
        return {"users": self._names, "results": results}


def _without_outcome(column: Column) -> dict[str, Any]:
    """Why rows failed, why others were not measured, and how many the model was trained on."""
    trained = {"rows": column.trained_rows, "users": len(column.trained_users)}
    return {
        "failures": dict(sorted(column.failures.items())),
        "not_measured": dict(sorted(column.unmeasured.items())),
        **({"trained_on": trained} if column.trained_users else {}),
    }


def _one_order(verdicts: Sequence[Sequence[str | None]]) -> dict[str, Any] | None:
    """Of a comparer that was asked in one order: how often it preferred the first answer."""
    decided = [choice for pair in verdicts for choice in pair if choice in ("first", "second")]
    if not decided:
        return None
    return {"n": len(decided), "consistency": None, "first_share": decided.count("first") / len(decided)}


def position_warning(result: Mapping[str, Any]) -> str | None:
    """What to say of a comparer whose verdicts follow the order of the answers more than the answers."""
    bias = result.get("biases", {}).get("position")
    if not bias or bias["first_share"] is None or abs(bias["first_share"] - 0.5) < LOPSIDED:
        return None
    if bias["consistency"] is None:
        explained = bias["first_share"] in (0.0, 1.0) and bias["n"] >= FEW_VERDICTS
    else:
        explained = bias["consistency"] < INCONSISTENT
    first, place = bias["first_share"], "first"
    if first < 0.5:
        first, place = 1 - first, "second"
    always = f"prefers the {place} answer in {100 * first:.0f} % of its verdicts, whichever it is"
    return f"{always}; its accuracy says little about the answers" if explained else None


def model_warnings(summary: Mapping[str, Any], model: str) -> Iterator[str]:
    """What explains a model's numbers better than the user does: the order of the answers, or training on the rows."""
    rows = [row for row in summary["results"] if row["model"] == model]
    biased = [(row["condition"], warning) for row in rows if (warning := position_warning(row))]
    if biased:
        yield f"{biased[0][1]} (under {', '.join(condition for condition, _ in biased)})"
    trained = [row for row in rows if "trained_on" in row]
    if trained:
        counts = trained[0]["trained_on"]
        counted = all(TRAINED not in row["not_measured"] for row in trained)
        what = "are counted, so its numbers are not a test" if counted else "are not counted"
        these = f"{counts['rows']} of these rows, which {what}" if counts["rows"] else "none of these rows"
        yield f"was trained on {these}; on {counts['users']} of these users"


def _dicts(estimates: dict[str, Any]) -> dict[str, Any]:
    return {name: estimate.as_dict() for name, estimate in estimates.items()}


_CLAUSE = re.compile(
    r"(?:(.+):)?([a-z_]+)(?:@([a-z]+))?(?:\.(low|high|p|p_holm|failed|n))?"
    r"\s*(>=|<=|>|<)\s*(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)"
)
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
RESULTS = ("accuracy", "strict_accuracy", "mirror_accuracy", "person_effect", "average_user_share")
COMPARED = ("gain", "control", "flip_rate")
COUNTS = ("failed", "n")
"""Parts of an estimate that are not shares."""


@dataclass(frozen=True)
class Requirement:
    text: str
    model: str | None
    """None: every model of the run."""
    metric: str
    condition: str | None
    part: str
    compare: str
    bound: float


def parse_requirements(text: str) -> list[Requirement]:
    return [_parse(clause.strip()) for clause in text.split(",") if clause.strip()]


def check_requirements(text: str, conditions: Sequence[str], models: Sequence[str]) -> None:
    """Refuse, before the run, what the run cannot answer."""
    needed = {**CONTRASTS, "flip_rate": CONTRASTS["control"]}
    for requirement in parse_requirements(text):
        if requirement.model is not None and requirement.model not in models:
            raise unknown("model of this run", requirement.model, models)
        for condition in needed.get(requirement.metric, (requirement.condition,)):
            if condition is not None and condition not in conditions:
                raise BadSpec(f"--require: {requirement.text} needs condition {condition!r}, which is not run")


def _parse(clause: str) -> Requirement:
    match = _CLAUSE.fullmatch(clause)
    if not match:
        raise BadSpec(f"--require: {clause!r} is not like accuracy>0.6, control.low>0 or embedding:accuracy@none<=0.55")
    model, metric, condition, part, compare, number = match.groups()
    if metric not in RESULTS + METRICS + COMPARED:
        raise unknown("metric", metric, RESULTS + METRICS + COMPARED)
    if condition is not None and condition not in CONDITIONS:
        raise unknown("condition", condition, CONDITIONS)
    bound = float(number)
    if part not in COUNTS and abs(bound) > 1:
        hint = f"; for {number} % write {bound / 100:g}" if abs(bound) <= 100 else ""
        raise BadSpec(f"--require: {clause}: {metric} lies between -1 and 1{hint}")
    return Requirement(clause, model, metric, condition, part or "value", compare, bound)


def check_failures(summary: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of a model's rows failed under a condition.

    Rows that were not measured do not count, but a model of which nothing was measured is a failure.
    """
    measured: dict[str, bool] = {}
    for row in summary["results"]:
        measured[row["model"]] = measured.get(row["model"], False) or _counts(row)[1] > 0
    reasons = {row["model"]: count_reasons(row["not_measured"]) for row in summary["results"]}
    refuse_failures(
        [
            *(
                share_problem(f"{row['model']} under {row['condition']}", *_counts(row), row["failures"], max_failed)
                for row in summary["results"]
            ),
            *(f"{model}: nothing was measured ({reasons[model]})" for model, some in measured.items() if not some),
        ],
        max_failed,
    )


def _counts(row: Mapping[str, Any]) -> tuple[int, int]:
    """Rows that failed, and all rows; `accuracy` is there for pairs, ratings have the counts beside it."""
    counts = row.get("accuracy", row)
    return counts["failed"], counts["n"] + counts["failed"]


def require(text: str, summary: Mapping[str, Any]) -> None:
    """Every requirement must hold for its model, or for every model of the run; a value that is not there fails it."""
    broken = []
    for requirement in parse_requirements(text):
        values = list(_values(requirement, summary))
        if not values:
            broken.append(f"{requirement.text}: the run has no such result")
        for who, value, warning in values:
            why = f" (it {warning})" if warning else ""
            if value is None:
                broken.append(f"{requirement.text}: {who} has no value{why}")
            elif not _COMPARE[requirement.compare](value, requirement.bound):
                broken.append(f"{requirement.text}: {who} has {value:.4f}{why}")
    if broken:
        raise GateFailed("requirements not met:\n  " + "\n  ".join(broken))


def _values(requirement: Requirement, summary: Mapping[str, Any]) -> Iterator[tuple[str, float | None, str | None]]:
    """By model, with a warning where position explains the value; under `profile` where it was run and no condition is
    named, since that is how a model is used."""
    only = requirement.model
    if requirement.metric in COMPARED:
        kind = "control" if requirement.metric == "flip_rate" else requirement.metric
        warnings = {row["model"]: position_warning(row) for row in summary["results"] if row["condition"] == "profile"}
        for row in summary["contrasts"]:
            if row["kind"] == kind and only in (None, row["model"]):
                value = row["flip_rate"] if requirement.metric == "flip_rate" else row.get(requirement.part)
                yield row["model"], value, warnings[row["model"]]
        return
    conditions = [row["condition"] for row in summary["results"]]
    condition = requirement.condition or shown_condition(conditions)
    for row in summary["results"]:
        if row["condition"] == condition and only in (None, row["model"]):
            value = row.get(requirement.metric)
            value = value.get(requirement.part) if isinstance(value, dict) else value
            yield f"{row['model']} under {condition}", value, position_warning(row)
