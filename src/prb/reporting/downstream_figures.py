"""Figures of downstream results, in the look of `prb.reporting.style`.

`write_*` is what a verb calls when it has finished: it puts the verb's figure into the run folder, or notes that
matplotlib is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prb.downstream.bon import trust
from prb.downstream.ppo.checkpoints import CURVES, read_curves
from prb.progress import SILENT, Progress
from prb.reporting.downstream_results import PPO_PANELS
from prb.reporting.format import number, p_equals, shortened
from prb.reporting.style import INK, PAPER, SERIES, SOFT, drawing, series, whiskers, write_or_note

Result = Mapping[str, Any]
DIRECT, SHORT = 12, 24
"""Up to this many models, with names no longer than this, are named beside their points; others get a number."""
KEY_ROWS = 24
SIZE = 7
PANEL = (210, 170)
"""About the size of what a panel shows, in points: labels are placed by it."""
COLORS = {False: SERIES[0], True: SERIES[1]}
"""Of models, and of constructed ones."""


# --- into run folders ---
def write_bon(summary: Result, folder: Path, progress: Progress = SILENT) -> None:
    write_or_note(partial(best_of_n, summary), folder / "bon.svg", progress)


def write_ppo(summary: Result, folder: Path, progress: Progress = SILENT) -> None:
    rows = read_curves(folder / CURVES, up_to=summary["train"]["steps"])
    write_or_note(partial(ppo, {**summary, "curves": rows}), folder / "curves.svg", progress)


def write_scatter(result: Result, folder: Path, progress: Progress = SILENT) -> None:
    write_or_note(partial(scatter, result), folder / "scatter.svg", progress)


# --- best-of-N, PPO, learning curves ---
def best_of_n(summary: Result, *paths: Path) -> None:
    """Expected grade against k, with the KL bound below it and the grader's validity below that."""
    queries, ks = summary["queries"], summary["ks"]
    size = f"{queries['used']} queries, {queries['clusters']} clusters, condition {summary['condition']}"
    title = f"{summary['policy']['spec']} on {summary['dataset']['name']}: {size}"
    alt = f"Expected graded score of best-of-k against k. {title}. {trust(summary)}"
    with drawing(*paths, width=7.5, height=4.8, alt=alt) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for name, color, dash in (("oracle", INK, "--"), ("random", SOFT, ":")):
            known = [point for point in summary[name] if point["value"] is not None]
            values = [100 * point["value"] for point in known]
            axes.plot([point["k"] for point in known], values, dash, color=color, label=f"({name} pick)")
        for position, result in enumerate(summary["results"]):
            _best_of_n_line(axes, result, position, len(summary["results"]))
        axes.minorticks_off()
        axes.set_xticks(ks, [f"{k}\n{number(bound, 2)}" for k, bound in zip(ks, summary["kl_bound"], strict=True)])
        axes.set_xlabel("k of best-of-k; below it the bound on its KL to the policy, log k − (k−1)/k")
        axes.set_ylabel("graded score, % of the rubric")
        axes.grid(axis="y")
        figure.suptitle(title, x=0.01, ha="left")
        figure.legend(loc="outside right center")
        figure.supxlabel(trust(summary), fontsize=7, color=SOFT, wrap=True)


def _best_of_n_line(axes: Any, result: Result, position: int, lines: int) -> None:
    """A curve, with a ring around its peak if it then goes down significantly."""
    known = [point for point in result["curve"] if point["value"] is not None]
    beside = 2 ** (0.03 * (position - (lines - 1) / 2))  # or the error bars would hide each other
    spots = {point["k"]: (point["k"] * beside, 100 * point["value"]) for point in known}
    x, y = [spot[0] for spot in spots.values()], [spot[1] for spot in spots.values()]
    axes.errorbar(x, y, whiskers(known), elinewidth=0.8, label=result["model"], **series(position))
    if result["bend"] and result["bend"]["down"]:
        peak = spots[result["bend"]["peak"]]
        axes.plot(*peak, "o", ms=11, mfc="none", mec=INK, mew=1)
        axes.annotate("then down", peak, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=7)


def ppo(summary: Result, *paths: Path) -> None:
    """Reward, KL to the reference, length and entropy over the steps, from the summary with its `curves`."""
    rows = summary["curves"]
    title = shortened(f"{summary['policy']['spec']} against {summary['model']['spec']}", 100)
    alt = f"PPO, {len(rows)} steps: reward, KL, length and entropy. {title}"
    with drawing(*paths, width=7.5, height=4.4, alt=alt) as figure:
        for axes, (name, label), color in zip(figure.subplots(2, 2).flat, PPO_PANELS.items(), SERIES, strict=False):
            axes.plot([row["step"] for row in rows], [row[name] for row in rows], color=color)
            axes.set_title(label)
            axes.set_xlabel("step")
            axes.grid(axis="y")
        figure.suptitle(title, x=0.01, ha="left")


# --- correlation ---
def scatter(result: Result, *paths: Path) -> None:
    """One panel for each benchmark (across) and downstream (down)."""
    bench, downstream, models = result["bench"], result["downstream"], result["models"]
    labels, key = models, []
    if len(models) > DIRECT or max(map(len, models)) > SHORT:
        labels = [str(n) for n in range(1, len(models) + 1)]
        key = [f"{n}  {shortened(model, 44)}" for n, model in zip(labels, models, strict=True)]
    width = 4.6 * len(bench) + (2.6 * (1 + (len(key) - 1) // KEY_ROWS) if key else 0)
    alt = f"Benchmark scores against downstream scores of {len(models)} models."
    with drawing(*paths, width=width, height=3.8 * len(downstream), alt=alt) as figure:
        grid = figure.subplots(len(downstream), len(bench), squeeze=False)
        for row, y in zip(grid, downstream, strict=True):
            for axes, x in zip(row, bench, strict=True):
                _panel(axes, x, y, labels, [model in result["constructed"] for model in models])
                axes.set_title(_evidence(result["sets"], x["name"], y["name"]), fontsize=SIZE)
        _legend(figure, key, bool(result["constructed"]))


def _panel(axes: Any, x: Result, y: Result, labels: Sequence[str], constructed: Sequence[bool]) -> None:
    for kind, color in COLORS.items():
        at = [n for n, flag in enumerate(constructed) if flag == kind]
        axes.errorbar(
            *([column["values"][n] for n in at] for column in (x, y)),
            xerr=_bars(x, at),
            yerr=_bars(y, at),
            fmt="s" if kind else "o",
            ms=4,
            color=color,
            mfc=PAPER if kind else color,
            elinewidth=0.6,
            ecolor=(color, 0.4),
        )
    offsets = _label_offsets(x, y, labels)
    for label, *spot, offset in zip(labels, x["values"], y["values"], offsets, strict=True):
        axes.annotate(label, spot, xytext=offset, textcoords="offset points", fontsize=SIZE)
    axes.set_xlabel(x["name"])
    axes.set_ylabel(y["name"])
    axes.grid()
    axes.margins(0.12)


def _label_offsets(x: Result, y: Result, labels: Sequence[str]) -> list[tuple[float, float]]:
    """For each label the first place around its point that covers no point and no earlier label, else the emptiest."""
    in_points = []  # about where values come to stand in a panel
    for values, size in ((x["values"], PANEL[0]), (y["values"], PANEL[1])):
        low, high = min(values), max(values)
        in_points.append([size * (value - low) / ((high - low) or 1) for value in values])
    spots = list(zip(*in_points, strict=True))
    taken = [(px - 3, py - 3, px + 3, py + 3) for px, py in spots]
    offsets: list[tuple[float, float]] = []
    for (px, py), label in zip(spots, labels, strict=True):
        width = 0.58 * SIZE * len(label)
        tries = [(dx, dy) for dy in (3, -9, 11, -17) for dx in (4, -4 - width)] + [(-width / 2, dy) for dy in (6, -13)]
        boxes = [(px + dx, py + dy, px + dx + width, py + dy + SIZE) for dx, dy in tries]
        covered = [
            sum(x0 < right and left < x1 and y0 < top and bottom < y1 for left, bottom, right, top in taken)
            for x0, y0, x1, y1 in boxes
        ]
        best = covered.index(min(covered))
        taken.append(boxes[best])
        offsets.append(tries[best])
    return offsets


def _bars(column: Result, at: Sequence[int]) -> list[float] | None:
    return None if column["errors"] is None else [1.96 * column["errors"][n] for n in at]


def _evidence(sets: Sequence[Result], bench: str, downstream: str) -> str:
    """By set of models, the first measure of a benchmark and a downstream result."""
    lines = []
    for part in sets:
        cell = next((c for c in part["correlations"] if (c["bench"], c["downstream"]) == (bench, downstream)), None)
        if cell:
            evidence = f"{cell['measure']} {number(cell['value'], 2)}, {p_equals(cell['p'])}"
            lines.append(f"{part['set']}, n = {part['n']}: {evidence}")
    return "\n".join(lines)


def _legend(figure: Any, key: Sequence[str], constructed: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], ls="", label=line) for line in key]
    if constructed:
        looks = (("o", "model", COLORS[False], COLORS[False]), ("s", "constructed", COLORS[True], PAPER))
        for mark, label, color, face in looks:
            handles.append(Line2D([], [], ls="", marker=mark, ms=4, color=color, mfc=face, label=label))
    if handles:
        columns = 1 + (len(handles) - 1) // KEY_ROWS
        figure.legend(handles=handles, loc="outside right upper", fontsize=6.5, handlelength=1, ncols=columns)
