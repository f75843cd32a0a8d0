"""`--require "embedding:accuracy>0.6,control>0"`: a run as a gate in CI."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prb.errors import BadSpec, GateFailed, unknown
from prb.evaluation.config import CONDITIONS
from prb.failures import refuse_failures, share_problem
from prb.models import NOT_RECORDED

_CLAUSE = re.compile(
    r"(?:(.+):)?([a-z_]+)(?:@([a-z]+))?(?:\.(low|high|p|p_holm|failed|n))?"
    r"\s*(>=|<=|>|<)\s*(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)"
)
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
RESULTS = ("accuracy", "strict_accuracy", "mirror_accuracy", "person_effect", "average_user_share")
RATINGS = ("alignment", "mae", "skill", "spearman", "concordance")
CONTRASTS = ("gain", "control", "flip_rate")
COUNTS = ("failed", "n")
"""Parts of an estimate that are no shares."""
IMPOSSIBLE = {"no rubric to show", "no other user to borrow a history from"}
"""Failures of a condition, before any model is asked."""


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
    for requirement in parse_requirements(text):
        if requirement.model is not None and requirement.model not in models:
            raise unknown("model of this run", requirement.model, models)
        needed = {"gain": ("profile", "none"), "control": ("profile", "shuffled"), "flip_rate": ("profile", "shuffled")}
        for condition in needed.get(requirement.metric, (requirement.condition,)):
            if condition is not None and condition not in conditions:
                raise BadSpec(f"--require: {requirement.text} needs condition {condition!r}, which is not run")


def _parse(clause: str) -> Requirement:
    match = _CLAUSE.fullmatch(clause)
    if not match:
        raise BadSpec(f"--require: {clause!r} is not like accuracy>0.6, control.low>0 or embedding:accuracy@none<=0.55")
    model, metric, condition, part, compare, number = match.groups()
    if metric not in RESULTS + RATINGS + CONTRASTS:
        raise unknown("metric", metric, RESULTS + RATINGS + CONTRASTS)
    if condition is not None and condition not in CONDITIONS:
        raise unknown("condition", condition, CONDITIONS)
    bound = float(number)
    if part not in COUNTS and abs(bound) > 1:
        hint = f"; for {number} % write {bound / 100:g}" if abs(bound) <= 100 else ""
        raise BadSpec(f"--require: {clause}: {metric} lies between -1 and 1{hint}")
    return Requirement(clause, model, metric, condition, part or "value", compare, bound)


def check_failures(summary: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of a model's rows failed under a condition.

    A condition that is impossible for the whole dataset is no failure of the model: see `impossible_conditions`. Nor is
    one under which nothing was recorded of a model whose scores were given elsewhere.
    """
    impossible = impossible_conditions(summary)
    refuse_failures(
        (
            share_problem(f"{row['model']} under {row['condition']}", *_counts(row), row["failures"], max_failed)
            for row in summary["results"]
            if row["condition"] not in impossible and set(row["failures"]) != {NOT_RECORDED}
        ),
        max_failed,
    )


def impossible_conditions(summary: Mapping[str, Any]) -> dict[str, str]:
    """Conditions that the dataset allows for no row, each with the reason: no rubric anywhere, only one user."""
    impossible: dict[str, str] = {}
    for row in summary["results"]:
        failed, total = _counts(row)
        if failed == total > 0 and len(row["failures"]) == 1 and set(row["failures"]) <= IMPOSSIBLE:
            impossible[row["condition"]] = next(iter(row["failures"]))
    return impossible


def _counts(row: Mapping[str, Any]) -> tuple[int, int]:
    """Rows that failed, and all rows; `accuracy` is there for pairs, ratings have the counts beside it."""
    counts = row.get("accuracy", row)
    return counts["failed"], counts["n"] + counts["failed"]


def require(text: str, summary: Mapping[str, Any]) -> None:
    """Every requirement must hold for its model, or for every model of the run; a value that is not there fails it."""
    broken = [line for requirement in parse_requirements(text) for line in _broken(requirement, summary)]
    if broken:
        raise GateFailed("requirements not met:\n  " + "\n  ".join(broken))


def _broken(requirement: Requirement, summary: Mapping[str, Any]) -> Iterator[str]:
    values = list(_values(requirement, summary))
    if not values:
        yield f"{requirement.text}: the run has no such result"
    for who, value in values:
        if value is None:
            yield f"{requirement.text}: {who} has no value"
        elif not _COMPARE[requirement.compare](value, requirement.bound):
            yield f"{requirement.text}: {who} has {value:.4f}"


def _values(requirement: Requirement, summary: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    only = requirement.model
    if requirement.metric in CONTRASTS:
        kind = "control" if requirement.metric == "flip_rate" else requirement.metric
        for row in summary["contrasts"]:
            if row["kind"] == kind and only in (None, row["model"]):
                yield row["model"], row["flip_rate"] if requirement.metric == "flip_rate" else row.get(requirement.part)
        return
    condition = requirement.condition or usual_condition(summary)
    for row in summary["results"]:
        if row["condition"] == condition and only in (None, row["model"]):
            value = row.get(requirement.metric)
            yield f"{row['model']} under {condition}", value.get(requirement.part) if isinstance(value, dict) else value


def usual_condition(summary: Mapping[str, Any]) -> str:
    """`profile` where it was run: a requirement is about the model as it would be used."""
    conditions = [row["condition"] for row in summary["results"]]
    return "profile" if "profile" in conditions else str(conditions[0])
