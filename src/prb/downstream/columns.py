"""Scores of models as columns: from a table, or from run folders of `prb evaluate`, `prb bon` and `prb ppo`.

Folders hold every item, so a column's uncertainty comes from resampling its clusters. One resample serves all models
and all columns on the same data, so what they share stays shared.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from prb.data.schema import read_items
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
MIN_MODELS = 3
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
    draws: Floats | None = None
    """Resamples × models: the column recomputed from resampled clusters."""
    note: str = ""
    """How far its numbers can be trusted."""

    @property
    def summary(self) -> ColumnSummary:
        errors = None if self.draws is None else self.draws.std(axis=0, ddof=1).tolist()
        return ColumnSummary(self.name, self.values.tolist(), errors, self.note)

    def means(self, groups: Sequence[Sequence[int]]) -> ScoreColumn:
        """Of groups of models, given by position; of each resample too."""
        values = np.array([self.values[group].mean() for group in groups])
        draws = self.draws if self.draws is None else np.array([self.draws[:, g].mean(axis=1) for g in groups]).T
        return replace(self, values=values, draws=draws)


@dataclass(frozen=True)
class Scores:
    models: tuple[str, ...]
    bench: tuple[ScoreColumn, ...]
    downstream: tuple[ScoreColumn, ...]
    families: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[ScoreColumn, ...]:
        return self.bench + self.downstream

    def means(self, members: Mapping[str, Sequence[str]]) -> Scores:
        groups = [[self.models.index(model) for model in models] for models in members.values()]
        bench, downstream = (tuple(column.means(groups) for column in side) for side in (self.bench, self.downstream))
        return Scores(tuple(members), bench, downstream, self.families)

    def of(self, models: Sequence[str]) -> Scores:
        return self.means({model: [model] for model in models})


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
    n = len(scores.models)
    if n < MIN_MODELS:
        return f"{n} {unit if n == 1 else PLURAL[unit]} with all scores: correlating needs {MIN_MODELS}"
    constant = [column.name for column in scores.columns if np.ptp(column.values) == 0]
    if constant:
        return f"column {constant[0]!r} is the same for all {n} {PLURAL[unit]}: there is nothing to correlate"
    return None


def members_of_families(scores: Scores, constructed: Collection[str]) -> dict[str, list[str]]:
    """The models of each family; either all of them were constructed, or none."""
    members: dict[str, list[str]] = {}
    for model in scores.models:
        family = scores.families.get(model)
        if family is None:
            raise BadInput(f"{model!r} has no family: --unit family needs a table with a column `family`")
        members.setdefault(family, []).append(model)
    for family, models in members.items():
        if len({model in constructed for model in models}) > 1:
            raise BadInput(f"family {family!r} has constructed models and others: give them different families")
    return members


# --- columns of a table ---

MISSING = frozenset({"", "-", "–", "—", "na", "n/a", "nan", "none", "null"})
FAMILY, CLUSTER = "family", "cluster"
"""Columns with a meaning; a table by cluster has a row for each model and cluster, of equal weight."""


def read_table(path: Path, bench: Sequence[str], downstream: Sequence[str]) -> Scores:
    """A row per model, or per model and cluster; the header of the column of names begins with "model"."""
    # a header may be broken over lines
    rows = [{" ".join(name.split()): value for name, value in row.items()} for row in _rows(path)]
    cells = {
        header: [_cell(row.get(header)) for row in rows] for header in dict.fromkeys(h for row in rows for h in row)
    }
    if not rows:
        raise BadInput(f"{path} holds no rows")
    key = next((header for header in cells if header.lower().startswith("model")), None)
    if key is None:
        raise BadInput(f"{path} has no column of model names; name it 'model'")
    models = tuple("" if row.get(key) is None else str(row[key]).strip() for row in rows)
    if "" in models:
        raise BadInput(f"{path}: row {models.index('') + 1} has no name in column {key!r}")

    def column(header: str) -> ScoreColumn:
        for model, cell in zip(models, cells[header], strict=True):
            if isinstance(cell, str):
                raise BadInput(f"{path}: column {header!r} of {model!r} is {cell[:40]!r}, not a number")
        return ScoreColumn(header, np.array(cells[header], dtype=np.float64))  # None becomes NaN

    # mostly numbers: a single `inf` or `12*` is an error to report, not a reason to take the column for text
    kinds = {header: Counter(map(type, column)) for header, column in cells.items() if header not in (key, CLUSTER)}
    numeric = [header for header, count in kinds.items() if count[float] > count[str]]
    benchmarks, outcomes = _sides(path, list(cells), numeric, bench, downstream)
    families = {model: str(row[FAMILY]) for model, row in zip(models, rows, strict=True) if row.get(FAMILY)}
    predictors, targets = (tuple(map(column, headers)) for headers in (benchmarks, outcomes))
    if CLUSTER not in cells:
        return Scores(models, predictors, targets, families)
    clusters = [str(row.get(CLUSTER)) for row in rows]
    columns = [
        RunColumn(of.name, path.name, cells_of(models, zip(models, clusters, of.values.tolist(), strict=True)))
        for of in (*predictors, *targets)
    ]
    return resampled_scores(columns[: len(predictors)], columns[len(predictors) :], families=families)


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.is_dir():
        raise BadInput(f"{path} is a folder: give runs with --bench and --downstream")
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix not in (".csv", ".tsv"):
        return read_items(path, dict)
    # unlike in a dataset, a row may be shorter than the header: what it lacks is missing
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", delimiter="\t" if path.suffix == ".tsv" else ",")
            rows, names = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    if len(set(names)) < len(names) or any("" in row for row in rows):
        raise BadInput(f"{path} has two columns of one name, or a row with more cells than the header")
    return [row for row in rows if any(_cell(cell) is not None for cell in row.values())]


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
    """Benchmark and downstream headers: as requested, else the first and the second of just two columns of numbers."""
    for name in (*bench, *downstream):
        if name not in headers:
            raise unknown("column", name, headers)
    targets = list(downstream) or (numeric[1:] if not bench and len(numeric) == 2 else [])
    if not targets:
        listed = ", ".join(map(repr, numeric)) or "none"
        raise BadInput(f"{path}: name the columns of downstream scores with --downstream; columns of numbers: {listed}")
    predictors = list(bench) or [header for header in numeric if header not in targets]
    if both := [name for name in predictors if name in targets]:
        raise BadInput(f"{path}: {both[0]!r} cannot be on both sides")
    if not predictors:
        raise BadInput(f"{path}: no column is left for a benchmark")
    return predictors, targets


# --- columns of run folders ---

IGNORED_SETTINGS = frozenset({"model", "condition", "dataset"})
"""Settings in which two runs of one column may differ: its name has the condition, and data have a fingerprint."""
Cells = dict[str, dict[str, list[float]]]
"""Model → cluster → the values of its items."""


def cells_of(models: Iterable[str], items: Iterable[tuple[str, str, float | None]]) -> Cells:
    """From model, cluster and value of each item; items without a value are left out."""
    cells: Cells = {model: {} for model in models}
    for model, cluster, value in items:
        if value is not None and not math.isnan(value):
            cells[model].setdefault(cluster, []).append(value)
    return cells


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
    """Folders that hold different models on the same data are one column."""
    predictors = [_benchmark(Path(folder), condition) for folder in bench]
    targets = [_downstream(Path(folder), best_of) for folder in downstream]
    sides: list[list[RunColumn]] = []
    for read in (predictors, targets):
        columns: dict[str, RunColumn] = {}
        for column in read:
            known = columns.setdefault(column.name, column)
            if known is column:
                continue
            names = sorted({*known.settings, *column.settings})
            differing = [name for name in names if known.settings.get(name) != column.settings.get(name)]
            differing += ["their data"] if known.data != column.data else []
            if differing:
                what = f"two runs on {column.name!r} differ in {', '.join(differing)}"
                raise BadInput(f"{what}; correlate them one at a time")
            if both := known.cells.keys() & column.cells:
                raise BadInput(f"{min(both)!r} has two scores in {column.name!r}: leave one of the runs out")
            columns[column.name] = replace(known, cells=known.cells | column.cells)
        sides.append(list(columns.values()))
    return resampled_scores(*sides)


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
    outcomes, data = read_outcomes(folder), summary.dataset
    items = (
        (model, cluster, credit)
        for model in summary.models
        for cluster, credit in zip(outcomes.clusters, outcomes.of[model, condition].credit.tolist(), strict=True)
    )
    name = " ".join(filter(None, [short_name(data.name), data.split, f"({condition})"]))
    return RunColumn(name, data.fingerprint, cells_of(summary.models, items), settings)


def _downstream(folder: Path, best_of: int | None) -> RunColumn:
    verb, settings, summary = _read_run(folder, "--downstream", "bon", "ppo")
    try:
        result = msgspec.convert(summary, BonSummary) if verb == "bon" else msgspec.convert(summary, PpoSummary)
    except msgspec.ValidationError as error:
        raise BadInput(f"{folder} was summarized by another version of prb: {error}; run its command again") from None
    if isinstance(result, PpoSummary):
        if not result.held_out.prompts or result.held_out.grade is None:
            raise BadInput(f"{folder} has no graded held-out answers")
        what, model = "PPO", result.model.spec
        answers = (a for a in read_stage(folder / ANSWERS, HeldOutAnswer) if a.stage == "after")
        cells = cells_of([model], ((model, a.cluster, a.grade.score if a.grade else None) for a in answers))
    else:
        k = best_of or result.n
        what, cells = f"best of {k}", cells_of((row.model for row in result.results), _best_of(folder, result, k))
        if settings["policy"] is None:  # answers of a file, whose name does not say what it holds
            settings["candidates"] = result.policy.fingerprint
    name = f"{what} on {short_name(result.dataset.name)} ({result.policy.spec}, {result.condition})"
    trust = result.grader.trust if result.grader else ""
    return RunColumn(name, result.dataset.fingerprint, cells, settings, trust)


def _best_of(folder: Path, bon: BonSummary, k: int) -> Iterator[tuple[str, str, float]]:
    """Model, cluster and expected grade of the best of k, for each query that was sampled; NaN where one of its
    answers has no grade or score."""
    text = {(line.pair, line.n): line.text for line in read_stage(folder / SAMPLES, Sample)}
    grade_of = {(g.pair, text[g.pair, g.n]): g.score for g in read_stage(folder / GRADES, SampleGrade)}
    score_of = {(line.model, line.pair, line.n): line.score for line in read_stage(folder / SCORES, Score)}
    for pair, cluster in bon.clusters.items():
        texts = [text[pair, i] for i in range(bon.n)]
        if None in texts:
            continue
        graded = np.array([grade_of[pair, answer] for answer in texts], dtype=np.float64)
        for model in (result.model for result in bon.results):
            scored = np.array([score_of[model, pair, i] for i in range(bon.n)], dtype=np.float64)
            yield model, cluster, float(curves(scored[None], graded[None], [k])[0, 0])


def resampled_scores(
    bench: Sequence[RunColumn], downstream: Sequence[RunColumn], *, families: Mapping[str, str] | None = None
) -> Scores:
    """The columns with their resamples, means over clusters drawn with replacement; the clusters of a dataset are drawn
    once for all columns on it."""
    models = tuple(dict.fromkeys(model for column in (*bench, *downstream) for model in column.cells))
    clusters: dict[str, set[str]] = {}
    for column in (*bench, *downstream):
        clusters.setdefault(column.data, set()).update(c for by_cluster in column.cells.values() for c in by_cluster)

    def resampled(column: RunColumn) -> ScoreColumn:
        names = sorted(clusters[column.data])
        cells = [[column.cells.get(model, {}).get(cluster, []) for model in models] for cluster in names]
        sums = np.array([[sum(cell) for cell in row] for row in cells])
        sizes = np.array([[len(cell) for cell in row] for row in cells], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            values = sums.sum(axis=0) / sizes.sum(axis=0)
        if (count := len(names)) < 2:
            return ScoreColumn(column.name, values, note=column.note)
        rng = np.random.default_rng([SEED, zlib.crc32(column.data.encode())])  # other data, other draws
        weights = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)
        total, size = weights @ sums, weights @ sizes
        # a draw without any item of a model repeats its value
        draws = np.where(size > 0, total / np.where(size > 0, size, 1), values)
        return ScoreColumn(column.name, values, draws, column.note)

    return Scores(models, tuple(map(resampled, bench)), tuple(map(resampled, downstream)), families or {})
