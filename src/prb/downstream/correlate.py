"""Does a benchmark predict what happens downstream? Rank agreement over reward models, with honest significance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro

from prb import __version__
from prb.config import Condition
from prb.downstream.correlate_runs import DRAWS, read_runs
from prb.downstream.correlate_table import Column, Scores, checked, read_table, unfit
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.stats.estimate import Floats
from prb.stats.paired import holm
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

Name = Literal["spearman", "kendall", "weighted_kendall", "pearson", "ndcg", "rbo", "regret"]
ENOUGH_TO_REDRAW = 10
"""Fewer models than this are too few to draw models anew from."""
ENOUGH_FOR_WILLIAMS = 20
WANTED_POWER = 0.8
LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class CorrelateConfig:
    """Does a benchmark's ranking of reward models predict downstream? From a table, or from run folders."""

    table: Annotated[Path | None, tyro.conf.Positional] = None
    """CSV, Parquet or JSON, a row a model; a column X_se holds standard errors of X. Without it: run folders."""
    bench: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Columns with benchmark scores (default: all others), or run folders of `prb evaluate`."""
    downstream: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Columns with downstream scores, or run folders of `prb bon` and `prb ppo`."""
    name: str | None = None
    """The column that names the models; default: `model`, else the first column of words."""
    condition: Condition | None = None
    """Which condition of the benchmark runs; default: profile, else their first."""
    best_of: int | None = None
    """Which k of best-of-k; default: N."""
    measure: tyro.conf.UseAppendAction[tuple[Name, ...]] = ()
    """Which measures; the first one is spoken of in the sentences. Default: all, Spearman first."""
    constructed: tyro.conf.UseAppendAction[tuple[str, ...]] = ("noisy*",)
    """Names (with *) of models made to be good or bad: everything is told with and without them."""
    missing: Literal["error", "drop"] = "error"
    """What to do with models that lack a score."""
    rho: float = 0.5
    """The true rank correlation that the power is computed for."""
    draws: int = 20_000
    """Random orders where all of them are too many (more than 9 models)."""
    seed: int = 0
    """Fixes all draws."""
    out: Path | None = None
    """Folder for correlation.json, table.md, table.tex and scatter.svg."""
    format: Literal["table", "markdown", "latex"] = "table"
    """How to print."""
    json: bool = False
    """Print the result as JSON instead."""
    quiet: bool = False
    """No progress."""


def correlate(config: CorrelateConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    _check(config)
    scores, left_out = checked(_read(config), drop_missing=config.missing == "drop")
    made_up = [model for model in scores.models if any(fnmatchcase(model, glob) for glob in config.constructed)]
    sets = {"all models": scores}
    if made_up:
        sets["without constructed models"] = scores.of([m for m in scores.models if m not in made_up])
    columns = len(scores.bench)
    progress.begin("testing", total=len(sets) * len(scores.downstream) * (columns + comb(columns, 2)))
    return {
        "prb": __version__,
        "models": list(scores.models),
        "constructed": made_up,
        "left_out": left_out,
        "bench": [_told(column) for column in scores.bench],
        "downstream": [_told(column) for column in scores.downstream],
        "sets": [_one_set(name, part, config, progress) for name, part in sets.items()],
    }


def _check(config: CorrelateConfig) -> None:
    if not -1 < config.rho < 1 or config.rho == 0:
        raise BadInput(f"--rho {config.rho}: wants a correlation between -1 and 1 that is not 0")
    if config.draws < 100:
        raise BadInput(f"--draws {config.draws}: wants 100 or more")
    if config.best_of is not None and config.best_of < 1:
        raise BadInput(f"--best-of {config.best_of}: wants 1 or more")


def _read(config: CorrelateConfig) -> Scores:
    if config.table is not None:
        return read_table(config.table, config.name, config.bench, config.downstream)
    if not config.bench or not config.downstream:
        raise BadInput("give a table, or run folders with --bench RUN and --downstream RUN")
    how = {"condition": config.condition, "best_of": config.best_of, "seed": config.seed}
    return read_runs(config.bench, config.downstream, **how)  # type: ignore[arg-type]


def _told(column: Column) -> dict[str, Any]:
    errors = None if column.errors is None else column.errors.tolist()
    return {"name": column.name, "values": column.values.tolist(), "errors": errors, "note": column.note}


def _one_set(name: str, scores: Scores, config: CorrelateConfig, progress: Progress) -> dict[str, Any]:
    n = len(scores.models)
    problem = unfit(scores)
    if problem:
        return {"set": name, "n": n, "problem": problem, "correlations": [], "comparisons": [], "power": None}
    measures = tuple(dict.fromkeys(config.measure)) or get_args(Name)
    cells = [c for pair in _pairs(scores) for c in _cells(*pair, measures, config, progress)]
    comparisons = [
        c for down in scores.downstream for c in _comparisons(scores.bench, down, measures, config, progress)
    ]
    _correct(cells)
    _correct(comparisons)
    return {
        "set": name,
        "n": n,
        "problem": None,
        "correlations": cells,
        "comparisons": comparisons,
        "power": {
            "rho": config.rho,
            "power": power(config.rho, n, seed=config.seed),
            "wanted": WANTED_POWER,
            "needed": models_needed(config.rho, target=WANTED_POWER, seed=config.seed),
        },
    }


def _pairs(scores: Scores) -> Iterator[tuple[Column, Column]]:
    return ((bench, down) for down in scores.downstream for bench in scores.bench)


def _cells(
    bench: Column, down: Column, measures: Sequence[str], config: CorrelateConfig, progress: Progress
) -> Iterator[dict[str, Any]]:
    x, y = bench.values, down.values
    models = resampled(x, y, seed=config.seed) if len(x) >= ENOUGH_TO_REDRAW else None
    noise = _measured_again(bench, down, config.seed)
    for name in measures:
        tested = permutation_p(name, x, y, seed=config.seed, draws=config.draws)
        yield {
            "bench": bench.name,
            "downstream": down.name,
            "measure": name,
            "value": float(MEASURES[name](x, y)[0]),
            "p": tested.p,
            "p_holm": None,
            "exact": tested.exact,
            "orders": tested.orders,
            "interval": models and percentiles(name, *models),
            "noise": noise and percentiles(name, *noise),
        }
    progress.advance()


def _measured_again(bench: Column, down: Column, seed: int) -> tuple[Floats, Floats] | None:
    """Both columns as they might have come out, the models staying the same."""
    rng = np.random.default_rng(seed)
    drawn = [_again(column, rng) for column in (bench, down)]
    return None if all(len(rows) == 1 for rows in drawn) else (drawn[0], drawn[1])


def _again(column: Column, rng: np.random.Generator) -> Floats:
    if column.draws is not None:
        return column.draws
    if column.errors is None:
        return column.values[None]
    return column.values + column.errors * rng.normal(size=(DRAWS, len(column.values)))


def _comparisons(
    bench: Sequence[Column], down: Column, measures: Sequence[str], config: CorrelateConfig, progress: Progress
) -> Iterator[dict[str, Any]]:
    for first, second in combinations(bench, 2):
        for name in measures:
            test = _compared(name, first.values, second.values, down.values, config)
            if test is None:
                continue
            a, b = (float(MEASURES[name](side.values, down.values)[0]) for side in (first, second))
            about = {"downstream": down.name, "first": first.name, "second": second.name, "measure": name}
            yield {**about, "difference": a - b, **test, "p_holm": None}
        progress.advance()


def _compared(name: str, first: Floats, second: Floats, down: Floats, config: CorrelateConfig) -> dict[str, Any] | None:
    """Swaps work on ranks, which Pearson's correlation is not about: it has Williams' test, if models are many."""
    if name != "pearson":
        tested = swap_p(name, first, second, down, seed=config.seed, draws=config.draws)
        return {"test": "swap", "p": tested.p, "exact": tested.exact}
    if len(down) < ENOUGH_FOR_WILLIAMS:
        return None
    return {"test": "williams", "p": williams(first, second, down), "exact": False}


def _correct(rows: list[dict[str, Any]]) -> None:
    """Holm over all columns, for each measure: the measures are several looks at one question."""
    for name in {row["measure"] for row in rows}:
        same = [row for row in rows if row["measure"] == name]
        for row, p in zip(same, holm([row["p"] for row in same]), strict=True):
            row["p_holm"] = p
