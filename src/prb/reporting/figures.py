"""All figures and their look.

Colors are for color-blind readers, the same input gives the same bytes, and text is text.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from prb.downstream.columns import PLURAL
from prb.downstream.correlate import CorrelationSummary, ModelSet
from prb.errors import MissingExtra
from prb.progress import Progress
from prb.reporting.format import Number, number, p_equals, shortened, stars
from prb.reporting.results import MEASURES, BestOfN, Correlation, Run, significant
from prb.runs import write_bytes
from prb.summary import CONDITIONS, MAIN, METRICS, Summary

NAMED = 12
"""Up to this many models have a color and a shape of their own."""
FAMILIES, OTHERS = 6, "others"
"""Families of models with a color of their own."""
INK, SOFT, LINE, PAPER = "#1c2330", "#5a6474", "#d9dee6", "#ffffff"
SERIES = ("#0072b2", "#b8531a", "#009e73", "#a3508a", "#5b3fd0", "#4d4a12")
"""Of lines that have no condition; from the seventh on they repeat with other marks and dashes."""
MARKS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "prb",
    "svg.fonttype": "none",
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
def drawing(path: Path, *, width: float, height: float, alt: str) -> Iterator[Any]:
    """A figure, `width` × `height` inches, written as SVG when the block is done."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": "prb", "Title": alt})
        label = f'<svg role="img" aria-label="{escape(alt)}" '  # for screen readers
        write_bytes(path, drawn.getvalue().replace(b"<svg ", label.encode(), 1))


def series(position: int) -> dict[str, Any]:
    """Color, mark and dash of the n-th line: no two of 24 lines look the same."""
    again, color = divmod(position, len(SERIES))
    mark = MARKS[(color + again) % len(MARKS)]
    return {"color": SERIES[color], "marker": mark, "linestyle": DASHES[again % len(DASHES)]}


def whiskers(estimates: Sequence[Any]) -> list[list[float]]:
    """Lengths below and above each value, in points; none where an end is unknown."""
    ends = [(e.value, end) for e in map(Number.of, estimates) for end in (e.low, e.high)]
    lengths = [0.0 if value is None or end is None else 100 * abs(value - end) for value, end in ends]
    return [lengths[::2], lengths[1::2]]


def write_figure_of(run: Run, progress: Progress) -> None:
    """The figure that a verb leaves beside its result; without matplotlib there is a note instead."""
    name, draw = FIGURES[run.kind]
    try:
        draw(run, run.folder / name)
    except MissingExtra as missing:
        progress.note(f"no {name}: {missing}")


# --- evaluate ---
def contrasts(summary: Summary, path: Path) -> None:
    """Gain and control with their intervals, the most accurate model first; filled where Holm's p is below 5 %."""
    present = [m for m in METRICS.values() if m.difference and any(c.kind == m.key for c in summary.contrasts)]
    results = [result for result in summary.pairs if result.condition == summary.shown]
    results.sort(key=lambda r: (r.accuracy.value is None, -(r.accuracy.value or 0)))
    models = [result.model for result in results]
    data = summary.dataset
    about = f"{shortened(data.label, 60)}: {data.rows} pairs, {data.clusters} clusters"
    alt = f"Gain and control of {len(models)} models in points, with 95 % intervals. {about}"
    with drawing(path, width=7.5, height=1.3 + 0.26 * len(models), alt=alt) as figure:
        panels = figure.subplots(1, len(present), sharey=True, squeeze=False)[0]
        for axes, metric in zip(panels, present, strict=True):
            axes.axvline(0, color=SOFT, lw=0.9)
            color = CONDITIONS[MAIN if metric.needs[-1] == "none" else metric.needs[-1]].color
            for place, model in enumerate(models):
                contrast = summary.contrasts_of(model).get(metric.key)
                if contrast and contrast.value is not None:
                    filling = color if significant(contrast.p_holm) else PAPER
                    look = {"fmt": "o", "color": color, "mfc": filling, "elinewidth": 1.1}
                    axes.errorbar([100 * contrast.value], [place], xerr=whiskers([contrast]), **look)
                    above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
                    axes.annotate(stars(contrast.p_holm), (100 * contrast.value, place), **above)
            axes.set_title(f"{metric.label}: {' − '.join(metric.needs)}")
            axes.set_xlabel("points, 95 % interval")
            axes.margins(x=0.1)
        panels[0].set_yticks(range(len(models)), [shortened(model) for model in models])
        panels[0].set_ylim(len(models) - 0.4, -0.6)
        panels[0].tick_params(axis="y", length=0)
        panels[0].grid()
        for axes in panels[1:]:
            axes.grid(axis="y")
        figure.suptitle(about, x=0.01, ha="left")
        how = "filled: p < .05 (sign flips, Holm); stars: .05, .01, .001"
        figure.supxlabel(how, x=0.01, ha="left", fontsize=7, color=SOFT)


# --- bon ---
def best_of_n(run: BestOfN, path: Path) -> None:
    """Expected grade against k, with the KL bound below it and the grader's validity below that."""
    bon = run.typed
    size = f"{bon.queries.used} queries, {bon.queries.clusters} clusters, condition {bon.condition}"
    title = f"{bon.policy.spec} on {bon.dataset.label}: {size}"
    alt = f"Expected graded score of best-of-k against k. {title}. {bon.grader.trust}"
    with drawing(path, width=7.5, height=4.8, alt=alt) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for name, curve, color, dash in (("oracle", bon.oracle, INK, "--"), ("random", bon.random, SOFT, ":")):
            known = [point for point in curve if point.value is not None]
            values = [100 * (point.value or 0) for point in known]
            axes.plot([point.k for point in known], values, dash, color=color, label=f"({name} pick)")
        for position, result in enumerate(bon.results):
            points = [point for point in result.curve if point.value is not None]
            beside = 2 ** (0.03 * (position - (len(bon.results) - 1) / 2))  # or the error bars would hide each other
            spots = {point.k: (point.k * beside, 100 * (point.value or 0)) for point in points}
            x, y = [spot[0] for spot in spots.values()], [spot[1] for spot in spots.values()]
            axes.errorbar(x, y, whiskers(points), elinewidth=0.8, label=result.model, **series(position))
            if result.bend and result.bend.down and result.bend.peak in spots:  # a ring: from here it goes down
                peak = spots[result.bend.peak]
                axes.plot(*peak, "o", ms=11, mfc="none", mec=INK, mew=1)
                axes.annotate("then down", peak, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=7)
        axes.minorticks_off()
        axes.set_xticks(bon.ks, [f"{k}\n{number(bound, 2)}" for k, bound in zip(bon.ks, bon.kl_bound, strict=True)])
        axes.set_xlabel("k of best-of-k; below it the bound on its KL to the policy, log k − (k−1)/k")
        axes.set_ylabel("graded score, % of the rubric")
        axes.grid(axis="y")
        figure.suptitle(title, x=0.01, ha="left")
        figure.legend(loc="outside right center")
        figure.supxlabel(bon.grader.trust, fontsize=7, color=SOFT, wrap=True)


# --- correlate ---
def families(result: CorrelationSummary) -> list[str]:
    """Of every model, where the table names families; small ones beyond what a reader tells apart are one."""
    kinds = [result.families.get(m) or ("constructed" if m in result.constructed else "model") for m in result.models]
    shown = dict(Counter(kinds).most_common(FAMILIES))
    return [kind if kind in shown or len(set(kinds)) == FAMILIES + 1 else OTHERS for kind in kinds]


def scatter(run: Correlation, path: Path) -> None:
    """One panel for each benchmark (across) and downstream (down); a color and a shape for each model, or where there
    are many, for each family of models."""
    result = run.typed
    models = result.models
    kinds = models if len(models) <= NAMED else families(result)
    looks = {kind: series(n) for n, kind in enumerate(sorted(set(kinds) - {OTHERS}))}
    looks |= {OTHERS: {"color": SOFT, "marker": "x"}} if OTHERS in kinds else {}
    alt = f"Benchmark scores against downstream scores of {len(models)} {PLURAL[result.unit]}."
    width = 4.2 * len(result.bench) + (1.6 if len(looks) > 1 else 0)
    with drawing(path, width=width, height=3.6 * len(result.downstream), alt=alt) as figure:
        grid = figure.subplots(len(result.downstream), len(result.bench), squeeze=False)
        for row, y in zip(grid, result.downstream, strict=True):
            for axes, x in zip(row, result.bench, strict=True):
                for kind, base in looks.items():
                    at = [n for n, other in enumerate(kinds) if other == kind]
                    look = {**base, "linestyle": "", "ms": 4.5, "elinewidth": 0.6, "ecolor": (base["color"], 0.4)}
                    if models[at[0]] in result.constructed:
                        look["mfc"] = PAPER
                    spots = [[column.values[n] for n in at] for column in (x, y)]
                    bars = [None if c.errors is None else [1.96 * c.errors[n] for n in at] for c in (x, y)]
                    axes.errorbar(*spots, xerr=bars[0], yerr=bars[1], label=shortened(kind, 24), **look)
                axes.set(xlabel=x.name, ylabel=y.name)
                axes.grid()
                axes.margins(0.12)
                _show_evidence(axes, result.sets, x.name, y.name)
        if len(looks) > 1:
            handles, labels = grid[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right upper")


def _show_evidence(axes: Any, sets: Sequence[ModelSet], bench: str, downstream: str) -> None:
    """The first measure, large for the first set of models, and for every set with its p."""
    cells = [(part, c) for part in sets for c in part.correlations if (c.bench, c.downstream) == (bench, downstream)]
    firsts = [(part, c) for part, c in cells if c.measure == part.correlations[0].measure]
    if not firsts:
        return
    name = "ρ" if firsts[0][1].measure == "spearman" else MEASURES[firsts[0][1].measure]
    axes.set_title(f"{name} = {number(firsts[0][1].value, 2)}", fontsize=15, pad=8 + 10 * len(firsts))
    lines = [f"{part.set}, n = {part.n}: {number(c.value, 2)}, {p_equals(c.p)}" for part, c in firsts]
    axes.text(0, 1.02, "\n".join(lines), transform=axes.transAxes, va="bottom", fontsize=7, color=SOFT)


FIGURES: dict[str, tuple[str, Callable[..., None]]] = {
    "bon": ("bon.svg", best_of_n),
    "correlation": ("scatter.svg", scatter),
}
"""By kind of result: what is drawn beside it."""
