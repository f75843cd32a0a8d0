"""From columns of outcomes to `summary.json` and `users.json`, and what `--require` and `--max-failed` make of them.

Nothing here depends on the clock. Metrics are declared in `metrics.py`; `stats/` computes everything from arrays.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import msgspec
import numpy as np

from prb import __version__
from prb.data.load import Dataset
from prb.data.votes import Voted, retest
from prb.errors import BadInput, BadSpec, GateFailed, unknown
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.metrics import Facts, Rows, clustered_by
from prb.evaluation.outcomes import Outcomes
from prb.grading.license import read_license
from prb.stats.bias import calibration, length_bias, position_bias
from prb.stats.credit import SUBSETS, TIES, ScoredRow, rewardbench_sections, ties_score
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
)
from prb.types import Estimate, Tested
from prb.work import count_reasons, refuse_failures, share_problem


def summarize(config: EvaluateConfig, dataset: Dataset, outcomes: Outcomes) -> tuple[Summary, UserTable]:
    """What summary.json and users.json hold."""
    license = read_license(config.license) if config.license else None
    facts = Facts(dataset.index, license)
    rows = {cell: Rows(column, facts, config.seed) for cell, column in outcomes.of.items()}
    results: list[Any] = [_result(config, *cell, of_cell) for cell, of_cell in rows.items()]
    for key in (key for key, metric in METRICS.items() if metric.tested and not metric.needs):
        for condition in dict.fromkeys(result.condition for result in results):  # corrected over the models
            tested = [r for r in results if r.condition == condition and isinstance(r.metrics.get(key), Tested)]
            for result, p in zip(tested, corrected([result.metrics[key] for result in tested]), strict=True):
                result.metrics[key] = replace(result.metrics[key], p_holm=p)
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
    users = [
        UserColumns(model=model, condition=condition, columns=_user_columns(cell, config.task))
        for (model, condition), cell in rows.items()
    ]
    return summary, UserTable(users=facts.user_names, results=users)


def _result(config: EvaluateConfig, model: str, condition: str, rows: Rows) -> PairResult | RatingResult:
    column = rows.column
    about: dict[str, Any] = {
        "model": model,
        "condition": condition,
        "metrics": {k: compute(m, rows) for k, m in METRICS.items() if m.task == config.task and not m.needs},
        "failures": dict(sorted(column.failures.items())),
        "not_measured": dict(sorted(column.unmeasured.items())),
    }
    if column.trained_users:
        about["trained_on"] = TrainedCounts(rows=column.trained_rows, users=len(column.trained_users))
    if config.paper:  # what the procedure hides: ties counted as lost, and replies without a verdict counted as "A"
        undecided, judged = int((rows.margin == 0).sum()), bool(column.verdicts)
        about["paper"] = PaperCounts(ties=0 if judged else undecided, unparsed=undecided if judged else 0)
    if config.task == "pairs":
        return _pair_result(rows, **about)
    users, facts = rows.by_user, rows.facts
    groups_of = {int(code): row for code, row in zip(facts.users, facts.index.groups, strict=True) if row}
    alignments: dict[str, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for code, row in groups_of.items():
        for attribute, value in row.items():
            alignments[attribute][value] += [users[code]["alignment"]] if code in users else []
    return RatingResult(
        n=int((~np.isnan(column.score)).sum()),
        failed=rows.failed,
        users=len(users),
        by_group={
            attribute: {value: mean_over_users("alignment", values) for value, values in sorted(by_value.items())}
            for attribute, by_value in sorted(alignments.items())
        },
        **about,
    )


def corrected(estimates: Sequence[Tested | Contrast]) -> list[float | None]:
    """p after Holm's correction over these estimates."""
    rows: list[dict[str, Any]] = [{"p": e.p, "test": e.test} for e in estimates]
    correct(rows)
    return [row["p_holm"] for row in rows]


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


def _pair_result(rows: Rows, **about: Any) -> PairResult:
    column, facts, credit, margin = rows.column, rows.facts, rows.credit, rows.margin
    index, measured = facts.index, column.measured.tolist()

    def of_measured(labels: Sequence[Any]) -> list[Any]:
        return [label if known else None for label, known in zip(labels, measured, strict=True)]

    by_category, by_tier = (
        by_label(credit, facts.clusters, of_measured(labels), margin, facts.twins)
        for labels in (index.categories, index.tiers)
    )
    groups = by_group(credit, facts.clusters, [row or {} for row in of_measured(index.groups)], margin, facts.twins)
    position = position_bias(column.verdicts)
    if position and column.biases_cancel:
        position["cancels"] = True
    indifference = None
    no_evidence = ~rows.counted & ~np.isnan(margin)
    if no_evidence.any():  # of twins neither should be preferred
        chosen = share((np.sign(margin[no_evidence]) + 1) / 2, facts.clusters[no_evidence])
        indifference = Indifference(n=int(no_evidence.sum()), chosen=chosen)
    biases = {
        "length": length_bias(credit, facts.clusters, *facts.lengths),
        "position": position,
        "calibration": calibration(margin, credit, codes(index.clusters)),
    }
    return PairResult(
        by_category=by_category,
        by_tier=by_tier,
        by_group=msgspec.convert(groups, dict[str, Groups]),
        users=Spread(**spread(user_means(credit, facts.users)[0])),
        biases=msgspec.convert(biases, Biases),
        cut_posts=column.cut,
        indifference=indifference,
        **_official_scores(rows),
        **about,
    )


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
    score = sum(by_subset[subset] for subset in SUBSETS) / len(SUBSETS)
    return {"rewardbench2": RewardBench2(score=score, by_subset=by_subset)}


def _contrasts(config: EvaluateConfig, rows: Mapping[tuple[str, str], Rows]) -> list[Contrast]:
    """Metrics that compare conditions, of every model; those that are tested are corrected together."""
    contrasts = []
    for model, (key, metric) in product(config.names, METRICS.items()):
        if metric.task == config.task and metric.needs and set(metric.needs) <= set(config.condition):
            value = compute(metric, *(rows[model, condition] for condition in metric.needs))
            if value is not None:  # else it does not apply to these rows
                numbers = asdict(value) if isinstance(value, (Estimate, Difference)) else {"value": value}
                known = {name: number for name, number in numbers.items() if name in Contrast.__struct_fields__}
                contrasts.append(Contrast(model=model, kind=key, **known))
    tested = [contrast for contrast in contrasts if METRICS[contrast.kind].tested]
    for contrast, p in zip(tested, corrected(tested), strict=True):
        contrast.p_holm = p
    return contrasts


def _user_columns(rows: Rows, task: str) -> dict[str, list[float | None]]:
    everyone = range(len(rows.facts.user_names))
    if task == "ratings":
        keys = ("n", *(key for key, metric in METRICS.items() if metric.task == "ratings"))
        return {key: [rows.by_user.get(code, {}).get(key) for code in everyone] for key in keys}
    accuracy: list[float | None] = [None for _ in everyone]
    answered: list[float | None] = [0 for _ in everyone]
    means, counts, present = user_means(rows.credit, rows.facts.users)
    for code, mean, count in zip(present.tolist(), means.tolist(), counts.tolist(), strict=True):
        accuracy[code], answered[code] = mean, count
    return {"accuracy": accuracy, "n": answered}


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


def check_requirements(text: str, conditions: Sequence[str], models: Sequence[str]) -> None:
    """Refuse, before the run, what the run cannot answer."""
    for requirement in parse_requirements(text):
        if requirement.model is not None and requirement.model not in models:
            raise unknown("model of this run", requirement.model, models)
        for condition in requirement.metric.needs or (requirement.condition,):
            if condition is not None and condition not in conditions:
                raise BadSpec(f"--require: {requirement.text} needs condition {condition!r}, which is not run")


def parse_requirements(text: str) -> Iterator[Requirement]:
    if not text.strip(", "):
        raise BadSpec("--require is empty, so that it would always hold; write for example accuracy>0.6")
    for clause in filter(None, map(str.strip, text.split(","))):
        match = _CLAUSE.fullmatch(clause)
        if not match:
            like = "accuracy>0.6, control.low>0 or embedding:accuracy@none<=0.55"
            raise BadSpec(f"--require: {clause!r} is not like {like}")
        model, key, condition, part, compare, number = match.groups()
        metric = METRICS.look_up(key)
        if condition is not None:
            CONDITIONS.look_up(condition)
        bound = float(number)
        if part not in COUNTS and metric.unit != "number" and abs(bound) > 1:
            hint = f"; for {number} % write {bound / 100:g}" if abs(bound) <= 100 else ""
            raise BadSpec(f"--require: {clause}: {key} is a share, at most 1{hint}")
        yield Requirement(clause, model, metric, condition, part or "value", compare, bound)


def require(text: str, summary: Summary) -> None:
    """Every requirement must hold for its model, or for every model of the run; a value that is not there fails it."""
    broken = []
    for requirement in parse_requirements(text):
        metric, missing = requirement.metric, True
        # without a condition, under `profile` where that was run, since that is how a model is used
        condition = metric.needs[0] if metric.needs else requirement.condition or summary.shown
        for model in summary.models if requirement.model is None else [requirement.model]:
            result, contrasts = summary.result(model, condition), summary.contrasts_of(model)
            if result is None or metric.key not in (contrasts if metric.needs else result.metrics):
                continue
            missing, who = False, model if metric.needs else f"{model} under {condition}"
            estimate = contrasts[metric.key] if metric.needs else result.estimate(metric.key)
            value = getattr(estimate, requirement.part, None)
            why = f" (it {result.position_warning})" if result.position_warning else ""
            if value is None:
                broken.append(f"{requirement.text}: {who} has no value{why}")
            elif not _COMPARE[requirement.compare](value, requirement.bound):
                broken.append(f"{requirement.text}: {who} has {value:.4f}{why}")
        if missing:
            broken.append(f"{requirement.text}: the run has no such result")
    if broken:
        raise GateFailed("requirements not met:\n  " + "\n  ".join(broken))


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
