"""The leaderboard as rows of plain text, said once: the terminal, Markdown, CSV and HTML all print these."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, NamedTuple


class Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def interval(estimate: Mapping[str, Any] | None) -> str:
    """`63.3 [57.0, 69.2]`, in percent."""
    if estimate is None or estimate["value"] is None:
        return "–"
    if estimate["low"] is None:
        return percent(estimate["value"])
    return f"{percent(estimate['value'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def signed(contrast: Mapping[str, Any] | None) -> str:
    """`+13.3***`, in points; stars are Holm-corrected."""
    if contrast is None or contrast["value"] is None:
        return "–"
    return f"{100 * contrast['value']:+.1f}{stars(contrast['p_holm'])}"


def stars(p: float | None) -> str:
    return "" if p is None else "***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else ""


def p_value(p: float | None) -> str:
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def leaderboard(summary: Mapping[str, Any]) -> Table:
    return _ratings(summary) if summary["task"] == "ratings" else _pairs(summary)


def _pairs(summary: Mapping[str, Any]) -> Table:
    results, contrasts = summary["results"], summary["contrasts"]
    conditions = list(dict.fromkeys(row["condition"] for row in results))
    shown = "profile" if "profile" in conditions else conditions[0]
    cell = {(row["model"], row["condition"]): row for row in results}
    change = {(row["model"], row["kind"]): row for row in contrasts}
    kinds = [kind for kind in ("gain", "control") if any(row["kind"] == kind for row in contrasts)]
    mirrored = any(row["person_effect"] for row in results)
    extra = ("person effect", "mirror") if mirrored else ()
    rows = []
    for model in dict.fromkeys(row["model"] for row in results):
        row, failed = cell[model, shown], sum(cell[model, c]["accuracy"]["failed"] for c in conditions)
        values = [interval(cell[model, c]["accuracy"]) for c in conditions]
        values += [signed(change.get((model, kind))) for kind in kinds]
        values += [_effect(row["person_effect"]), percent((row["mirror_accuracy"] or {}).get("value"))] if extra else []
        rows.append((model, *values, str(failed)))
    return Table(
        _title(summary), ("model", *conditions, *kinds, *extra, "failed"), tuple(rows), _notes(shown, kinds, mirrored)
    )


def _effect(effect: Mapping[str, Any] | None) -> str:
    return "–" if effect is None else percent(effect["value"]) + stars(effect["p"])


def _title(summary: Mapping[str, Any]) -> str:
    data = summary["dataset"]
    split = f", split {data['split']}" if data["split"] else ""
    left = f"; {data['left_out']} rows with errors left out" if data["left_out"] else ""
    paper = "; procedure of the paper's scripts" if summary.get("protocol") == "paper" else ""
    return (
        f"{data['name']}{split}: {data['rows']} rows, {data['users']} people, {data['clusters']} clusters{left}{paper}"
    )


def _notes(shown: str, kinds: list[str], mirrored: bool) -> tuple[str, ...]:
    notes = ["Accuracy in % with a 95 % interval clustered by person; a tie counts half, a failure not at all."]
    if kinds:
        says = {"gain": "gain = profile − none", "control": "control = profile − shuffled (another person's posts)"}
        notes.append("; ".join(says[k] for k in kinds) + ". Stars: sign-flip p < .05, .01, .001 after Holm.")
    if mirrored:
        notes.append(
            f"person effect and mirror under {shown}: share of twins ordered by the person (user-blind: exactly 50) "
            "and share with both twins right (a coin: 25, user-blind: 0)."
        )
    return tuple(notes)


def _ratings(summary: Mapping[str, Any]) -> Table:
    metrics = ("alignment", "mae", "skill", "spearman", "concordance")
    rows = tuple(
        (row["model"], row["condition"], *(_plain(row[m]) for m in metrics), str(row["users"]), str(row["failed"]))
        for row in summary["results"]
    )
    note = "Means over people with 95 % intervals; scores are brought to each person's scale on their other rows."
    return Table(_title(summary), ("model", "condition", *metrics, "people", "failed"), rows, (note,))


def _plain(estimate: Mapping[str, Any]) -> str:
    if estimate["value"] is None:
        return "–"
    if estimate["low"] is None:
        return f"{estimate['value']:.3f}"
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def markdown(table: Table) -> str:
    head = ["| " + " | ".join(table.columns) + " |", "| --- |" + " ---: |" * (len(table.columns) - 1)]
    body = [
        "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in row) + " |" for row in table.rows
    ]
    return "\n".join([table.title, "", *head, *body, "", *table.notes]) + "\n"


def as_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return out.getvalue()


def show(table: Table, *, left: bool = False) -> None:
    """The table on the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    # a log file has no width of its own; a cut table would be worse than a long line
    console = Console() if Console().is_terminal else Console(width=200)
    grid = RichTable(box=box.SIMPLE_HEAD, title=Text(table.title), title_justify="left", title_style="bold")
    for n, name in enumerate(table.columns):
        grid.add_column(name, justify="left" if left or n == 0 else "right", no_wrap=n == 0)
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="dim"))
