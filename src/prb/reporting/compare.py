"""A paired comparison as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prb.reporting.table import Table, p_value, percent, signed


def comparison(result: Mapping[str, Any]) -> Table:
    columns = ("condition", "A", "B", "acc. A", "acc. B", "A − B", "95 %", "p", "p (Holm)", "changed", "n", "dropped")
    rows = tuple(
        (
            row["condition"],
            row["model_a"],
            row["model_b"],
            percent(row["accuracy_a"]),
            percent(row["accuracy_b"]),
            signed(row),
            _bounds(row),
            p_value(row["p"]),
            p_value(row["p_holm"]),
            percent(row["changed_sides"]),
            str(row["n"]),
            str(row["dropped"]),
        )
        for row in result["comparisons"]
    )
    return Table(f"A = {result['a']}, B = {result['b']}", columns, rows, tuple(_notes(result)))


def _bounds(row: Mapping[str, Any]) -> str:
    return "–" if row["low"] is None else f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"


def _notes(result: Mapping[str, Any]) -> list[str]:
    tests = sorted({row["test"] for row in result["comparisons"]})
    notes = [f"Paired on rows both answered; interval by resampling clusters, p by {', '.join(tests)}."]
    smallest = [row["smallest_detectable"] for row in result["comparisons"] if row["smallest_detectable"]]
    if smallest:
        notes.append(f"Differences below about {100 * max(smallest):.1f} points cannot be relied on to show here.")
    if result["same_data"] is False:
        notes.append("The two runs did not use the same data file; only rows with the same id are compared.")
    only = max(row["only_in_one"] for row in result["comparisons"])
    if only:
        notes.append(f"Up to {only} rows are in one run only and were left out.")
    return notes
