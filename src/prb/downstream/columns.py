"""Scores of models as columns: from a table, or from run folders of `prb evaluate`, `prb bon` and `prb ppo`.

Folders hold every item, so a column's uncertainty comes from resampling its clusters. One resample serves all models
and all columns on the same data, so what they share stays shared.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from prb.data.source import file_source
from prb.downstream.answers import GRADES, SAMPLES, SCORES, Sample, SampleGrade, Score, read_stage
from prb.downstream.bon import BonSummary
from prb.downstream.ppo import ANSWERS, HeldOutAnswer, PpoSummary
from prb.errors import BadInput, unknown
from prb.evaluation.outcomes import read_outcomes
from prb.runs import CONFIG, SUMMARY, read_identity, read_result
from prb.stats.credit import curves
from prb.stats.estimate import Floats
from prb.summary import Summary, short_name

Unit = Literal["model", "family"]
SEED = 0
"""Of all draws."""
MIN_MODELS, MAX_MODELS = 3, 500
PLURAL: dict[Unit, str] = {"model": "models", "family": "families"}
RESAMPLES = 2000


class ColumnSummary(Struct):
    name: str
    values: list[float]
    errors: list[float] | None
    note: str = ""


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

    @property
    def summary(self) -> ColumnSummary:
        errors = None if self.errors is None else self.errors.tolist()
        return ColumnSummary(self.name, self.values.tolist(), errors, self.note)

    def redrawn(self, rng: np.random.Generator) -> Floats:
        """Rows that the column might have been, had it been measured again; itself if nothing is known about that."""
        if self.draws is not None:
            return self.draws
        if self.errors is None:
            return self.values[None]
        return self.values + self.errors * rng.normal(size=(RESAMPLES, len(self.values)))


@dataclass(frozen=True)
class Scores:
    models: tuple[str, ...]
    bench: tuple[ScoreColumn, ...]
    downstream: tuple[ScoreColumn, ...]
    families: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:
        return self.bench + self.downstream

    def of(self, models: Sequence[str]) -> Scores:
        """Of some of the models."""
        at = [self.models.index(model) for model in models]

        def part(column: ScoreColumn) -> ScoreColumn:
            errors = None if column.errors is None else column.errors[at]
            draws = None if column.draws is None else column.draws[:, at]
            return replace(column, values=column.values[at], errors=errors, draws=draws)

        return Scores(tuple(models), tuple(map(part, self.bench)), tuple(map(part, self.downstream)), self.families)


def checked(scores: Scores) -> tuple[Scores, list[str]]:
    """Scores that can be correlated, and the models left out because they lack a score."""
    repeated = [model for model, count in Counter(scores.models).items() if count > 1]
    if repeated:
        raise BadInput(f"{repeated[0]!r}: more than one row; each model needs a unique name")
    lacking = np.asarray(np.isnan([column.values for column in scores.columns]).any(axis=0)).tolist()
    left_out = list(compress(scores.models, lacking))
    kept = scores.of([model for model in scores.models if model not in left_out])
    if problem := unfit(kept):
        raise BadInput(problem + (f" (left out for a missing score: {len(left_out)})" if left_out else ""))
    return kept, left_out


def unfit(scores: Scores, unit: Unit = "model") -> str | None:
    """Why these scores cannot be correlated, if so."""
    n = len(scores.models)
    if not MIN_MODELS <= n <= MAX_MODELS:
        return f"{n} {unit if n == 1 else PLURAL[unit]} with all scores: correlating needs {MIN_MODELS} to {MAX_MODELS}"
    constant = [column.name for column in scores.columns if np.ptp(column.values) == 0]
    if constant:
        return f"column {constant[0]!r} is the same for all {n} {PLURAL[unit]}: there is nothing to correlate"
    return None


# --- families ---
def read_families(path: Path) -> dict[str, str]:
    rows = _rows(path)
    if not rows or not {"model", "family"} <= set(rows[0]):
        raise BadInput(f"{path} must have the columns model and family")
    return {str(row["model"]).strip(): str(row["family"]).strip() for row in rows if row["family"]}


def members_of_families(scores: Scores, constructed: Collection[str]) -> dict[str, list[str]]:
    """The models of each family; either all of them were constructed, or none."""
    members: dict[str, list[str]] = {}
    for model in scores.models:
        family = scores.families.get(model)
        if family is None:
            raise BadInput(
                f"{model!r} has no family: --unit family needs one for every model (column family, --families)"
            )
        members.setdefault(family, []).append(model)
    for family, models in members.items():
        if len({model in constructed for model in models}) > 1:
            raise BadInput(f"family {family!r} has constructed models and others: give them different families")
    return members


def family_means(scores: Scores, members: Mapping[str, Sequence[str]]) -> Scores:
    """Scores of families: the mean of the models' scores, of each resample too.

    Standard errors from a table say nothing of what models share, and are combined as if they were independent.
    """
    at = [[scores.models.index(model) for model in models] for models in members.values()]

    def means(column: ScoreColumn) -> ScoreColumn:
        values = np.array([column.values[rows].mean() for rows in at])
        if column.draws is not None:
            draws = np.stack([column.draws[:, rows].mean(axis=1) for rows in at], axis=1)
            return replace(column, values=values, errors=draws.std(axis=0, ddof=1), draws=draws)
        if column.errors is None:
            return replace(column, values=values)
        errors = np.array([np.sqrt(np.square(column.errors[rows]).sum()) / len(rows) for rows in at])
        return replace(column, values=values, errors=errors)

    return Scores(tuple(members), tuple(map(means, scores.bench)), tuple(map(means, scores.downstream)))


# --- columns of a table ---

NAMES = ("model", "model name", "name", "rm", "reward model")
"""Usual headers of the column of model names."""
MISSING = frozenset({"", "-", "–", "—", "na", "n/a", "nan", "none", "null"})
ERROR = "_se"
"""A column `X_se` holds the standard errors of column `X`."""
BENCH, DOWNSTREAM = "bench:", "downstream:"
"""Prefixes by which a header says which side it is on."""
CLUSTER = "cluster"
"""A table with this column has a row for each model and cluster, of equal weight, and is resampled by cluster."""


def read_table(path: Path, bench: Sequence[str], downstream: Sequence[str]) -> Scores:
    """CSV, Parquet, JSON (a list of objects) or JSONL; one row per model, or per model and cluster."""
    rows = [{_header(key): value for key, value in row.items()} for row in _rows(path)]
    if not rows:
        raise BadInput(f"{path} holds no rows")
    headers = list(dict.fromkeys(key for row in rows for key in row))
    cells = {header: [_cell(row.get(header)) for row in rows] for header in headers}
    texts = [header for header in headers if any(isinstance(cell, str) for cell in cells[header])]
    key = next(iter([header for header in headers if header.lower() in NAMES] or texts), None)
    if key is None:
        raise BadInput(f"{path} has no column of model names; name it 'model'")
    models = tuple("" if row.get(key) is None else str(row[key]).strip() for row in rows)
    if "" in models:
        raise BadInput(f"{path}: row {models.index('') + 1} has no name in column {key!r}")

    def numbers(header: str) -> Floats:
        for model, cell in zip(models, cells[header], strict=True):
            if isinstance(cell, str):
                raise BadInput(f"{path}: column {header!r} of {model!r} is {cell[:40]!r}, not a number")
        return np.array(cells[header], dtype=np.float64)  # None becomes NaN

    def column(header: str) -> ScoreColumn:
        values, error = numbers(header), header + ERROR
        errors = numbers(error) if error in headers else None
        if errors is not None and not (errors[~np.isnan(values)] >= 0).all():
            raise BadInput(f"{path}: column {error!r} lacks a standard error of a score, or has a negative one")
        return ScoreColumn(header.removeprefix(BENCH).removeprefix(DOWNSTREAM).strip(), values, errors)

    # mostly numbers: a single `inf` or `12*` is an error to report, not a reason to take the column for text
    kinds = {header: Counter(map(type, column)) for header, column in cells.items() if header != key}
    numeric = [header for header, count in kinds.items() if count[float] > count[str] and header != CLUSTER]
    benchmarks, outcomes = _sides(path, headers, numeric, bench, downstream)
    families = {model: str(row["family"]) for model, row in zip(models, rows, strict=True) if row.get("family")}
    scores = Scores(models, tuple(map(column, benchmarks)), tuple(map(column, outcomes)), families)
    return by_cluster(scores, [str(row.get(CLUSTER)) for row in rows], path.name) if CLUSTER in headers else scores


def by_cluster(scores: Scores, clusters: Sequence[str], data: str) -> Scores:
    """One score per model and its resamples, from rows of models and clusters."""

    def cells(column: ScoreColumn) -> RunColumn:
        values: Cells = {model: {} for model in scores.models}
        for model, cluster, value in zip(scores.models, clusters, column.values.tolist(), strict=True):
            if not math.isnan(value):
                values[model].setdefault(cluster, []).append(value)
        return RunColumn(column.name, data, values)

    models = tuple(dict.fromkeys(scores.models))
    columns = resampled_columns(list(map(cells, scores.columns)), models)
    n = len(scores.bench)
    return Scores(models, tuple(columns[:n]), tuple(columns[n:]), scores.families)


def _header(text: str) -> str:
    """A header may be broken over lines."""
    return " ".join(str(text).split())


def _cell(value: Any) -> float | str | None:
    """A number, `None` if it is missing, else its text."""
    text = "" if value is None else str(value).strip()
    if text.lower() in MISSING:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _sides(
    path: Path, headers: list[str], numeric: list[str], bench: Sequence[str], downstream: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Benchmark and downstream headers: as requested, else by prefix, else the first and second of just two columns."""

    def known(name: str, prefix: str) -> str:
        for header in headers:
            if _header(name) in (header, header.removeprefix(prefix).strip()):
                return header
        raise unknown("column", name, headers)

    scores = [h for h in numeric if not (h.endswith(ERROR) and h.removesuffix(ERROR) in headers)]
    targets = [known(name, DOWNSTREAM) for name in downstream] or [h for h in scores if h.startswith(DOWNSTREAM)]
    if not targets and not bench and len(scores) == 2:
        targets = scores[1:]
    if not targets:
        listed = ", ".join(map(repr, scores)) or "none"
        raise BadInput(f"{path}: name the columns of downstream scores with --downstream; columns of numbers: {listed}")
    predictors = [known(name, BENCH) for name in bench] or [h for h in scores if h not in targets]
    both = [name for name in predictors if name in targets]
    if both:
        raise BadInput(f"{path}: {both[0]!r} cannot be on both sides")
    if not predictors:
        raise BadInput(f"{path}: no column is left for a benchmark")
    return list(dict.fromkeys(predictors)), list(dict.fromkeys(targets))


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give runs with --bench and --downstream")
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix.lower() not in (".csv", ".tsv"):
        rows = list(file_source(path).rows())
        for row in rows:
            if row.problem or not isinstance(row.data, dict):
                raise BadInput(f"{path}, row {row.line}: {row.problem or 'must be an object, one per model'}")
        return [row.data for row in rows]
    # unlike in a dataset, a row may be shorter than the header: what it lacks is missing
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            names = Counter(map(_header, reader.fieldnames or ()))
            lines = [line for line in reader if any(_cell(cell) is not None for cell in line.values())]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        raise BadInput(f"{path} has two columns named {repeated[0]!r}")
    for number, line in enumerate(lines, 1):
        if "" in line:
            raise BadInput(f"{path}: row {number} has more cells than the header")
    return lines


# --- columns of run folders ---

MAX_CELLS = 1 << 22
"""Resampling weights held in memory at once."""
IGNORED_SETTINGS = frozenset({"model", "condition", "dataset"})
"""Settings in which two runs of one column may differ: its name has the condition, and data have a fingerprint."""
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


def read_runs(bench: Sequence[str], downstream: Sequence[str], *, condition: str | None, best_of: int | None) -> Scores:
    predictors = _merged(_benchmark(Path(folder), condition) for folder in bench)
    targets = _merged(_downstream(Path(folder), best_of) for folder in downstream)
    models = tuple(dict.fromkeys(model for column in [*predictors, *targets] for model in column.cells))
    columns = resampled_columns([*predictors, *targets], models)
    return Scores(models, tuple(columns[: len(predictors)]), tuple(columns[len(predictors) :]))


def _merged(read: Iterable[RunColumn]) -> list[RunColumn]:
    """Folders that hold different models on the same data are one column."""
    columns: dict[str, RunColumn] = {}
    for column in read:
        known = columns.setdefault(column.name, column)
        if known is column:
            continue
        names = sorted({*known.settings, *column.settings})
        differing = [name for name in names if known.settings.get(name) != column.settings.get(name)]
        differing += ["their data"] if known.data != column.data else []
        if differing:
            raise BadInput(
                f"two runs on {column.name!r} differ in {', '.join(differing)}; correlate them one at a time"
            )
        both = [model for model in column.cells if model in known.cells]
        if both:
            raise BadInput(f"{both[0]!r} has two scores in {column.name!r}: leave one of the runs out")
        columns[column.name] = replace(known, cells=known.cells | column.cells)
    return list(columns.values())


def _read_run(folder: Path, flag: str, *verbs: str) -> tuple[str, dict[str, Any], Any]:
    """Verb, comparable settings and summary of a finished run of one of the verbs."""
    if not (folder / CONFIG).exists():
        raise BadInput(f"{folder} is not a run: it has no {CONFIG}")
    config = read_identity(folder)
    verb = next((verb for verb in verbs if verb in config), None)
    if verb is None:
        raise BadInput(f"{folder}: {flag} must be a run of {' or '.join(f'`prb {verb}`' for verb in verbs)}")
    settings = {name: value for name, value in config[verb].items() if name not in IGNORED_SETTINGS}
    return verb, settings, read_result(folder, SUMMARY)


def _benchmark(folder: Path, condition: str | None) -> RunColumn:
    _, settings, content = _read_run(folder, "--bench", "evaluate")
    summary = Summary.read(content, folder / SUMMARY)
    if summary.task != "pairs":
        raise BadInput(f"{folder}: --bench must be a run of `prb evaluate` on pairs")
    condition = condition or summary.shown
    if condition not in summary.conditions:
        raise BadInput(f"{folder} has no condition {condition!r}; it has {', '.join(summary.conditions)}")
    cells: Cells = {model: {} for model in summary.models}
    outcomes = read_outcomes(folder)
    for (model, shown), column in outcomes.of.items():
        if shown == condition:
            for cluster, credit in zip(outcomes.clusters, column.credit.tolist(), strict=True):
                if not math.isnan(credit):
                    cells[model].setdefault(cluster, []).append(credit)
    data = summary.dataset
    name = " ".join(filter(None, [short_name(data.name), data.split, f"({condition})"]))
    return RunColumn(name, data.fingerprint, cells, settings)


def _downstream(folder: Path, best_of: int | None) -> RunColumn:
    verb, settings, summary = _read_run(folder, "--downstream", "bon", "ppo")
    try:
        result = msgspec.convert(summary, BonSummary) if verb == "bon" else msgspec.convert(summary, PpoSummary)
    except msgspec.ValidationError as error:
        raise BadInput(f"{folder} was summarized by another version of prb: {error}; run its command again") from None
    cells: Cells
    if isinstance(result, PpoSummary):
        if not result.held_out.prompts or result.held_out.grade is None:
            raise BadInput(f"{folder} has no graded held-out answers")
        what, cells = "PPO", {result.model.spec: {}}
        for answer in read_stage(folder / ANSWERS, HeldOutAnswer):
            if answer.stage == "after" and answer.grade and answer.grade.score is not None:
                cells[result.model.spec].setdefault(answer.cluster, []).append(answer.grade.score)
    else:
        k = best_of or result.n
        what, cells = f"best of {k}", _best_of_cells(folder, result, k)
        if settings["policy"] is None:  # answers of a file, whose name does not say what it holds
            settings["candidates"] = result.policy.fingerprint
    name = f"{what} on {short_name(result.dataset.name)} ({result.policy.spec}, {result.condition})"
    trust = result.grader.trust if result.grader else ""
    return RunColumn(name, result.dataset.fingerprint, cells, settings, trust)


def _best_of_cells(folder: Path, bon: BonSummary, k: int) -> Cells:
    """The expected grade of the best of k, for each query that was sampled, graded and scored completely."""
    text = {(line.pair, line.n): line.text for line in read_stage(folder / SAMPLES, Sample)}
    grade_of = {(g.pair, text[g.pair, g.n]): g.score for g in read_stage(folder / GRADES, SampleGrade)}
    score_of = {(line.model, line.pair, line.n): line.score for line in read_stage(folder / SCORES, Score)}
    cells: Cells = {result.model: {} for result in bon.results}
    for pair, cluster in bon.clusters.items():
        texts = [text[pair, i] for i in range(bon.n)]
        if None in texts:
            continue
        graded = np.array([grade_of[pair, answer] for answer in texts], dtype=np.float64)
        for model, by_cluster in cells.items():
            scored = np.array([score_of[model, pair, i] for i in range(bon.n)], dtype=np.float64)
            value = float(curves(scored[None], graded[None], [k])[0, 0])
            if not np.isnan(value):
                by_cluster.setdefault(cluster, []).append(value)
    return cells


def resampled_columns(columns: Sequence[RunColumn], models: Sequence[str]) -> list[ScoreColumn]:
    """The columns with their resamples, means over clusters drawn with replacement; the clusters of a dataset are drawn
    once for all columns on it."""
    clusters: dict[str, set[str]] = {}
    for column in columns:
        clusters.setdefault(column.data, set()).update(c for by_cluster in column.cells.values() for c in by_cluster)
    resampled = []
    for column in columns:
        names = sorted(clusters[column.data])
        cells = [[column.cells.get(model, {}).get(cluster, []) for model in models] for cluster in names]
        sums = np.array([[sum(cell) for cell in row] for row in cells])
        sizes = np.array([[len(cell) for cell in row] for row in cells], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            values = sums.sum(axis=0) / sizes.sum(axis=0)
        if (count := len(names)) < 2:
            resampled.append(ScoreColumn(column.name, values, note=column.note))
            continue
        rng = np.random.default_rng([SEED, zlib.crc32(column.data.encode())])  # other data, other draws
        draws, step = [], max(1, MAX_CELLS // count)
        for start in range(0, RESAMPLES, step):
            drawn = rng.multinomial(count, np.full(count, 1 / count), size=min(step, RESAMPLES - start))
            weights = drawn.astype(np.float64)
            total, size = weights @ sums, weights @ sizes
            # a draw without any item of a model repeats its value
            draws.append(np.where(size > 0, total / np.where(size > 0, size, 1), values))
        means = np.concatenate(draws)
        resampled.append(ScoreColumn(column.name, values, means.std(axis=0, ddof=1), means, column.note))
    return resampled
