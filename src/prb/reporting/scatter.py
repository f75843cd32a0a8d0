"""A benchmark's scores against downstream scores: a point a model, with its name and 95 % error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prb.reporting.format import number, p_equals, shortened
from prb.reporting.style import PAPER, SERIES, drawing

DIRECT, SHORT = 12, 24
"""Up to so many models with so short names are named beside their points, others by numbers and a key."""
KEY_ROWS = 24
SIZE = 7
PANEL = (210, 170)
"""About the size of what a panel shows, in points: labels are placed by it."""
COLOURS = {False: SERIES[0], True: SERIES[1]}
"""Of models as they are, and of constructed ones."""


def scatter(result: Mapping[str, Any], *paths: Path) -> None:
    """One panel for each benchmark (across) and downstream (down)."""
    bench, downstream = result["bench"], result["downstream"]
    labels, key = _labels(result["models"])
    width = 4.6 * len(bench) + (2.6 * (1 + (len(key) - 1) // KEY_ROWS) if key else 0)
    alt = f"Benchmark scores against downstream scores of {len(result['models'])} models."
    with drawing(*paths, width=width, height=3.8 * len(downstream), alt=alt) as figure:
        grid = figure.subplots(len(downstream), len(bench), squeeze=False)
        for row, y in zip(grid, downstream, strict=True):
            for axes, x in zip(row, bench, strict=True):
                _panel(axes, x, y, labels, [model in result["constructed"] for model in result["models"]])
                axes.set_title(_claim(result["sets"], x["name"], y["name"]), fontsize=SIZE)
        _legend(figure, key, bool(result["constructed"]))


def _labels(models: Sequence[str]) -> tuple[list[str], list[str]]:
    if len(models) <= DIRECT and max(map(len, models)) <= SHORT:
        return list(models), []
    numbers = [str(n) for n in range(1, len(models) + 1)]
    return numbers, [f"{n}  {shortened(model, 44)}" for n, model in zip(numbers, models, strict=True)]


def _panel(
    axes: Any, x: Mapping[str, Any], y: Mapping[str, Any], labels: Sequence[str], made_up: Sequence[bool]
) -> None:
    for kind, colour in COLOURS.items():
        at = [n for n, constructed in enumerate(made_up) if constructed == kind]
        axes.errorbar(
            *([column["values"][n] for n in at] for column in (x, y)),
            xerr=_bars(x, at),
            yerr=_bars(y, at),
            fmt="s" if kind else "o",
            ms=4,
            color=colour,
            mfc=PAPER if kind else colour,
            elinewidth=0.6,
            ecolor=(colour, 0.4),
        )
    for label, spot, beside in zip(
        labels, zip(x["values"], y["values"], strict=True), _places(x, y, labels), strict=True
    ):
        axes.annotate(label, spot, xytext=beside, textcoords="offset points", fontsize=SIZE)
    axes.set_xlabel(x["name"])
    axes.set_ylabel(y["name"])
    axes.grid()
    axes.margins(0.12)


def _places(x: Mapping[str, Any], y: Mapping[str, Any], labels: Sequence[str]) -> list[tuple[float, float]]:
    """For each label the first place around its point that covers no point and no earlier label, else the emptiest."""
    spots = list(zip(_points(x["values"], PANEL[0]), _points(y["values"], PANEL[1]), strict=True))
    taken = [(px - 3, py - 3, px + 3, py + 3) for px, py in spots]
    found: list[tuple[float, float]] = []
    for (px, py), label in zip(spots, labels, strict=True):
        width = 0.58 * SIZE * len(label)
        tries = [(dx, dy) for dy in (3, -9, 11, -17) for dx in (4, -4 - width)] + [(-width / 2, dy) for dy in (6, -13)]
        boxes = [(px + dx, py + dy, px + dx + width, py + dy + SIZE) for dx, dy in tries]
        covered = [sum(_meet(box, other) for other in taken) for box in boxes]
        best = covered.index(min(covered))
        taken.append(boxes[best])
        found.append(tries[best])
    return found


def _points(values: Sequence[float], size: float) -> list[float]:
    """About where values come to stand in a panel, in points."""
    low, high = min(values), max(values)
    return [size * (value - low) / ((high - low) or 1) for value in values]


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _bars(column: Mapping[str, Any], at: Sequence[int]) -> list[float] | None:
    return None if column["errors"] is None else [1.96 * column["errors"][n] for n in at]


def _claim(sets: Sequence[Mapping[str, Any]], bench: str, downstream: str) -> str:
    lines = []
    for part in sets:
        for cell in part["correlations"][:1]:
            wanted = (bench, downstream, cell["measure"])
            found = next(c for c in part["correlations"] if (c["bench"], c["downstream"], c["measure"]) == wanted)
            evidence = f"{found['measure']} {number(found['value'], 2)}, {p_equals(found['p'])}"
            lines.append(f"{part['set']}, n = {part['n']}: {evidence}")
    return "\n".join(lines)


def _legend(figure: Any, key: Sequence[str], constructed: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], ls="", label=line) for line in key]
    if constructed:
        marks = {False: ("o", "model"), True: ("s", "constructed")}
        handles += [
            Line2D(
                [],
                [],
                ls="",
                marker=mark,
                ms=4,
                color=COLOURS[kind],
                mfc=PAPER if kind else COLOURS[kind],
                label=label,
            )
            for kind, (mark, label) in marks.items()
        ]
    if handles:
        columns = 1 + (len(handles) - 1) // KEY_ROWS
        figure.legend(handles=handles, loc="outside right upper", fontsize=6.5, handlelength=1, ncols=columns)
