"""Scores of reward models as columns: from a table somebody wrote down, checked before anything is computed."""

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

LEAST, MOST = 3, 500
NAMES = ("model", "model name", "name", "rm", "reward model")
"""How a column of names is usually called."""
MISSING = frozenset({"", "-", "–", "—", "na", "n/a", "nan", "none", "null"})
ERROR = "_se"
"""A column `X_se` holds the standard errors of column `X`."""
BENCH, DOWNSTREAM = "bench:", "downstream:"
"""Headers may say themselves what they are."""


@dataclass(frozen=True)
class Column:
    """One score a model; higher is better."""

    name: str
    values: Floats
    """NaN where it is missing."""
    errors: Floats | None = None
    """Standard errors, if they are known."""
    draws: Floats | None = None
    """Rows of the column computed anew from items drawn anew."""
    note: str = ""
    """How far its numbers can be trusted."""

    def of(self, rows: Sequence[int]) -> Column:
        """The same column of some of the models."""
        at = list(rows)
        errors = None if self.errors is None else self.errors[at]
        return replace(self, values=self.values[at], errors=errors, draws=_cut(self.draws, at))


def _cut(draws: Floats | None, at: list[int]) -> Floats | None:
    return None if draws is None else draws[:, at]


@dataclass(frozen=True)
class Scores:
    models: tuple[str, ...]
    bench: tuple[Column, ...]
    downstream: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.bench + self.downstream

    def of(self, models: Sequence[str]) -> Scores:
        rows = [self.models.index(model) for model in models]
        bench, downstream = (tuple([c.of(rows) for c in side]) for side in (self.bench, self.downstream))
        return Scores(tuple(models), bench, downstream)


def checked(scores: Scores, *, drop_missing: bool) -> tuple[Scores, list[str]]:
    """Scores that can be correlated, and the models left out because a score of theirs is missing."""
    twice = sorted({model for model in scores.models if scores.models.count(model) > 1})
    if twice:
        raise BadInput(f"{_listed(twice)}: more than one row; each model needs a name of its own")
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
    """Why nothing can be said from these models, if so."""
    n = len(scores.models)
    if not LEAST <= n <= MOST:
        return f"{_count(n)} with all scores: correlating wants {LEAST} to {MOST}"
    constant = [column.name for column in scores.columns if np.ptp(column.values) == 0]
    if constant:
        return f"column {constant[0]!r} is the same for all {n} models: there is nothing to correlate"
    return None


def _count(n: int) -> str:
    return f"{n} model" if n == 1 else f"{n} models"


def _listed(names: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more


def read_table(path: Path, name: str | None, bench: Sequence[str], downstream: Sequence[str]) -> Scores:
    """CSV, Parquet, JSON (a list of objects) or JSONL; a row a model."""
    rows = [{_header(key): value for key, value in row.items()} for row in _rows(path)]
    if not rows:
        raise BadInput(f"{path} holds no rows")
    headers = list(dict.fromkeys(key for row in rows for key in row))
    key = _name_column(path, headers, rows, name)
    numeric = [h for h in headers if h != key and _means_numbers([row.get(h) for row in rows])]
    ours, theirs = _sides(path, headers, numeric, bench, downstream)
    models = tuple(str(row.get(key) if row.get(key) is not None else "").strip() for row in rows)
    if "" in models:
        raise BadInput(f"{path}: row {models.index('') + 1} has no name in column {key!r}")

    def column(header: str) -> Column:
        error = header + ERROR
        values = _numbers(path, header, rows, models)
        errors = _numbers(path, error, rows, models) if error in headers else None
        if errors is not None and not (errors[~np.isnan(values)] >= 0).all():
            raise BadInput(f"{path}: column {error!r} lacks a standard error of a score, or has a negative one")
        return Column(header.removeprefix(BENCH).removeprefix(DOWNSTREAM).strip(), values, errors)

    return Scores(models, tuple(map(column, ours)), tuple(map(column, theirs)))


def _header(text: str) -> str:
    """Headers may be broken over lines."""
    return " ".join(str(text).split())


def _name_column(path: Path, headers: list[str], rows: list[dict[str, Any]], wanted: str | None) -> str:
    if wanted is not None:
        return _known(wanted, headers)
    usual = [h for h in headers if h.lower() in NAMES]
    words = [h for h in headers if any(isinstance(row.get(h), str) and not _is_number(row[h]) for row in rows)]
    found = next(iter([*usual, *words]), None)
    if found is None:
        raise BadInput(f"{path} has no column of model names; say which with --name")
    return found


def _sides(
    path: Path, headers: list[str], numeric: list[str], bench: Sequence[str], downstream: Sequence[str]
) -> tuple[list[str], list[str]]:
    """As asked for, as the headers say, or, of just two columns of numbers, the first and the second."""
    scores = [h for h in numeric if not (h.endswith(ERROR) and h.removesuffix(ERROR) in headers)]
    theirs = [_known(name, headers, DOWNSTREAM) for name in downstream] or [
        h for h in scores if h.startswith(DOWNSTREAM)
    ]
    if not theirs and not bench and len(scores) == 2:
        theirs = scores[1:]
    if not theirs:
        listed = ", ".join(map(repr, scores)) or "none"
        raise BadInput(
            f"{path}: say which columns are downstream scores with --downstream; columns of numbers: {listed}"
        )
    ours = [_known(name, headers, BENCH) for name in bench] or [h for h in scores if h not in theirs]
    both = [name for name in ours if name in theirs]
    if both or not ours:
        raise BadInput(
            f"{path}: " + (f"{_listed(both)} cannot be on both sides" if both else "no column is left for a benchmark")
        )
    return list(dict.fromkeys(ours)), list(dict.fromkeys(theirs))


def _known(name: str, headers: list[str], prefix: str = "") -> str:
    wanted = _header(name)
    for header in headers:
        if wanted in (header, header.removeprefix(prefix).strip()):
            return header
    raise unknown("column", wanted, headers)


def _means_numbers(cells: Sequence[Any]) -> bool:
    """Mostly numbers: a single `inf` or `12*` among them is told, not taken for a column of words and passed over."""
    present = [_is_number(cell) for cell in cells if not _is_missing(cell)]
    return sum(present) > len(present) / 2


def _is_missing(cell: Any) -> bool:
    return cell is None or str(cell).strip().lower() in MISSING


def _is_number(cell: Any) -> bool:
    if isinstance(cell, bool):
        return False
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError):
        return False


def _numbers(path: Path, header: str, rows: list[dict[str, Any]], models: tuple[str, ...]) -> Floats:
    cells = [row.get(header) for row in rows]
    for model, cell in zip(models, cells, strict=True):
        if not _is_missing(cell) and not _is_number(cell):
            raise BadInput(f"{path}: column {header!r} of {model!r} is {str(cell)[:40]!r}, wants a number")
    return np.array([np.nan if _is_missing(cell) else float(cell) for cell in cells], dtype=np.float64)  # type: ignore[arg-type]


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise BadInput(
            f"{path} is a folder: runs are given by --bench and --downstream"
            if path.is_dir()
            else f"{path} does not exist"
        )
    reader = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".json": read_json, ".jsonl": read_lines}.get(
        path.suffix.lower()
    )
    if reader is None:
        raise BadInput(f"{path}: unknown format; known are .csv, .tsv, .parquet, .json, .jsonl")
    found = reader(path)
    rows = list(found) if not isinstance(found, dict) else []
    if not all(isinstance(row, dict) for row in rows) or isinstance(found, dict):
        raise BadInput(f"{path}: wants a list of objects, one a model")
    return rows


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    names = [_header(cell) for cell in header]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{path}: more than one column is named {twice[0]!r}")
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
