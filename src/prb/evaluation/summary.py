"""From columns of outcomes to `summary.json` and `users.json`, and what `--require` and `--max-failed` make of them.

Nothing here depends on the clock. Metrics are declared in `metrics.py`; `stats/` computes everything from arrays.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np

from prb import __version__
from prb.data.load import Dataset
from prb.data.votes import Voted, retest
from prb.errors import BadInput, BadSpec, GateFailed, unknown
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.metrics import Facts, Rows, clustered_by
from prb.evaluation.outcomes import Column, Outcomes
from prb.evaluation.paper import lost_and_unparsed
from prb.failures import count_reasons, refuse_failures, share_problem
from prb.grading.license import read_license
from prb.stats.bias import calibration, length_bias, position_bias
from prb.stats.credit import SUBSETS, TIES, ScoredRow, final_score, rewardbench_sections, ties_score
from prb.stats.estimate import by_group, by_label, codes, share, spread, user_means
from prb.stats.paired import Difference, correct
from prb.stats.ratings import mean_over_users
from prb.summary import (
    CONDITIONS,
    METRICS,
    Biases,
    Contrast,
    DatasetSummary,
    Groups,
    Indifference,
    Metric,
    PairResult,
    PaperCounts,
    RatingResult,
    Retest,
    RewardBench2,
    Spread,
    Summary,
    TrainedCounts,
    UserColumns,
    UserTable,
    Value,
)
from prb.types import Estimate, Tested

T = TypeVar("T", Tested, Contrast)


def summarize(config: EvaluateConfig, dataset: Dataset, outcomes: Outcomes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of summary.json and of users.json."""
    summary, users = summary_of(config, dataset, outcomes)
    return summary.as_json(), users.as_json()


def summary_of(config: EvaluateConfig, dataset: Dataset, outcomes: Outcomes) -> tuple[Summary, UserTable]:
    license = read_license(config.license) if config.license else None
    facts = Facts(dataset.index, license)
    rows = {cell: Rows(column, facts, config.seed) for cell, column in outcomes.of.items()}
    describe = _rating_result if config.task == "ratings" else _pair_result
    results: list[Any] = [describe(model, condition, cell) for (model, condition), cell in rows.items()]
    if config.paper:
        for result in results:
            result.paper = PaperCounts(**lost_and_unparsed(outcomes.of[result.model, result.condition]))
    _correct_results(results)
    about = describe_dataset(dataset)
    if dataset.index.most_answers > 2:
        about.chance = dataset.index.chance
    about.restraint = int(facts.restraint.sum())
    if isinstance(dataset.source, Voted):
        about.noise_ceiling = msgspec.convert(retest(dataset.source), Retest | None)
    summary = Summary(
        prb=__version__,
        task=config.task,
        protocol="paper" if config.paper else "prb",
        dataset=about,
        results=results,
        contrasts=_contrasts(config, rows),
        license=license.sentence() if license else None,
    )
    users = [_user_columns(model, condition, cell, config.task) for (model, condition), cell in rows.items()]
    return summary, UserTable(users=facts.user_names, results=users)


def describe_dataset(dataset: Dataset) -> DatasetSummary:
    return DatasetSummary(
        name=dataset.name,
        split=dataset.split,
        rows=len(dataset),
        users=len(set(dataset.index.users)),
        clusters=len(set(dataset.index.clusters)),
        clustered_by=clustered_by(dataset.index),
        fingerprint=dataset.fingerprint,
        left_out=dataset.left_out,
    )


def compute(metric: Metric, *rows: Rows) -> Any:
    """A metric's value; what goes wrong in somebody else's code is one line that names the metric."""
    try:
        value = metric.of(*rows)
    except Exception as error:
        if metric.of.__module__.startswith("prb."):
            raise
        raise BadInput(f"metric {metric.key!r} failed: {type(error).__name__}: {error}") from error
    if value is None or isinstance(value, (Estimate, Difference)):
        return value
    if isinstance(value, (int, float)) and np.isfinite(value):
        return float(value)
    raise BadInput(f"metric {metric.key!r} must give an Estimate, a finite number or None, not {value!r}")


def _values(task: str, rows: Rows) -> dict[str, Value]:
    return {key: compute(m, rows) for key, m in METRICS.items() if m.task == task and not m.needs}


def _pair_result(model: str, condition: str, rows: Rows) -> PairResult:
    column, facts, credit, margin = rows.column, rows.facts, rows.credit, rows.margin
    index, measured = facts.index, column.measured
    by_category, by_tier = (
        by_label(credit, facts.clusters, _where(labels, measured, None), margin, facts.twins)
        for labels in (index.categories, index.tiers)
    )
    groups = by_group(credit, facts.clusters, _where(index.groups, measured, {}), margin, facts.twins)
    position = position_bias(column.verdicts) or _one_order(column.verdicts)
    if position and column.biases_cancel:
        position["cancels"] = True
    biases = {
        "length": length_bias(credit, facts.clusters, *facts.lengths),
        "position": position,
        "calibration": calibration(margin, credit, codes(index.clusters)),
    }
    return PairResult(
        model=model,
        condition=condition,
        metrics=_values("pairs", rows),
        by_category=by_category,
        by_tier=by_tier,
        by_group=msgspec.convert(groups, dict[str, Groups]),
        users=Spread(**spread(user_means(credit, facts.users)[0])),
        biases=msgspec.convert(biases, Biases),
        cut_posts=column.cut,
        leaking_choices=column.leaks,
        indifference=_indifference(rows),
        **_official_scores(rows),
        **_without_outcome(column),
    )


def _where(labels: Sequence[Any], measured: Iterable[bool], otherwise: Any) -> list[Any]:
    return [label if known else otherwise for label, known in zip(labels, measured, strict=True)]


def _without_outcome(column: Column) -> dict[str, Any]:
    """Why rows failed, why others were not measured, and how many the model was trained on."""
    trained = TrainedCounts(rows=column.trained_rows, users=len(column.trained_users))
    return {
        "failures": dict(sorted(column.failures.items())),
        "not_measured": dict(sorted(column.unmeasured.items())),
        "trained_on": trained if column.trained_users else None,
    }


def _one_order(verdicts: Sequence[Sequence[str | None]]) -> dict[str, Any] | None:
    """Of a comparer that was asked in one order: how often it preferred the first answer."""
    decided = [choice for pair in verdicts for choice in pair if choice in ("first", "second")]
    first = decided.count("first") / len(decided) if decided else None
    return {"n": len(decided), "consistency": None, "first_share": first} if decided else None


def _indifference(rows: Rows) -> Indifference | None:
    """Rows without evidence in the history: margins should be small, and of twins neither should be preferred."""
    no_evidence = ~rows.counted & ~np.isnan(rows.margin)
    if not no_evidence.any():
        return None
    margins, others = rows.margin[no_evidence], rows.margin[rows.counted]
    usual = np.median(np.abs(others)) if len(others) else 0.0
    relative = float(np.median(np.abs(margins)) / usual) if usual else None
    preferred = np.where(margins == 0, 0.5, margins > 0).astype(np.float64)
    chosen = share(preferred, rows.facts.clusters[no_evidence])
    return Indifference(n=len(margins), relative_margin=relative, chosen=chosen)


def _official_scores(rows: Rows) -> dict[str, Any]:
    """The official score, if these are the subsets of RewardBench 1, or of 2 with scores, and no row failed."""
    column, index, credit = rows.column, rows.facts.index, rows.credit
    labels = np.array(index.categories)
    if np.isnan(credit).any():
        return {}
    won = credit if column.verdicts else rows.margin > 0  # of scores, RewardBench 1 counts a tie as lost
    sections = rewardbench_sections({subset: float(won[labels == subset].mean()) for subset in np.unique(labels)})
    if sections:
        return {"rewardbench": sections}
    if set(labels.tolist()) != set(SUBSETS) or column.verdicts:
        return {}
    by_subset = {subset: float(credit[labels == subset].mean()) for subset in SUBSETS if subset != TIES}
    # of two answers only the margin is kept, which is all that counts
    by_subset[TIES] = ties_score(
        [
            ScoredRow(index.ids[n], index.answers[0][n], column.several.get(n, (float(rows.margin[n]), 0.0)))
            for n in np.flatnonzero(labels == TIES).tolist()
        ]
    )
    return {"rewardbench2": RewardBench2(score=final_score(by_subset), by_subset=by_subset)}


def _rating_result(model: str, condition: str, rows: Rows) -> RatingResult:
    users, score = rows.by_user, rows.column.score
    return RatingResult(
        model=model,
        condition=condition,
        metrics=_values("ratings", rows),
        n=int((~np.isnan(score)).sum()),
        failed=rows.failed,
        users=len(users),
        users_too_few_rows=len(np.unique(rows.facts.users)) - len(users),
        by_group=_alignment_by_group(rows),
        **_without_outcome(rows.column),
    )


def _alignment_by_group(rows: Rows) -> dict[str, dict[str, Estimate]]:
    """Mean alignment by attribute and value."""
    alignments: dict[str, dict[str, list[float | None]]] = {}
    groups_of = {int(code): row for code, row in zip(rows.facts.users, rows.facts.index.groups, strict=True) if row}
    for row in groups_of.values():
        for attribute, value in row.items():
            alignments.setdefault(attribute, {}).setdefault(value, [])
    for code, metrics in rows.by_user.items():
        for attribute, value in groups_of.get(code, {}).items():
            alignments[attribute][value].append(metrics["alignment"])
    return {
        attribute: {value: Estimate(**mean_over_users("alignment", by_value[value])) for value in sorted(by_value)}
        for attribute, by_value in sorted(alignments.items())
    }


def _contrasts(config: EvaluateConfig, rows: Mapping[tuple[str, str], Rows]) -> list[Contrast]:
    """Metrics that compare conditions, of every model; those that are tested are corrected together."""
    found = []
    for model in config.names:
        for key, metric in METRICS.items():
            if metric.task == config.task and metric.needs and set(metric.needs) <= set(config.condition):
                value = compute(metric, *(rows[model, condition] for condition in metric.needs))
                if value is None:  # it does not apply to these rows
                    continue
                numbers = asdict(value) if isinstance(value, (Estimate, Difference)) else {"value": value}
                known = {name: number for name, number in numbers.items() if name in Contrast.__struct_fields__}
                found.append(Contrast(model=model, kind=key, **known))
    tested = [contrast for contrast in found if METRICS[contrast.kind].tested]
    for contrast, p in zip(tested, corrected(tested), strict=True):
        contrast.p_holm = p
    return found


def corrected(estimates: Sequence[Tested | Contrast]) -> list[float | None]:
    """p after Holm's correction over these estimates."""
    rows: list[dict[str, Any]] = [{"p": e.p, "test": e.test, "p_holm": None} for e in estimates]
    correct(rows)
    return [row["p_holm"] for row in rows]


def _correct_results(results: Sequence[PairResult | RatingResult]) -> None:
    """Tested metrics under a condition, corrected over the models."""
    for key in (key for key, metric in METRICS.items() if metric.tested and not metric.needs):
        for condition in dict.fromkeys(result.condition for result in results):
            tested = [
                (result, value)
                for result in results
                if result.condition == condition and isinstance(value := result.metrics.get(key), Tested)
            ]
            for (result, value), p in zip(tested, corrected([value for _, value in tested]), strict=True):
                result.metrics[key] = replace(value, p_holm=p)


def _user_columns(model: str, condition: str, rows: Rows, task: str) -> UserColumns:
    names = rows.facts.user_names
    columns: dict[str, list[float | None]]
    if task == "ratings":
        everyone = [rows.by_user.get(code, {}) for code in range(len(names))]
        keys = ("n", *(key for key, metric in METRICS.items() if metric.task == "ratings"))
        columns = {key: [user.get(key) for user in everyone] for key in keys}
    else:
        columns = {"accuracy": [None] * len(names), "n": [0] * len(names)}
        means, counts, present = user_means(rows.credit, rows.facts.users)
        for code, mean, count in zip(present.tolist(), means.tolist(), counts.tolist(), strict=True):
            columns["accuracy"][code], columns["n"][code] = mean, count
    return UserColumns(model=model, condition=condition, columns=columns)


# --- gates ---
_CLAUSE = re.compile(
    r"(?:(.+):)?([a-z_]\w*)(?:@([a-z_]\w*))?(?:\.(low|high|p|p_holm|failed|n))?"
    r"\s*(>=|<=|>|<)\s*(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)"
)
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
COUNTS = ("failed", "n")
"""Parts of an estimate that are not shares."""


@dataclass(frozen=True)
class Requirement:
    text: str
    model: str | None
    """None: every model of the run."""
    metric: Metric
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
        for condition in requirement.metric.needs or (requirement.condition,):
            if condition is not None and condition not in conditions:
                raise BadSpec(f"--require: {requirement.text} needs condition {condition!r}, which is not run")


def _parse(clause: str) -> Requirement:
    match = _CLAUSE.fullmatch(clause)
    if not match:
        raise BadSpec(f"--require: {clause!r} is not like accuracy>0.6, control.low>0 or embedding:accuracy@none<=0.55")
    model, key, condition, part, compare, number = match.groups()
    metric = METRICS.look_up(key)
    if condition is not None:
        CONDITIONS.look_up(condition)
    bound = float(number)
    if part not in COUNTS and metric.unit != "number" and abs(bound) > 1:
        hint = f"; for {number} % write {bound / 100:g}" if abs(bound) <= 100 else ""
        raise BadSpec(f"--require: {clause}: {key} lies between -1 and 1{hint}")
    return Requirement(clause, model, metric, condition, part or "value", compare, bound)


def require(text: str, summary: Summary) -> None:
    """Every requirement must hold for its model, or for every model of the run; a value that is not there fails it."""
    broken = []
    for requirement in parse_requirements(text):
        values = list(_required(requirement, summary))
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


def _required(requirement: Requirement, summary: Summary) -> Iterator[tuple[str, float | None, str | None]]:
    """By model, with a warning where position explains the value; under `profile` where it was run and no condition is
    named, since that is how a model is used."""
    metric, condition = requirement.metric, requirement.condition or summary.shown
    for model in summary.models if requirement.model is None else [requirement.model]:
        if metric.needs:
            contrast = summary.contrasts_of(model).get(metric.key)
            result = summary.result(model, metric.needs[0])
            if contrast:
                yield model, getattr(contrast, requirement.part, None), result.position_warning if result else None
        elif (result := summary.result(model, condition)) and metric.key in result.metrics:
            estimate = result.estimate(metric.key)
            value = getattr(estimate, requirement.part, None) if estimate else None
            yield f"{model} under {condition}", value, result.position_warning


def check_failures(summary: Summary, max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of a model's rows failed under a condition.

    Rows that were not measured do not count, but a model of which nothing was measured is a failure.
    """
    problems = [
        share_problem(f"{r.model} under {r.condition}", r.failed, r.measured, r.failures, max_failed)
        for r in summary.results
    ]
    for model in summary.models:
        results = [result for result in summary.results if result.model == model]
        if not any(result.measured for result in results):
            problems.append(f"{model}: nothing was measured ({count_reasons(results[-1].not_measured)})")
    refuse_failures(problems, max_failed)
