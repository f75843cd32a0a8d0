"""The one look of all figures: colors for color-blind readers on light and dark paper, the same bytes each time.

An SVG follows the reader's dark mode (every color is one of `DARK`'s keys and has a counterpart there); a PDF is for
print. Text stays text in both.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from prb.errors import MissingExtra
from prb.progress import Progress
from prb.runs import write_bytes

INK, SOFT, LINE, PAPER = "#1c2330", "#5a6474", "#d9dee6", "#ffffff"
CONDITIONS = {
    "none": "#767f8f",
    "profile": "#0072b2",
    "plan": "#009e73",
    "shuffled": "#b8531a",
    "oracle": "#a3508a",
}
SERIES = ("#0072b2", "#b8531a", "#009e73", "#a3508a", "#5b3fd0", "#4d4a12")
"""Of lines that have no condition; from the seventh on they repeat with other marks and dashes."""
MARKS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
DARK = {
    INK: "#e7eaf0",
    SOFT: "#a3adbd",
    LINE: "#343c4a",
    PAPER: "#1b212b",
    "#767f8f": "#8f99aa",
    "#0072b2": "#56b4e9",
    "#009e73": "#33c19b",
    "#b8531a": "#e8945a",
    "#a3508a": "#d58ac0",
    "#5b3fd0": "#8f7bff",
    "#4d4a12": "#f0dc5a",
}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "prb",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.facecolor": PAPER,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "figure.titlesize": 10,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
}


def load_matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError:
        raise MissingExtra("the plot", "figures") from None
    return matplotlib


@contextmanager
def drawing(*paths: Path, width: float, height: float, alt: str = "") -> Iterator[Any]:
    """A figure, `width` × `height` inches, written to every path (.svg, .pdf) when the block is done."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure
        about = {"Creator": "prb", **({"Title": alt} if alt else {})}
        for path in paths:
            drawn = io.BytesIO()
            if path.suffix == ".svg":
                figure.savefig(drawn, format="svg", metadata={"Date": None, **about})
                write_bytes(path, _with_dark_mode(drawn.getvalue().decode(), alt).encode())
            else:
                figure.savefig(drawn, format="pdf", metadata={"CreationDate": None, "Producer": None, **about})
                write_bytes(path, drawn.getvalue())


def _with_dark_mode(svg: str, alt: str) -> str:
    """Add rules that override matplotlib's colors in dark mode, and a description for screen readers."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
        if f"{what}: {light}" in svg
    ]
    style = f"<style>:root{{color-scheme:light dark}}@media(prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    title = f"<title>{escape(alt)}</title>" if alt else ""
    label = f'role="img" aria-label="{escape(alt)}" ' if alt else ""
    return re.sub(r"<svg ([^>]*)>", lambda head: f"<svg {label}{head[1]}>\n {title}{style}", svg, count=1)


def series(position: int) -> dict[str, Any]:
    """Color, mark and dash of the n-th line: no two of 24 lines look the same."""
    again, color = divmod(position, len(SERIES))
    mark = MARKS[(color + again) % len(MARKS)]
    return {"color": SERIES[color], "marker": mark, "linestyle": DASHES[again % len(DASHES)]}


def whiskers(estimates: Sequence[Mapping[str, Any]], scale: float = 100) -> list[list[float]]:
    """Lengths below and above each value; none where an end is unknown."""
    return [[0.0 if e[end] is None else scale * abs(e["value"] - e[end]) for e in estimates] for end in ("low", "high")]


def write_or_note(draw: Callable[[Path], None], path: Path, progress: Progress) -> None:
    """Draw a figure that a verb leaves beside its results; without matplotlib there is a note instead."""
    try:
        draw(path)
    except MissingExtra as missing:
        progress.note(f"no {path.name}: {missing}")
