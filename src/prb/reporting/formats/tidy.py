"""CSV and Parquet with one number per cell: `estimates` (one row per number), `outcomes` and `users`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from msgspec import to_builtins

from prb.reporting.format import inert
from prb.reporting.formats import ExportedRun, write_file
from prb.summary import MAIN, UserTable
from prb.work import chunks

PARTS = ("low", "high", "n", "failed", "ties", "p", "p_holm")
WHOLE = frozenset({"n", "failed", "ties", "cut", "tokens", "leaks", "posts_shown", "choices_shown"})
NUMBERS = frozenset({"estimate", "low", "high", "p", "p_holm", "credit", "margin", "seconds", "cost"})
SLICES = {"by_category": "category", "by_tier": "tier"}
Row = dict[str, Any]


def write(run: ExportedRun, out: Path) -> list[Path]:
    ending = run.settings.format
    about = {"run": run.evaluation.folder.name, "dataset": run.about.name, "split": run.about.split}
    tables = {"estimates": _estimates(run, about), "outcomes": _outcomes(run), "users": _users(run)}
    return [write_file(out / f"{name}.{ending}", _encoded(list(rows), ending)) for name, rows in tables.items()]


def _estimates(run: ExportedRun, about: Row) -> Iterator[Row]:
    columns = ("group_by", "group", "estimate", *PARTS)
    results = [(row.model, row.condition, row.as_json()) for row in run.summary.results]
    results += [(row.model, MAIN, {row.kind: to_builtins(row)}) for row in run.summary.contrasts]
    for model, condition, result in results:
        for numbers in _numbers(result):
            metric = numbers.pop("metric")
            cells = {name: numbers.get(name) for name in columns}
            yield {**about, "model": model, "condition": condition, "metric": metric, **cells}


def _numbers(result: Mapping[str, Any], path: str = "") -> Iterator[Row]:
    """Every number of a result; those of slices have their slice in columns of its own."""
    main = "accuracy" if "accuracy" in result else "alignment"
    for name, entry in result.items():
        metric = f"{path}{name}"
        if not path and name in SLICES:
            yield from ({**_parts(e, main), "group_by": SLICES[name], "group": group} for group, e in entry.items())
        elif not path and name == "by_group":
            for attribute, estimates in entry.items():
                groups = estimates.get("groups", estimates).items()
                yield from ({**_parts(e, main), "group_by": attribute, "group": group} for group, e in groups)
        elif isinstance(entry, Mapping) and "value" in entry:
            yield _parts(entry, metric)
        elif isinstance(entry, Mapping):
            yield from _numbers(entry, f"{metric}.")
        elif isinstance(entry, int | float) and not isinstance(entry, bool):
            yield {"metric": metric, "estimate": entry}


def _parts(entry: Mapping[str, Any], metric: str) -> Row:
    return {"metric": metric, "estimate": entry["value"], **{part: entry.get(part) for part in PARTS}}


def _outcomes(run: ExportedRun) -> Iterator[Row]:
    for line in run.lines():
        yield {
            **{name: line[name] for name in ("pair", "user", "cluster", "model", "condition", "credit", "margin")},
            "failure": line["failure"],
            "failure_kind": line.get("failure_kind"),
            "posts_shown": len(line["post_ids"]),
            "choices_shown": len(line.get("choices", ())),
            **{name: line[name] for name in ("cut", "tokens", "seconds", "cost")},
            "leaks": line.get("leaks", 0),
            **{f"score_{n}": score for n, score in enumerate(line["scores"] or (), 1)},
            **{f"verdict_{n}": verdict for n, verdict in enumerate(line["verdicts"] or (), 1)},
        }


def _users(run: ExportedRun) -> Iterator[Row]:
    table = UserTable.of_run(run.evaluation.folder)
    for row in table.results:
        for user, *numbers in zip(table.users, *row.columns.values(), strict=True):
            yield {"user": user, "model": row.model, "condition": row.condition} | dict(
                zip(row.columns, numbers, strict=True)
            )


def _encoded(rows: list[Row], ending: str, batch: int = 10_000) -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    schema = pa.schema([(name, _type(name, rows)) for name in names])
    batches = [pa.RecordBatch.from_pylist(part, schema=schema) for part in chunks(rows, batch)]
    table = pa.Table.from_batches(batches, schema=schema)
    buffer = pa.BufferOutputStream()
    if ending == "csv":
        texts = [name for name in names if schema.field(name).type == pa.string()]
        for name in texts:
            column = pa.array([None if cell is None else inert(cell) for cell in table[name].to_pylist()], pa.string())
            table = table.set_column(names.index(name), name, column)
        pa.csv.write_csv(table.rename_columns([inert(name) for name in names]), buffer)
    else:
        pa.parquet.write_table(table, buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def _type(name: str, rows: Iterable[Row]) -> Any:
    """By what the column is, or, where that depends on the run, by what it holds."""
    if name in WHOLE:
        return pa.int64()
    if name in NUMBERS or name.startswith("score_"):
        return pa.float64()
    first = next((row[name] for row in rows if row.get(name) is not None), "")
    return pa.string() if isinstance(first, str) else pa.float64()
