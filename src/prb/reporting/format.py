"""Numbers and tables as text: how every table of the terminal, Markdown, CSV, LaTeX and the site writes its cells."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from html import escape
from itertools import chain, count, zip_longest
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


def dollars(amount: float | None) -> str:
    return MISSING if amount is None else f"${amount:,.4f}"


FOLDERS = re.compile(r"""(?<![\w./:~-])(?:~|\.{1,2})?/(?:[^\s/?&#"'<>|,;()]+/)+(?=[^\s/?&#])""")


def without_folders(text: str) -> str:
    """Paths of this machine in a name, spec or message become file names; addresses of servers and the hub stay."""
    return FOLDERS.sub("", text)


def shortened(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def distinct(names: Iterable[str], mark: str = " ") -> list[str]:
    """The names in order; one that was there before, in any case, has a number."""
    taken: list[str] = []
    for name in names:
        numbered = (f"{name}{mark}{number}" for number in count(2))
        taken.append(next(one for one in chain([name], numbered) if one.lower() not in map(str.lower, taken)))
    return taken


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
    """A cell that a spreadsheet would take for a formula, as it begins like one and is not a number, gets an apostrophe
    (https://owasp.org/www-community/attacks/CSV_Injection)."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [f"'{cell}" if cell.startswith(FORMULA) and not IS_NUMBER.fullmatch(cell) else cell for cell in row]
        for row in (table.columns, *table.rows)
    )
    return out.getvalue()


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
"""Characters to which names and texts may be wrapped before the table is cut into blocks of columns."""
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
        title = Text(visible("\n".join(wrap([table.title], width))), style="bold")
        sections.append(Text("\n").join([title, *(Text(visible(line)) for line in wrap(table.lead, width))]))
        sections.append(Text(visible("\n".join(layout(table, width)))))
        if table.notes:
            sections.append(Text(visible("\n".join(wrap(table.notes, width))), style="dim"))
    for position, section in enumerate(sections):
        console.print(*([""] if position else []), section, sep="\n")


def plain(table: Table) -> str:
    """All that `show` prints of a table, notes included."""
    about, notes = [table.title, *table.lead], ["", *table.notes] if table.notes else []
    return "\n".join([*about, "", *layout(table, None), *notes])


def say(*lines: str) -> None:
    """Lines of text on standard output; a terminal would break them within words, so there they are wrapped."""
    sys.stdout.writelines(f"{visible(line)}\n" for line in wrap(lines, _terminal_width()))


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrap(lines: Sequence[str], width: int | None) -> Sequence[str]:
    """Lines of whole words; a longer word is folded."""
    if width is None:
        return lines
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    wrapped: list[str] = []
    for line in lines:
        fits = cell_len(line) <= width
        wrapped += [line] if fits else [part.plain.rstrip() for part in Text(line).wrap(Console(), width)]
    return wrapped


def layout(table: Table, width: int | None) -> list[str]:
    """The lines of a table, at most `width` columns wide.

    Names and texts are wrapped; columns that do not fit even so follow below, with the first column again. A column of
    numbers is never narrower than they are.
    """
    from rich.cells import cell_len

    columns = [[CONTROL.sub(" ", cell) for cell in cells] for cells in zip(table.columns, *table.rows, strict=True)]
    numeric = [n > 0 and all(map(NUMERIC.fullmatch, cells[1:])) for n, cells in enumerate(columns)]
    widths = [max(map(cell_len, cells)) for cells in columns]
    if width is not None:
        texts = [size for size, is_number in zip(widths, numeric, strict=True) if not is_number]
        room = width - sum(widths) + sum(texts) - len(GAP) * (len(widths) - 1)
        fitting = (most for most in range(width, NARROWEST - 1, -1) if sum(min(size, most) for size in texts) <= room)
        most = next(fitting, max(NARROWEST, width // 3))
        widths = [size if is_number else min(size, most) for size, is_number in zip(widths, numeric, strict=True)]
    blocks = [[0]]
    for n in range(1, len(columns)):
        needed = sum(widths[m] + len(GAP) for m in blocks[-1]) + widths[n]
        if width is not None and needed > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(n)
    lines: list[str] = []
    for block in blocks:
        lines += [""] * bool(lines)
        for row in range(len(table.rows) + 1):
            cells = [wrap([columns[n][row]], widths[n]) for n in block]
            for parts in zip_longest(*cells, fillvalue=""):
                spaces = [" " * (widths[n] - cell_len(part)) for n, part in zip(block, parts, strict=True)]
                aligned = zip(block, parts, spaces, strict=True)
                line = GAP.join(space + part if numeric[n] else part + space for n, part, space in aligned)
                lines.append(line.rstrip())
            if row == 0:
                lines.append("─" * (sum(widths[n] + len(GAP) for n in block) - len(GAP)))
    return lines
