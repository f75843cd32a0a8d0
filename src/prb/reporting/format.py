"""Numbers and tables as text: how every table of the terminal, Markdown, CSV, LaTeX and the site writes its cells."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from html import escape
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from prb.types import visible

MISSING = "–"


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell shows of a number of a result file: its interval, and of a contrast its corrected p."""

    value: float | None
    low: float | None = None
    high: float | None = None
    p_holm: float | None = None

    @staticmethod
    def of(entry: Any) -> Number:
        """From an entry of a result file, or from an object with these attributes."""
        return entry if isinstance(entry, Number) else msgspec.convert(entry, Number, from_attributes=True)


class Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()
    """Sentences between the title and the table."""


# --- numbers ---
PARTS = ("low", "high", "p", "p_holm", "n", "failed", "ties")
"""Of an estimate or a contrast, beside its value: columns of CSV and Parquet files, in this order."""


def number(value: float | None, digits: int = 1, *, scale: float = 1, sign: bool = False) -> str:
    if value is None:
        return MISSING
    with localcontext(rounding=ROUND_HALF_UP):  # as JavaScript's toFixed, so that terminal and site show the same
        return f"{Decimal(float(scale * value)):{'+' if sign else ''}.{digits}f}"


def plural(n: int, noun: str) -> str:
    """`1 user`, `2 users`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def percent(value: float | None, digits: int = 1) -> str:
    """`63.3`; the heading or the sentence says that it is in %."""
    return number(value, digits, scale=100)


def bounds(entry: Any, digits: int = 1, *, scale: float = 100, sign: bool = False) -> str:
    """`[57.0, 69.2]`"""
    estimate = Number.of(entry)
    if estimate.low is None:
        return MISSING
    low, high = (number(end, digits, scale=scale, sign=sign) for end in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def interval(entry: Any, digits: int = 1, *, scale: float = 100, sign: bool = False) -> str:
    """`63.3 [57.0, 69.2]`, in percent unless another scale is given."""
    if entry is None or (estimate := Number.of(entry)).value is None:
        return MISSING
    value = number(estimate.value, digits, scale=scale, sign=sign)
    return value if estimate.low is None else f"{value} {bounds(estimate, digits, scale=scale, sign=sign)}"


def points(entry: Any) -> str:
    """`+13.3***`, in percentage points; stars are Holm-corrected."""
    if entry is None or (contrast := Number.of(entry)).value is None:
        return MISSING
    return number(contrast.value, scale=100, sign=True) + stars(contrast.p_holm)


def stars(p: float | None) -> str:
    return "" if p is None else "***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else ""


def p_value(p: float | None) -> str:
    return MISSING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def p_equals(p: float) -> str:
    """`p = 0.02`, for sentences."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def dollars(amount: float) -> str:
    return f"${amount:,.4f}"


FOLDERS = re.compile(r"""(?<![\w./:~-])(?:~|\.{1,2})?/(?:[^\s/?&#"'<>|,;()]+/)+(?=[^\s/?&#])""")


def without_folders(text: str) -> str:
    """Paths of this machine in a name, spec or message become file names; addresses of servers and the hub stay."""
    return FOLDERS.sub("", text)


def shortened(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


# --- files ---
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
IS_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def markdown(table: Table) -> str:
    head = ["| " + " | ".join(table.columns) + " |", "| --- |" + " ---: |" * (len(table.columns) - 1)]
    body = [
        "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in row) + " |" for row in table.rows
    ]
    return "\n".join([table.title, "", *(f"{line}\n" for line in table.lead), *head, *body, "", *table.notes]) + "\n"


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One column per key, in the order in which they appear; what is unknown is empty."""
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = [tuple("" if row.get(name) is None else str(row[name]) for name in columns) for row in rows]
    return Table("", columns, tuple(cells))


def as_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(inert, table.columns))
    writer.writerows(map(inert, row) for row in table.rows)
    return out.getvalue()


def inert(cell: str) -> str:
    """A cell of a CSV file that no spreadsheet takes for a formula: where it begins like one and is not a number, an
    apostrophe comes first (https://owasp.org/www-community/attacks/CSV_Injection)."""
    return f"'{cell}" if cell.startswith(FORMULA) and not IS_NUMBER.fullmatch(cell) else cell


def html_table(table: Table) -> str:
    """For notebooks: every text is escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in table.notes)
    lead = "".join(f"<p>{escape(line)}</p>" for line in table.lead)
    return (
        f"<p>{escape(table.title)}</p>{lead}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"
    )


# --- the terminal ---
GAP = "  "
NARROWEST = 14
"""Characters to which a name or a text may be wrapped before the table is cut into blocks of columns."""
UNIT = re.compile(r"\S+ → \S+|\[[-+\d., ]+\]\S*|\S+")
"""What is never broken in a column of numbers: a number, an interval, from one number to another."""
NUMERIC = re.compile(r"[-+−–→<>≈~%$…*\d.,\[\]\s]*(\d[-+eE\d]*)?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def show(*tables: Table) -> None:
    """Tables on standard output: fitted to a terminal; in a file or a pipe every line at its natural length."""
    from rich.console import Console
    from rich.text import Text

    width = _terminal_width()
    console = Console(soft_wrap=True, highlight=False)
    sections = []
    for table in tables:
        title = Text(visible("\n".join(_fitted([table.title], width))), style="bold")
        sections.append(Text("\n").join([title, *(Text(visible(line)) for line in _fitted(table.lead, width))]))
        sections.append(Text(visible("\n".join(layout(table, width)))))
        if table.notes:
            sections.append(Text(visible("\n".join(_fitted(table.notes, width))), style="dim"))
    for position, section in enumerate(sections):
        console.print(*([""] if position else []), section, sep="\n")


def plain(table: Table) -> str:
    """All that `show` prints of a table, notes included."""
    about, notes = [table.title, *table.lead], ["", *table.notes] if table.notes else []
    return "\n".join([*about, "", *layout(table, None), *notes])


def say(*lines: str) -> None:
    """Lines of text on standard output; a terminal would break them within words, so there they are wrapped."""
    sys.stdout.writelines(f"{visible(line)}\n" for line in _fitted(lines, _terminal_width()))


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fitted(lines: Sequence[str], width: int | None) -> list[str]:
    return list(lines) if width is None else [part for line in lines for part in wrap(line, width)]


def layout(table: Table, width: int | None) -> list[str]:
    """The lines of a table, at most `width` columns wide; no number is ever cut.

    What gives way, in this order: intervals go below their values, texts and model names are wrapped, and at last the
    table is cut into blocks of columns, each with the first column again.
    """
    first, *others = [
        TextColumn([CONTROL.sub(" ", cell) for cell in cells], numeric=n > 0 and all(map(NUMERIC.fullmatch, cells[1:])))
        for n, cells in enumerate(zip(table.columns, *table.rows, strict=True))
    ]
    blocks = [[first]]
    for column in others:
        needed = sum(c.least for c in (*blocks[-1], column)) + len(GAP) * len(blocks[-1])
        if width is not None and needed > width and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    lines: list[str] = []
    for block in blocks:
        lines += ["", *_draw(block, width)] if lines else _draw(block, width)
    return lines


def wrap(text: str, width: int, *, fold: bool = True) -> list[str]:
    """Lines of whole words; a longer word is folded, after punctuation if there is some, or sticks out."""
    from rich.cells import cell_len

    lines = [""]
    for word in UNIT.findall(text):
        joined = f"{lines[-1]} {word}".lstrip()
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        rest = word
        while fold and cell_len(rest) > width:
            end = max(n for n in range(1, len(rest)) if n == 1 or cell_len(rest[:n]) <= width)
            end = max((n for n in range(end // 2 + 1, end + 1) if rest[n - 1] in "?&=/-_.,"), default=end)
            lines[-1], rest = rest[:end], rest[end:]
            lines.append("")
        lines[-1] = rest
    return lines


class TextColumn:
    """Cells of a table, the heading first, and how narrow they may become. The first column of a table names the row;
    another is numeric if all of its cells are."""

    def __init__(self, cells: Sequence[str], numeric: bool) -> None:
        from rich.cells import cell_len

        self.cells, self.numeric = cells, numeric
        self.natural = max(map(cell_len, cells))
        words = max((cell_len(word) for cell in cells for word in UNIT.findall(cell)), default=0)
        self.least = words if numeric else min(self.natural if self.natural <= NARROWEST else words, NARROWEST)


def _draw(block: Sequence[TextColumn], width: int | None) -> list[str]:
    """At natural widths if they fit. Else texts take the room that numbers leave, then numbers take what is left."""
    from rich.cells import cell_len

    gaps = len(GAP) * (len(block) - 1)
    widths = [column.natural for column in block]
    if width is not None and sum(widths) + gaps > width:
        widths = [column.least for column in block]
        room = max(0, width - sum(widths) - gaps)
        for n in sorted(range(len(block)), key=lambda n: block[n].numeric):
            missing = block[n].natural - block[n].least
            taken = min(missing, room) if not block[n].numeric else missing * (missing <= room)
            widths[n] += taken
            room -= taken
    lines = []
    for row in range(len(block[0].cells)):
        cells = [wrap(c.cells[row], w, fold=not c.numeric) for c, w in zip(block, widths, strict=True)]
        for texts in zip_longest(*cells, fillvalue=""):
            padded = []
            for column, column_width, text in zip(block, widths, texts, strict=True):
                space = " " * (column_width - cell_len(text))
                padded.append(space + text if column.numeric else text + space)
            lines.append(GAP.join(padded).rstrip())
        if row == 0:
            lines.append("─" * (sum(widths) + gaps))
    return lines
