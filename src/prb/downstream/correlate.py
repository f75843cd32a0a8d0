"""Does a benchmark predict what happens downstream? Rank agreement over reward models, with honest significance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from prb import __version__
from prb.config import Condition, Count, Name, OutputConfig, Place, Positional, Seed, Words, config
from prb.downstream.run_columns import RESAMPLES, read_runs
from prb.downstream.tables import ScoreColumn, Scores, checked, read_table, unfit
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.stats.estimate import Floats
from prb.stats.paired import correct
from prb.stats.ranking import (
    MEASURES,
    models_needed,
    percentiles,
    permutation_p,
    power,
    resampled,
    swap_p,
    williams,
)

Measure = Literal["spearman", "kendall", "weighted_kendall", "pearson", "ndcg", "rbo", "regret"]
MIN_TO_RESAMPLE = 10
"""Fewer models than this are too few to resample models."""
MIN_FOR_WILLIAMS = 20
TARGET_POWER = 0.8


@config
class CorrelateConfig(OutputConfig):
    """Does a benchmark's ranking of reward models predict downstream? From a table, or from run folders."""

    verb: ClassVar[str] = "correlate"
    presentation: ClassVar[frozenset[str]] = frozenset({"format"})

    table: Positional[Place | None] = None
    """CSV, Parquet or JSON, one row per model; a column X_se holds standard errors of X. Without it: run folders."""
    bench: Words[Name] = ()
    """Columns with benchmark scores (default: all others), or run folders of `prb evaluate`."""
    downstream: Words[Name] = ()
    """Columns with downstream scores, or run folders of `prb bon` and `prb ppo`."""
    name: str | None = None
    """The column of model names; default: `model`, else the first column of text."""
    condition: Condition | None = None
    """Which condition of the benchmark runs; default: profile, else their first."""
    best_of: Count | None = None
    """Which k of best-of-k; default: N."""
    measure: Words[Measure] = ()
    """spearman, kendall, weighted_kendall, pearson, ndcg, rbo, regret; sentences are about the first. Default: all."""
    constructed: Words[Name] = ("noisy*",)
    """Names (with *) of models constructed to be good or bad; all results are given with and without them."""
    missing: Literal["error", "drop"] = "error"
    """What to do with models that lack a score."""
    rho: Annotated[float, Field(gt=-1, lt=1)] = 0.5
    """The true rank correlation that power is computed for."""
    draws: Annotated[int, Field(ge=100)] = 20_000
    """Random orders where there are too many to enumerate (more than 9 models)."""
    seed: Seed = 0
    """Fixes all draws."""
    out: Place | None = None
    """Folder for correlation.json, table.md, table.tex and scatter.svg."""
    format: Literal["table", "markdown", "latex"] = "table"
    """How to print."""

    @model_validator(mode="after")
    def check_rho(self) -> Self:
        if self.rho == 0:
            raise BadInput("rho must not be 0: there is no power to detect it")
        return self


def correlate(config: CorrelateConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    """The content of `correlation.json` but for its sentences; nothing is written."""
    scores, left_out = checked(_read(config), drop_missing=config.missing == "drop")
    constructed = [model for model in scores.models if any(fnmatchcase(model, glob) for glob in config.constructed)]
    sets = {"all models": scores}
    if constructed:
        sets["without constructed models"] = scores.of([m for m in scores.models if m not in constructed])
    columns = len(scores.bench)
    progress.begin("testing", total=len(sets) * len(scores.downstream) * (columns + comb(columns, 2)))
    return {
        "prb": __version__,
        "models": list(scores.models),
        "constructed": constructed,
        "left_out": left_out,
        "bench": [_as_dict(column) for column in scores.bench],
        "downstream": [_as_dict(column) for column in scores.downstream],
        "sets": [_one_set(name, part, config, progress) for name, part in sets.items()],
    }


def _read(config: CorrelateConfig) -> Scores:
    if config.table is not None:
        return read_table(config.table, config.name, config.bench, config.downstream)
    if not config.bench or not config.downstream:
        raise BadInput("give a table, or run folders with --bench RUN and --downstream RUN")
    files = [name for name in (*config.bench, *config.downstream) if Path(name).is_file()]
    if files:
        raise BadInput(f"{files[0]} is not a run folder; a table comes first: prb correlate {files[0]} …")
    return read_runs(
        config.bench, config.downstream, condition=config.condition, best_of=config.best_of, seed=config.seed
    )


def _as_dict(column: ScoreColumn) -> dict[str, Any]:
    errors = None if column.errors is None else column.errors.tolist()
    return {"name": column.name, "values": column.values.tolist(), "errors": errors, "note": column.note}


def _one_set(name: str, scores: Scores, config: CorrelateConfig, progress: Progress) -> dict[str, Any]:
    n = len(scores.models)
    problem = unfit(scores)
    if problem:
        return {"set": name, "n": n, "problem": problem, "correlations": [], "comparisons": [], "power": None}
    measures = tuple(dict.fromkeys(config.measure)) or get_args(Measure)
    correlations = [
        cell
        for target in scores.downstream
        for bench in scores.bench
        for cell in _correlations(bench, target, measures, config, progress)
    ]
    comparisons = [
        row for target in scores.downstream for row in _comparisons(scores.bench, target, measures, config, progress)
    ]
    _correct(correlations)
    _correct(comparisons)
    return {
        "set": name,
        "n": n,
        "problem": None,
        "correlations": correlations,
        "comparisons": comparisons,
        "power": {
            "rho": config.rho,
            "power": power(config.rho, n, seed=config.seed),
            "wanted": TARGET_POWER,
            "needed": models_needed(config.rho, target=TARGET_POWER, seed=config.seed),
        },
    }


def _correlations(
    bench: ScoreColumn, target: ScoreColumn, measures: Sequence[str], config: CorrelateConfig, progress: Progress
) -> Iterator[dict[str, Any]]:
    x, y = bench.values, target.values
    models = resampled(x, y, seed=config.seed) if len(x) >= MIN_TO_RESAMPLE else None
    noise = _remeasured(bench, target, config.seed)
    for name in measures:
        test = permutation_p(name, x, y, seed=config.seed, draws=config.draws)
        yield {
            "bench": bench.name,
            "downstream": target.name,
            "measure": name,
            "value": float(MEASURES[name](x, y)[0]),
            "p": test.p,
            "p_holm": None,
            "exact": test.exact,
            "orders": test.orders,
            "interval": models and percentiles(name, *models),
            "noise": noise and percentiles(name, *noise),
        }
    progress.advance()


def _remeasured(bench: ScoreColumn, target: ScoreColumn, seed: int) -> tuple[Floats, Floats] | None:
    """Both columns redrawn within their own uncertainty, with the same models; nothing if neither has any."""
    rng = np.random.default_rng(seed)

    def redrawn(column: ScoreColumn) -> Floats:
        if column.draws is not None:
            return column.draws
        if column.errors is None:
            return column.values[None]
        return column.values + column.errors * rng.normal(size=(RESAMPLES, len(column.values)))

    drawn = redrawn(bench), redrawn(target)
    return None if all(len(rows) == 1 for rows in drawn) else drawn


def _comparisons(
    bench: Sequence[ScoreColumn],
    target: ScoreColumn,
    measures: Sequence[str],
    config: CorrelateConfig,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Two benchmarks against the same target. The swap test works on ranks; for Pearson's correlation there is
    Williams' test, if there are enough models."""
    y = target.values
    for first, second in combinations(bench, 2):
        for name in measures:
            if name != "pearson":
                tested = swap_p(name, first.values, second.values, y, seed=config.seed, draws=config.draws)
                test = {"test": "swap", "p": tested.p, "exact": tested.exact}
            elif len(y) >= MIN_FOR_WILLIAMS:
                test = {"test": "williams", "p": williams(first.values, second.values, y), "exact": False}
            else:
                continue
            a, b = (float(MEASURES[name](side.values, y)[0]) for side in (first, second))
            about = {"downstream": target.name, "first": first.name, "second": second.name, "measure": name}
            yield {**about, "difference": a - b, **test, "p_holm": None}
        progress.advance()


def _correct(rows: list[dict[str, Any]]) -> None:
    """Holm's correction over all columns, for each measure: the measures are several looks at one question."""
    for name in {row["measure"] for row in rows}:
        correct([row for row in rows if row["measure"] == name])
