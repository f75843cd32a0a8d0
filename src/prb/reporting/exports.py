"""What `prb report` prints of any result: the tables of its command, or the numbers of evaluations, one per cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prb.reporting.board import leaderboard
from prb.reporting.downstream_tables import bon_tables, correlation_tables, ppo_tables
from prb.reporting.format import Table
from prb.reporting.tables import audit_tables, build_lines, grade_table, train_lines

Result = Mapping[str, Any]
PARTS = ("low", "high", "p", "p_holm", "n", "failed", "ties")
"""Of an estimate, beside its value."""


def tables_of(kind: str, content: dict[str, Any]) -> list[Table]:
    """The tables that the verb which made a result prints."""
    return list(TABLES[kind](content))


def _train(card: Result) -> Iterator[Table]:
    yield _lines("train", train_lines(card) if "fitted_on" in card else [str(card["model"])])


def _study(result: dict[str, Any]) -> Iterator[Table]:
    from prb.study.verdict import verdict

    yield _lines("human study", verdict(result))


def _lines(title: str, lines: Sequence[str]) -> Table:
    return Table(title, ("result",), tuple((line,) for line in lines))


TABLES: dict[str, Callable[[dict[str, Any]], Iterable[Table]]] = {
    "evaluate": lambda summary: [leaderboard(summary)],
    "grade": lambda summary: [grade_table(summary)],
    "bon": bon_tables,
    "ppo": ppo_tables,
    "train": _train,
    "build": lambda card: [_lines("build", build_lines(card))],
    "audit": audit_tables,
    "correlation": correlation_tables,
    "agreement": _study,
}
"""By kind of result."""


def numbers_table(summaries: Mapping[str, Result]) -> Table:
    """One row per run, model and condition; one number per cell, as `summary.json` has it (shares, not percent)."""
    rows = [dict(_cells(run, summary, row)) for run, summary in summaries.items() for row in summary["results"]]
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table("", columns, tuple(tuple(row.get(name, "") for name in columns) for row in rows))


def _cells(run: str, summary: Result, row: Result) -> Iterator[tuple[str, str]]:
    yield from (("run", run), ("dataset", summary["dataset"]["name"]), ("split", summary["dataset"]["split"] or ""))
    contrasts = {c["kind"]: c for c in summary["contrasts"] if c["model"] == row["model"]}
    for name, value in {**row, **(contrasts if row["condition"] == "profile" else {})}.items():
        if isinstance(value, Mapping) and "value" in value:
            yield name, _cell(value["value"])
            yield from ((f"{name}_{part}", _cell(value[part])) for part in PARTS if part in value)
        elif not isinstance(value, Mapping | list):
            yield name, _cell(value)


def _cell(value: object) -> str:
    return "" if value is None else str(value)
