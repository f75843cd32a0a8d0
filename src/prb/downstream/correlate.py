"""Does a benchmark predict what happens downstream? Rank agreement over reward models, with honest significance.

Scores are columns, one number per model, from a table or from run folders of `prb evaluate`, `prb bon` and `prb ppo`.
Folders hold every item, so a column's uncertainty comes from resampling its clusters. One resample serves all models
and all columns on the same data, so what they share stays shared.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import msgspec
import numpy as np

from prb import __version__
from prb.config import Condition, Count, Name, OutputConfig, Place, Positional, Rare, Words, config
from prb.downstream.bon import trust
from prb.downstream.candidates import GRADES, SAMPLES, SCORES, STAGES, read_stage
from prb.downstream.ppo import ANSWERS, read_answers
from prb.errors import BadInput, unknown
from prb.evaluation.outcomes import read_outcomes
from prb.progress import SILENT, Progress
from prb.registry import split_alias
from prb.runs import CONFIG, SUMMARY, read_identity, read_json, read_lines, read_result
from prb.stats.best_of import curves
from prb.stats.estimate import Floats
from prb.stats.paired import holm
from prb.stats.ranking import MEASURES, models_needed, percentiles, permutation_p, power, resampled, swap_p, williams
from prb.summary import shown_condition

Measure = Literal["spearman", "kendall", "weighted_kendall", "pearson", "ndcg", "rbo", "regret"]
MIN_TO_RESAMPLE = 10
"""Fewer models than this are too few to resample models."""
MIN_FOR_WILLIAMS = 20
TARGET_POWER, TRUE_RHO = 0.8, 0.5
"""How often a study should detect which true rank correlation."""
DRAWS, SEED = 20_000, 0
"""Random orders where there are too many to enumerate (more than 9 models), and what fixes them."""


@config
class CorrelateConfig(OutputConfig):
    """Does a benchmark's ranking of reward models predict downstream? From a table, or from run folders."""

    verb: ClassVar[str] = "correlate"
    from_file: ClassVar[bool] = False
    presentation: ClassVar[frozenset[str]] = frozenset({"format"})

    table: Positional[Place | None] = None
    """CSV, Parquet or JSON, one row per model; a column X_se holds standard errors of X. Without it: run folders."""
    bench: Words[Name] = ()
    """Columns with benchmark scores (default: all others), or run folders of `prb evaluate`."""
    downstream: Words[Name] = ()
    """Columns with downstream scores, or run folders of `prb bon` and `prb ppo`."""
    name: Rare[str | None] = None
    """The column of model names; default: `model`, else the first column of text."""
    condition: Rare[Condition | None] = None
    """Which condition of the benchmark runs; default: profile, else their first."""
    best_of: Count | None = None
    """Which k of best-of-k; default: N."""
    measure: Words[Measure] = ()
    """spearman, kendall, weighted_kendall, pearson, ndcg, rbo, regret; sentences are about the first. Default: all."""
    constructed: Rare[Words[Name]] = ("noisy*",)
    """Names (with *) of models constructed to be good or bad; all results are given with and without them."""
    missing: Rare[Literal["error", "drop"]] = "error"
    """What to do with models that lack a score."""
    out: Place | None = None
    """Folder for correlation.json, table.md, table.tex and scatter.svg."""
    format: Literal["table", "markdown", "latex"] = "table"
    """How to print."""


@dataclass
class Agreement:
    """How far a benchmark ranks models as a downstream score does."""

    bench: str
    downstream: str
    measure: str
    value: float
    p: float
    p_holm: float | None
    exact: bool
    orders: int
    interval: tuple[float, float] | None
    """Over models drawn anew; `None` with few of them."""
    noise: tuple[float, float] | None
    """Over items drawn anew, with the same models; `None` where nothing is known about items."""


@dataclass
class Comparison:
    """Two benchmarks against the same downstream score."""

    downstream: str
    first: str
    second: str
    measure: str
    difference: float
    test: str
    p: float
    exact: bool
    p_holm: float | None


@dataclass(frozen=True)
class Power:
    rho: float
    power: float
    wanted: float
    needed: int | None


@dataclass(frozen=True)
class ModelSet:
    """All models, or those that were not constructed."""

    set: str
    n: int
    problem: str | None = None
    """Why nothing was computed."""
    correlations: list[Agreement] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    power: Power | None = None


def correlate(config: CorrelateConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    """The content of `correlation.json` but for its sentences; nothing is written."""
    scores, left_out = checked(read_scores(config), drop_missing=config.missing == "drop")
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
        "sets": msgspec.to_builtins([_one_set(name, part, config, progress) for name, part in sets.items()]),
    }


def read_scores(config: CorrelateConfig) -> Scores:
    if config.table is not None:
        return read_table(config.table, config.name, config.bench, config.downstream)
    if not config.bench or not config.downstream:
        raise BadInput("give a table, or run folders with --bench RUN and --downstream RUN")
    files = [name for name in (*config.bench, *config.downstream) if Path(name).is_file()]
    if files:
        raise BadInput(f"{files[0]} is not a run folder; a table comes first: prb correlate {files[0]} …")
    return read_runs(config.bench, config.downstream, condition=config.condition, best_of=config.best_of, seed=SEED)


def _as_dict(column: ScoreColumn) -> dict[str, Any]:
    errors = None if column.errors is None else column.errors.tolist()
    return {"name": column.name, "values": column.values.tolist(), "errors": errors, "note": column.note}


def _one_set(name: str, scores: Scores, config: CorrelateConfig, progress: Progress) -> ModelSet:
    n = len(scores.models)
    if problem := unfit(scores):
        return ModelSet(name, n, problem)
    measures = tuple(dict.fromkeys(config.measure)) or get_args(Measure)
    correlations = [
        cell
        for target in scores.downstream
        for bench in scores.bench
        for cell in _correlations(bench, target, measures, progress)
    ]
    comparisons = [
        row for target in scores.downstream for row in _comparisons(scores.bench, target, measures, progress)
    ]
    _correct(correlations)
    _correct(comparisons)
    reached = power(TRUE_RHO, n, seed=SEED)
    needed = models_needed(TRUE_RHO, target=TARGET_POWER, seed=SEED)
    return ModelSet(name, n, None, correlations, comparisons, Power(TRUE_RHO, reached, TARGET_POWER, needed))


def _correlations(
    bench: ScoreColumn, target: ScoreColumn, measures: Sequence[str], progress: Progress
) -> Iterator[Agreement]:
    x, y = bench.values, target.values
    models = resampled(x, y, seed=SEED) if len(x) >= MIN_TO_RESAMPLE else None
    noise = _remeasured(bench, target, SEED)
    for name in measures:
        test = permutation_p(name, x, y, seed=SEED, draws=DRAWS)
        yield Agreement(
            bench=bench.name,
            downstream=target.name,
            measure=name,
            value=float(MEASURES[name](x, y)[0]),
            p=test.p,
            p_holm=None,
            exact=test.exact,
            orders=test.orders,
            interval=models and percentiles(name, *models),
            noise=noise and percentiles(name, *noise),
        )
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
    progress: Progress,
) -> Iterator[Comparison]:
    """Two benchmarks against the same target. The swap test works on ranks; for Pearson's correlation there is
    Williams' test, if there are enough models."""
    y = target.values
    for first, second in combinations(bench, 2):
        for name in measures:
            if name != "pearson":
                swap = swap_p(name, first.values, second.values, y, seed=SEED, draws=DRAWS)
                test, p, exact = "swap", swap.p, swap.exact
            elif len(y) >= MIN_FOR_WILLIAMS:
                test, p, exact = "williams", williams(first.values, second.values, y), False
            else:
                continue
            a, b = (float(MEASURES[name](side.values, y)[0]) for side in (first, second))
            yield Comparison(target.name, first.name, second.name, name, a - b, test, p, exact, None)
        progress.advance()


def _correct(rows: Sequence[Agreement | Comparison]) -> None:
    """Holm's correction over all columns, for each measure: the measures are several looks at one question."""
    for name in {row.measure for row in rows}:
        same = [row for row in rows if row.measure == name]
        for row, p in zip(same, holm([row.p for row in same]), strict=True):
            row.p_holm = p


# Scores as columns.

MIN_MODELS, MAX_MODELS = 3, 500
NAMES = ("model", "model name", "name", "rm", "reward model")
"""Usual headers of the column of model names."""
MISSING = frozenset({"", "-", "–", "—", "na", "n/a", "nan", "none", "null"})
ERROR = "_se"
"""A column `X_se` holds the standard errors of column `X`."""
BENCH, DOWNSTREAM = "bench:", "downstream:"
"""Prefixes by which a header says which side it is on."""


@dataclass(frozen=True)
class ScoreColumn:
    """One score per model; higher is better."""

    name: str
    values: Floats
    """NaN where a score is missing."""
    errors: Floats | None = None
    """Standard errors, if known."""
    draws: Floats | None = None
    """Resamples × models: the column recomputed from resampled clusters."""
    note: str = ""
    """How far its numbers can be trusted."""

    def of(self, rows: Sequence[int]) -> ScoreColumn:
        """The same column for some of the models."""
        at = list(rows)
        errors = None if self.errors is None else self.errors[at]
        draws = None if self.draws is None else self.draws[:, at]
        return replace(self, values=self.values[at], errors=errors, draws=draws)


@dataclass(frozen=True)
class Scores:
    models: tuple[str, ...]
    bench: tuple[ScoreColumn, ...]
    downstream: tuple[ScoreColumn, ...]

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:
        return self.bench + self.downstream

    def of(self, models: Sequence[str]) -> Scores:
        rows = [self.models.index(model) for model in models]
        bench, downstream = (tuple([c.of(rows) for c in side]) for side in (self.bench, self.downstream))
        return Scores(tuple(models), bench, downstream)


def checked(scores: Scores, *, drop_missing: bool) -> tuple[Scores, list[str]]:
    """Scores that can be correlated, and the models left out because they lack a score."""
    repeated = sorted({model for model in scores.models if scores.models.count(model) > 1})
    if repeated:
        raise BadInput(f"{_quoted(repeated)}: more than one row; each model needs a unique name")
    gaps = [(m, c.name) for c in scores.columns for m, v in zip(scores.models, c.values, strict=True) if np.isnan(v)]
    left_out = [model for model in scores.models if any(model == lacking for lacking, _ in gaps)]
    if left_out and not drop_missing:
        first = f"{gaps[0][0]!r} has none in column {gaps[0][1]!r}"
        raise BadInput(f"{_count(len(left_out))} with missing scores, {first}; `--missing drop` leaves such models out")
    kept = scores.of([model for model in scores.models if model not in left_out])
    problem = unfit(kept)
    if problem:
        raise BadInput(problem + (f" ({_count(len(left_out))} left out)" if left_out else ""))
    return kept, left_out


def unfit(scores: Scores) -> str | None:
    """Why these scores cannot be correlated, if so."""
    n = len(scores.models)
    if not MIN_MODELS <= n <= MAX_MODELS:
        return f"{_count(n)} with all scores: correlating needs {MIN_MODELS} to {MAX_MODELS}"
    constant = [column.name for column in scores.columns if np.ptp(column.values) == 0]
    if constant:
        return f"column {constant[0]!r} is the same for all {n} models: there is nothing to correlate"
    return None


def _count(n: int) -> str:
    return f"{n} model" if n == 1 else f"{n} models"


def _quoted(names: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more


def read_table(path: Path, name: str | None, bench: Sequence[str], downstream: Sequence[str]) -> Scores:
    """CSV, Parquet, JSON (a list of objects) or JSONL; one row per model."""
    rows = [{_header(key): value for key, value in row.items()} for row in _rows(path)]
    if not rows:
        raise BadInput(f"{path} holds no rows")
    headers = list(dict.fromkeys(key for row in rows for key in row))
    key = _name_column(path, headers, rows, name)
    # mostly numbers: a single `inf` or `12*` is an error to report, not a reason to take the column for text
    cells = {h: [_is_number(row[h]) for row in rows if not _is_missing(row.get(h))] for h in headers if h != key}
    numeric = [h for h, numbers in cells.items() if sum(numbers) > len(numbers) / 2]
    sides = _sides(path, headers, numeric, bench, downstream)
    models = tuple(str(row.get(key) if row.get(key) is not None else "").strip() for row in rows)
    if "" in models:
        raise BadInput(f"{path}: row {models.index('') + 1} has no name in column {key!r}")

    def numbers(header: str) -> Floats:
        for model, row in zip(models, rows, strict=True):
            cell = row.get(header)
            if not _is_missing(cell) and not _is_number(cell):
                raise BadInput(f"{path}: column {header!r} of {model!r} is {str(cell)[:40]!r}, not a number")
        return np.array([np.nan if _is_missing(row.get(header)) else float(row[header]) for row in rows])

    def column(header: str) -> ScoreColumn:
        values, error = numbers(header), header + ERROR
        errors = numbers(error) if error in headers else None
        if errors is not None and not (errors[~np.isnan(values)] >= 0).all():
            raise BadInput(f"{path}: column {error!r} lacks a standard error of a score, or has a negative one")
        return ScoreColumn(header.removeprefix(BENCH).removeprefix(DOWNSTREAM).strip(), values, errors)

    return Scores(models, *(tuple(map(column, side)) for side in sides))


def _header(text: str) -> str:
    """A header may be broken over lines."""
    return " ".join(str(text).split())


def _name_column(path: Path, headers: list[str], rows: list[dict[str, Any]], name: str | None) -> str:
    if name is not None:
        return _known(name, headers)
    usual = [h for h in headers if h.lower() in NAMES]
    texts = [h for h in headers if any(isinstance(row.get(h), str) and not _is_number(row[h]) for row in rows)]
    if not usual and not texts:
        raise BadInput(f"{path} has no column of model names; name it with --name")
    return (usual or texts)[0]


def _sides(
    path: Path, headers: list[str], numeric: list[str], bench: Sequence[str], downstream: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Benchmark and downstream headers: as requested, else by prefix, else the first and second of just two columns."""
    scores = [h for h in numeric if not (h.endswith(ERROR) and h.removesuffix(ERROR) in headers)]
    targets = [_known(name, headers, DOWNSTREAM) for name in downstream]
    targets = targets or [h for h in scores if h.startswith(DOWNSTREAM)]
    if not targets and not bench and len(scores) == 2:
        targets = scores[1:]
    if not targets:
        listed = ", ".join(map(repr, scores)) or "none"
        raise BadInput(f"{path}: name the columns of downstream scores with --downstream; columns of numbers: {listed}")
    predictors = [_known(name, headers, BENCH) for name in bench] or [h for h in scores if h not in targets]
    both = [name for name in predictors if name in targets]
    if both:
        raise BadInput(f"{path}: {_quoted(both)} cannot be on both sides")
    if not predictors:
        raise BadInput(f"{path}: no column is left for a benchmark")
    return list(dict.fromkeys(predictors)), list(dict.fromkeys(targets))


def _known(name: str, headers: list[str], prefix: str = "") -> str:
    name = _header(name)
    for header in headers:
        if name in (header, header.removeprefix(prefix).strip()):
            return header
    raise unknown("column", name, headers)


def _is_missing(cell: Any) -> bool:
    return cell is None or str(cell).strip().lower() in MISSING


def _is_number(cell: Any) -> bool:
    try:
        return not isinstance(cell, bool) and math.isfinite(float(cell))
    except (TypeError, ValueError):
        return False


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give runs with --bench and --downstream")
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    readers = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".json": read_json, ".jsonl": read_lines}
    if path.suffix.lower() not in readers:
        raise BadInput(f"{path}: unknown format; known are {', '.join(readers)}")
    rows = readers[path.suffix.lower()](path)
    rows = list(rows) if not isinstance(rows, dict) else [None]
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} must be a list of objects, one per model")
    return rows


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    names = [_header(cell) for cell in header]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BadInput(f"{path}: more than one column is named {repeated[0]!r}")
    for number, line in enumerate(lines, 1):
        if len(line) > len(names):
            raise BadInput(f"{path}: row {number} has {len(line)} cells, the header has {len(names)}")
    return [dict(zip(names, line, strict=False)) for line in lines if not all(map(_is_missing, line))]


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {error}") from None
    return rows


# Columns of run folders.

RESAMPLES = 2000
MAX_CELLS = 1 << 22
"""Resampling weights held in memory at once."""
IGNORED_SETTINGS = frozenset({"model", "condition", "dataset"})
"""Settings in which two runs of one column may differ; the data are compared by fingerprint."""
Cells = dict[str, dict[str, list[float]]]
"""Model → cluster → the values of its items."""


@dataclass(frozen=True)
class RunColumn:
    """A column as a run folder holds it: item by item."""

    name: str
    data: str
    """Fingerprint of the dataset; columns on equal data are resampled together."""
    cells: Cells
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run; runs that differ in one are not the same column."""
    note: str = ""


def read_runs(
    bench: Sequence[str], downstream: Sequence[str], *, condition: str | None, best_of: int | None, seed: int
) -> Scores:
    predictors = _merged(_benchmark(Path(folder), condition) for folder in bench)
    targets = _merged(_downstream(Path(folder), best_of) for folder in downstream)
    models = tuple(dict.fromkeys(model for column in [*predictors, *targets] for model in column.cells))
    columns = resampled_columns([*predictors, *targets], models, seed)
    return Scores(models, tuple(columns[: len(predictors)]), tuple(columns[len(predictors) :]))


def _merged(read: Iterable[RunColumn]) -> list[RunColumn]:
    """Folders that hold different models on the same data are one column."""
    columns: dict[str, RunColumn] = {}
    for column in read:
        known = columns.setdefault(column.name, column)
        if known is column:
            continue
        if known.data != column.data:
            raise BadInput(f"two runs on {column.name!r} did not use the same data; correlate them one at a time")
        names = sorted({*known.settings, *column.settings})
        differing = [name for name in names if known.settings.get(name) != column.settings.get(name)]
        if differing:
            raise BadInput(
                f"two runs on {column.name!r} differ in {', '.join(differing)}; correlate them one at a time"
            )
        both = [model for model in column.cells if model in known.cells]
        if both:
            raise BadInput(f"{both[0]!r} has two scores in {column.name!r}: leave one of the runs out")
        columns[column.name] = replace(known, cells=known.cells | column.cells)
    return list(columns.values())


def _finished(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Verb, settings and summary of a run."""
    if not (folder / CONFIG).exists():
        raise BadInput(f"{folder} is not a run: it has no {CONFIG}")
    config = read_identity(folder)
    verb = next((verb for verb in ("evaluate", "bon", "ppo") if verb in config), None)
    if verb is None:
        raise BadInput(f"{folder} is not a run of `prb evaluate`, `prb bon` or `prb ppo`")
    return verb, config[verb], read_result(folder, SUMMARY)


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}


def short_name(dataset: str) -> str:
    """A dataset's name without the folders its file is in."""
    if dataset.startswith("hub:"):
        return dataset
    spec, _, path = dataset.partition("?path=")
    return f"{spec} {Path(path).name}" if path else Path(dataset).name


def _benchmark(folder: Path, condition: str | None) -> RunColumn:
    verb, settings, summary = _finished(folder)
    if verb != "evaluate" or summary["task"] != "pairs":
        raise BadInput(f"{folder}: --bench must be a run of `prb evaluate` on pairs")
    conditions = settings["condition"]
    condition = condition or shown_condition(conditions)
    if condition not in conditions:
        raise BadInput(f"{folder} has no condition {condition!r}; it has {', '.join(conditions)}")
    cells: Cells = {split_alias(model)[0]: {} for model in settings["model"]}
    outcomes = read_outcomes(folder)
    for (model, shown), column in outcomes.of.items():
        if shown == condition:
            for cluster, credit in zip(outcomes.clusters, column.credit.tolist(), strict=True):
                if not math.isnan(credit):
                    cells[model].setdefault(cluster, []).append(credit)
    data = summary["dataset"]
    split = f" {data['split']}" if data["split"] else ""
    name = f"{short_name(data['name'])}{split} ({condition})"
    return RunColumn(name, data["fingerprint"], cells, _comparable(settings))


def _downstream(folder: Path, best_of: int | None) -> RunColumn:
    verb, settings, summary = _finished(folder)
    if verb not in ("bon", "ppo"):
        raise BadInput(f"{folder}: --downstream must be a run of `prb bon` or `prb ppo`")
    data, where = summary["dataset"], f"({summary['policy']['spec']}, {summary['condition']})"
    comparable = _comparable(settings)
    if verb == "ppo":
        name, cells = f"PPO on {short_name(data['name'])} {where}", _ppo_cells(folder, summary)
    else:
        k = best_of or summary["n"]
        name, cells = f"best of {k} on {short_name(data['name'])} {where}", _best_of_cells(folder, summary, k)
        if settings["policy"] is None:  # answers of a file, whose name does not say what it holds
            comparable["candidates"] = summary["policy"]["fingerprint"]
    return RunColumn(name, data["fingerprint"], cells, comparable, trust(summary))


def _best_of_cells(folder: Path, summary: Mapping[str, Any], k: int) -> Cells:
    """The expected grade of the best of k, for each query that was sampled, graded and scored completely."""
    if "clusters" not in summary:
        raise BadInput(f"{folder} was summarized by an older prb: run its command again, nothing is sampled again")
    for name in STAGES:
        _require(folder, name)
    samples, scores, grades = (read_stage(folder / name, STAGES[name]) for name in (SAMPLES, SCORES, GRADES))
    n = summary["n"]
    text = {place: line["text"] for place, line in samples.items()}
    if lost := [pair for pair in summary["clusters"] if any((pair, i) not in text for i in range(n))]:
        raise _incomplete(folder, SAMPLES, lost)
    grade_of = {(pair, text.get((pair, number))): line["score"] for (pair, number), line in grades.items()}
    usable = [pair for pair in summary["clusters"] if all(text[pair, i] is not None for i in range(n))]
    if lost := [pair for pair in usable if any((pair, text[pair, i]) not in grade_of for i in range(n))]:
        raise _incomplete(folder, GRADES, lost)
    models = [result["model"] for result in summary["results"]]
    if lost := [pair for pair in usable if any((m, pair, i) not in scores for m in models for i in range(n))]:
        raise _incomplete(folder, SCORES, lost)
    rows: dict[tuple[str, str], Floats] = {}
    for (model, pair, number), line in scores.items():
        rows.setdefault((model, pair), np.full(n, np.nan))[number] = line["score"]
    cells: Cells = {model: {} for model in models}
    for (model, pair), row in rows.items():
        if model not in cells:  # added after the summary, so perhaps not scored completely
            continue
        graded = np.array([grade_of.get((pair, text.get((pair, i)))) for i in range(n)], dtype=np.float64)
        value = float(curves(row[None], graded[None], [k])[0, 0])
        if not np.isnan(value):
            cells[model].setdefault(summary["clusters"][pair], []).append(value)
    return cells


def _ppo_cells(folder: Path, summary: Mapping[str, Any]) -> Cells:
    held_out = summary["held_out"]
    if not held_out["prompts"] or "grade" not in held_out:
        raise BadInput(f"{folder} has no graded held-out answers")
    cells: dict[str, list[float]] = {}
    answers = [a for (stage, _), a in read_answers(_require(folder, ANSWERS)).items() if stage == "after"]
    if len(answers) < held_out["prompts"]:
        raise BadInput(f"{folder / ANSWERS} lacks answers to held-out prompts; run its command again")
    for answer in answers:
        if answer.grade is not None and answer.grade.score is not None:
            cells.setdefault(answer.cluster, []).append(answer.grade.score)
    return {summary["model"]["spec"]: cells}


def _incomplete(folder: Path, name: str, pairs: Sequence[str]) -> BadInput:
    return BadInput(f"{folder / name} lacks lines of {len(pairs)} rows, such as {pairs[0]!r}; run its command again")


def _require(folder: Path, name: str) -> Path:
    if not (folder / name).exists():
        raise BadInput(f"{folder} is incomplete: it has no {name}")
    return folder / name


def resampled_columns(
    columns: Sequence[RunColumn], models: Sequence[str], seed: int = 0, draws: int = RESAMPLES
) -> list[ScoreColumn]:
    """The columns with their resamples; the clusters of a dataset are drawn once for all columns on it."""
    clusters: dict[str, set[str]] = {}
    for column in columns:
        clusters.setdefault(column.data, set()).update(c for by_cluster in column.cells.values() for c in by_cluster)
    return [_resampled(column, models, sorted(clusters[column.data]), seed, draws) for column in columns]


def _resampled(column: RunColumn, models: Sequence[str], clusters: Sequence[str], seed: int, draws: int) -> ScoreColumn:
    """Means over clusters drawn with replacement; a draw without any item of a model repeats its value."""
    cells = [[column.cells.get(model, {}).get(cluster, []) for model in models] for cluster in clusters]
    sums = np.array([[sum(cell) for cell in row] for row in cells])
    sizes = np.array([[len(cell) for cell in row] for row in cells], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        values = sums.sum(axis=0) / sizes.sum(axis=0)
    count = len(clusters)
    if count < 2:
        return ScoreColumn(column.name, values, note=column.note)
    rng = np.random.default_rng([seed, zlib.crc32(column.data.encode())])  # other data, other draws
    rows, step = [], max(1, MAX_CELLS // count)
    for start in range(0, draws, step):
        weights = rng.multinomial(count, np.full(count, 1 / count), size=min(step, draws - start)).astype(np.float64)
        total, size = weights @ sums, weights @ sizes
        rows.append(np.where(size > 0, total / np.where(size > 0, size, 1), values))
    drawn = np.concatenate(rows)
    return ScoreColumn(column.name, values, drawn.std(axis=0, ddof=1), drawn, column.note)
