"""Scores of reward models as columns, read from a table and checked before anything is computed."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.errors import BadInput, unknown
from prb.runs import read_json, read_lines
from prb.stats.estimate import Floats

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
