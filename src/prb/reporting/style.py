"""The one look of all figures: colours told apart by everybody and on either paper, the same bytes each time.

An SVG follows the reader's dark mode (every colour is one of `DARK`'s keys and has a counterpart there); a PDF is for
print. Text stays text in both.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prb.errors import MissingExtra
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
"""Of lines that have no condition; from the seventh on they come again with other marks and dashes."""
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


@contextmanager
def drawing(*paths: Path, width: float, height: float, alt: str = "") -> Iterator[Any]:
    """A figure, `width` × `height` inches, written to every path (.svg, .pdf) when the block is done."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("the plot", "figures") from None
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for path in paths:
            write_bytes(path, _bytes(figure, path.suffix[1:], alt))


def _bytes(figure: Any, kind: str, alt: str) -> bytes:
    drawn = io.BytesIO()
    undated = {"Date": None} if kind == "svg" else {"CreationDate": None, "Producer": None}
    figure.savefig(drawn, format=kind, metadata={**undated, "Creator": "prb", **({"Title": alt} if alt else {})})
    return _following_dark(drawn.getvalue().decode(), alt).encode() if kind == "svg" else drawn.getvalue()


def _following_dark(svg: str, alt: str) -> str:
    """Rules that outrank the colours matplotlib wrote, and words for those who do not see the picture."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
        if f"{what}: {light}" in svg
    ]
    style = f"<style>:root{{color-scheme:light dark}}@media(prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    said = f"<title>{_escaped(alt)}</title>" if alt else ""
    head = re.compile(r"<svg ([^>]*)>")
    label = f'role="img" aria-label="{_escaped(alt)}" ' if alt else ""
    return head.sub(lambda found: f"<svg {label}{found[1]}>\n {said}{style}", svg, count=1)


def _escaped(text: str) -> str:
    from html import escape

    return escape(text)


def series(position: int) -> dict[str, Any]:
    """Colour, mark and dash of the n-th line: never the same three twice among 24."""
    again, colour = divmod(position, len(SERIES))
    mark = MARKS[(colour + again) % len(MARKS)]
    return {"color": SERIES[colour], "marker": mark, "linestyle": DASHES[again % len(DASHES)]}


def whiskers(estimates: Sequence[Mapping[str, Any]], scale: float = 100) -> list[list[float]]:
    """Lengths below and above each value; none where an end is unknown."""
    return [[0.0 if e[end] is None else scale * abs(e["value"] - e[end]) for e in estimates] for end in ("low", "high")]
