"""Does a benchmark predict what happens downstream? Rank agreement over reward models, with honest significance.

Scores are columns, one number per model (`columns.py`). Models of a family (the same method on the same
features, say) are not independent; with `unit="family"` the means of families are what is tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import combinations, product
from math import comb
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from msgspec import UNSET, Struct, UnsetType

from prb import __version__
from prb.config import ConditionName, Count, Name, OutputConfig, Place, Positional, Rare, Words, config
from prb.downstream.columns import (
    MIN_MODELS,
    PLURAL,
    SEED,
    ColumnSummary,
    ScoreColumn,
    Scores,
    Unit,
    checked,
    members_of_families,
    read_runs,
    read_table,
    unfit,
)
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.stats.estimate import Floats
from prb.stats.paired import holm
from prb.stats.ranking import MEASURES, models_needed, percentiles, permutation_p, power, resampled, swap_p, williams

Measure = Literal["spearman", "kendall", "weighted_kendall", "pearson", "ndcg", "rbo", "regret"]
MIN_TO_RESAMPLE = 10
"""Fewer models than this are too few to resample models."""
MIN_FOR_WILLIAMS = 20
TRUE_RHO, TARGET_POWER = 0.5, 0.8
"""The true rank correlation that power is computed for, and the power that a study should have."""
DRAWS = 20_000
"""Random orders where there are too many to enumerate (more than 9 models)."""


@config
class CorrelateConfig(OutputConfig):
    """Does a benchmark's ranking of reward models predict downstream? From a table, or from run folders."""

    table: Positional[Place | None] = None
    """CSV, Parquet or JSON, one row per model (with a column `cluster`: per model and cluster). Without it: run
    folders."""
    bench: Words[Name] = ()
    """Columns with benchmark scores (default: all others), or run folders of `prb evaluate`."""
    downstream: Words[Name] = ()
    """Columns with downstream scores, or run folders of `prb bon` and `prb ppo`."""
    condition: Rare[ConditionName | None] = None
    """Which condition of the benchmark runs; default: profile, else their first."""
    best_of: Count | None = None
    """Which k of best-of-k; default: N."""
    measure: Words[Measure] = ()
    """spearman, kendall, weighted_kendall, pearson, ndcg, rbo, regret; sentences are about the first. Default: all."""
    unit: Unit = "model"
    """What is tested, resampled and left out one at a time: models, or means of families of related models, which the
    table has in column `family`."""
    constructed: Rare[Words[Name]] = ("noisy*",)
    """Names (with *) of models constructed to be good or bad; all results are given with and without them."""
    out: Place | None = None
    """Folder for correlation.json, table.md and scatter.svg."""


class LeaveOneOut(Struct):
    """The first measure without each family in turn."""

    low: float
    high: float
    highest_p: float
    """Over all families that may be left out."""
    family: str
    """The one without which the value changes most."""
    value: float | None
    """Without it; `None` if a column is then constant."""
    p: float


class Agreement(Struct):
    """How far a benchmark ranks models as a downstream score does."""

    bench: str
    downstream: str
    measure: Measure
    value: float | None
    p: float
    p_holm: float
    exact: bool
    interval: tuple[float, float] | None = None
    """Over models drawn anew; `None` with few of them."""
    noise: tuple[float, float] | None = None
    """Over items drawn anew, with the same models; `None` where nothing is known about items."""
    leave_one_out: LeaveOneOut | UnsetType = UNSET


class Comparison(Struct):
    downstream: str
    first: str
    second: str
    measure: Measure
    difference: float
    test: str
    p: float
    p_holm: float
    exact: bool = False


class Power(Struct):
    rho: float
    power: float
    wanted: float
    needed: int | None


class ModelSet(Struct):
    """All models, or those that were not constructed; where families are the unit, all families."""

    set: str
    n: int
    problem: str | None = None
    correlations: list[Agreement] = []
    comparisons: list[Comparison] = []
    power: Power | None = None


class CorrelationSummary(Struct, kw_only=True):
    """The content of `correlation.json` but for its sentences."""

    prb: str = __version__
    unit: Unit = "model"
    members: dict[str, list[str]] | UnsetType = UNSET
    """The models of each family, where families are the unit; `models` and all scores are then those of families."""
    models: list[str]
    constructed: list[str]
    left_out: list[str]
    bench: list[ColumnSummary]
    downstream: list[ColumnSummary]
    sets: list[ModelSet]
    families: dict[str, str] = {}
    """By model, where the table has a column `family`; figures show it."""


def correlate(config: CorrelateConfig, *, progress: Progress = SILENT) -> CorrelationSummary:
    """Nothing is written."""
    if config.table is not None:
        scores = read_table(config.table, config.bench, config.downstream)
    else:
        if not config.bench or not config.downstream:
            raise BadInput("give a table, or run folders with --bench RUN and --downstream RUN")
        files = [name for name in (*config.bench, *config.downstream) if Path(name).is_file()]
        if files:
            raise BadInput(f"{files[0]} is not a run folder; a table comes first: prb correlate {files[0]} …")
        scores = read_runs(config.bench, config.downstream, condition=config.condition, best_of=config.best_of)
    scores, left_out = checked(scores)
    constructed = [model for model in scores.models if any(fnmatchcase(model, glob) for glob in config.constructed)]
    members: dict[str, list[str]] | UnsetType = UNSET
    if config.unit == "family":
        members = members_of_families(scores, constructed)
        constructed = [family for family, models in members.items() if models[0] in constructed]
        scores = scores.means(members)
        if problem := unfit(scores, "family"):
            raise BadInput(problem)
    units = PLURAL[config.unit]
    sets = {f"all {units}": scores}
    if constructed:
        sets[f"without constructed {units}"] = scores.of([m for m in scores.models if m not in constructed])
    columns = len(scores.bench)
    progress.begin("testing", total=len(sets) * len(scores.downstream) * (columns + comb(columns, 2)))
    measures: tuple[Measure, ...] = tuple(dict.fromkeys(config.measure)) or get_args(Measure)
    return CorrelationSummary(
        unit=config.unit,
        members=members,
        models=list(scores.models),
        constructed=constructed,
        left_out=left_out,
        bench=[column.summary for column in scores.bench],
        downstream=[column.summary for column in scores.downstream],
        sets=[compare_columns(name, part, measures, config.unit, progress) for name, part in sets.items()],
        families={model: scores.families[model] for model in scores.models if model in scores.families},
    )


def compare_columns(name: str, scores: Scores, measures: Sequence[Measure], unit: Unit, progress: Progress) -> ModelSet:
    """Every benchmark against every downstream score, and every two benchmarks against each other."""
    n = len(scores.models)
    if problem := unfit(scores, unit):
        return ModelSet(name, n, problem)
    correlations: list[Agreement] = []
    comparisons: list[Comparison] = []
    for target in scores.downstream:
        for bench in scores.bench:
            cells = list(_correlations(bench, target, measures))
            if unit == "family" and n > MIN_MODELS:
                cells[0].leave_one_out = leave_one_out(measures[0], scores.models, bench.values, target.values)
            correlations += cells
            progress.advance()
        for first, second in combinations(scores.bench, 2):
            comparisons += _comparisons(first, second, target, measures)
            progress.advance()
    tests: tuple[Sequence[Agreement | Comparison], ...] = (correlations, comparisons)
    for rows, measure in product(tests, measures):
        # Holm's correction over all columns, for each measure: the measures are several looks at one question
        same = [row for row in rows if row.measure == measure]
        for row, p in zip(same, holm([row.p for row in same]), strict=True):
            row.p_holm = p
    needed = models_needed(TRUE_RHO, target=TARGET_POWER, seed=SEED)
    reached = Power(TRUE_RHO, power(TRUE_RHO, n, seed=SEED), TARGET_POWER, needed)
    return ModelSet(name, n, None, correlations, comparisons, reached)


def _correlations(bench: ScoreColumn, target: ScoreColumn, measures: Sequence[Measure]) -> Iterator[Agreement]:
    x, y = bench.values, target.values
    models = resampled(x, y, seed=SEED) if len(x) >= MIN_TO_RESAMPLE else None
    # both columns redrawn within their own uncertainty, with the same models, if either has any
    drawn = [column.values[None] if column.draws is None else column.draws for column in (bench, target)]
    uncertain = any(len(rows) > 1 for rows in drawn)
    for name in measures:
        test = permutation_p(name, x, y, seed=SEED, draws=DRAWS)
        yield Agreement(
            bench=bench.name,
            downstream=target.name,
            measure=name,
            value=float(MEASURES[name](x, y)[0]),
            p=test.p,
            p_holm=test.p,
            exact=test.exact,
            interval=models and percentiles(name, *models),
            noise=percentiles(name, *drawn) if uncertain else None,
        )


def leave_one_out(measure: Measure, families: Sequence[str], x: Floats, y: Floats) -> LeaveOneOut:
    """How far a correlation rests on one family."""
    value = float(MEASURES[measure](x, y)[0])
    values, ps = [], []
    for n in range(len(families)):
        rest = np.delete(x, n), np.delete(y, n)
        constant = any(np.ptp(column) == 0 for column in rest)
        values.append(math.nan if constant else float(MEASURES[measure](*rest)[0]))
        ps.append(1.0 if constant else permutation_p(measure, *rest, seed=SEED, draws=DRAWS).p)
    change = np.nan_to_num(np.abs(np.array(values) - value), nan=np.inf)
    most = int(np.argmax(change))
    return LeaveOneOut(
        low=float(np.nanmin(values)),
        high=float(np.nanmax(values)),
        highest_p=max(ps),
        family=families[most],
        value=None if math.isnan(values[most]) else values[most],
        p=ps[most],
    )


def _comparisons(
    first: ScoreColumn, second: ScoreColumn, target: ScoreColumn, measures: Sequence[Measure]
) -> Iterator[Comparison]:
    """The swap test works on ranks; for Pearson's correlation there is Williams' test, if there are enough models."""
    y = target.values
    for name in measures:
        if name != "pearson":
            swap = swap_p(name, first.values, second.values, y, seed=SEED, draws=DRAWS)
            test, p, exact = "swap", swap.p, swap.exact
        elif len(y) >= MIN_FOR_WILLIAMS:
            test, p, exact = "williams", williams(first.values, second.values, y), False
        else:
            continue
        a, b = (float(MEASURES[name](side.values, y)[0]) for side in (first, second))
        yield Comparison(target.name, first.name, second.name, name, a - b, test, p, p, exact)
