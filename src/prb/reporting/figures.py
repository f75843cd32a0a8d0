"""Figures of evaluations and audits, and the figures of a site, each as SVG and PDF, made from the site's files.

A drawing function writes to all the paths it is given; the suffix of a path is its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

from prb.evaluation.config import shown_condition
from prb.progress import SILENT, Progress
from prb.reporting.downstream_figures import best_of_n, ppo, scatter
from prb.reporting.evaluation_results import audit_estimates
from prb.reporting.format import percent, shortened, stars
from prb.reporting.gather import FLOORS, Group, Inputs, dataset_label, read_any, result_name
from prb.reporting.style import CONDITIONS, LINE, MARKS, PAPER, SOFT, drawing, whiskers, write_or_note
from prb.stats.paired import LEVEL, correct

Summary = Mapping[str, Any]
Draw = Callable[..., None]
MAX_PANELS = 12
ACROSS = 4


# --- of a site ---
def write_figures(inputs: Inputs, folder: Path) -> list[Path]:
    """All figures of the inputs as .svg and .pdf; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: list[tuple[str, str, Draw]] = []  # kind, of what, how to draw it
    for group in inputs.groups:
        source = Path(group.about["name"]).stem
        figures += [(kind, source, draw) for kind, draw in of_summary(joined(group))]
    kinds = {"bon": ("best-of-n", best_of_n), "ppo": ("ppo", ppo), "correlation": ("correlation", scatter)}
    for kind, (name, draw) in {**kinds, "audit": ("audit", audit)}.items():
        for place in inputs.others.get(kind, ()):
            figures.append((name, result_name(place), partial(draw, read_any(place)[1])))
    written = []
    for name, draw in _file_names(figures):
        paths = [folder / f"{name}{suffix}" for suffix in (".svg", ".pdf")]
        draw(*paths)
        written += paths
    return written


def _file_names(figures: Sequence[tuple[str, str, Draw]]) -> Iterator[tuple[str, Draw]]:
    """`ppo`; with several of a kind `ppo-brevity`, and a number where that is not enough."""
    kinds = [kind for kind, *_ in figures]
    taken: set[str] = set()
    for kind, source, draw in figures:
        plain = "".join(c if c.isalnum() else "-" for c in source)
        name = kind if kinds.count(kind) == 1 else plain if plain.startswith(kind) else f"{kind}-{plain}"
        numbered, n = name, 1
        while numbered in taken:
            n += 1
            numbered = f"{name}-{n}"
        taken.add(numbered)
        yield numbered, draw


def joined(group: Group) -> Summary:
    """The summaries of a group's runs as one, with the site's names of models and Holm over all of them."""
    results, contrasts = [], []
    for entry in group.entries:
        summary = entry.run.summary
        about = {"model": entry.name, "floor": entry.spec in FLOORS}
        results += [{**row, **about} for row in summary["results"] if row["model"] == entry.model]
        contrasts += [{**row, **about} for row in summary["contrasts"] if row["model"] == entry.model]
    correct(contrasts)
    return {"dataset": group.about, "results": results, "contrasts": contrasts}


# --- of an evaluation ---
def of_summary(summary: Summary) -> Iterator[tuple[str, Draw]]:
    """The figures of an evaluation, by name; those that it has the numbers for."""
    rows = of_condition(summary)
    yield "leaderboard", partial(leaderboard_figure, summary)
    if any(row["value"] is not None for row in summary["contrasts"]):
        yield "gain-control", partial(contrasts, summary)
    if any(row["by_category"] for row in rows):
        yield "by-category", partial(by_label, summary, "by_category")
    if any(row["by_tier"] for row in rows):
        yield "by-tier", partial(by_label, summary, "by_tier")
    if any(row["biases"]["calibration"] for row in rows):
        yield "calibration", partial(calibration, summary)


def of_condition(summary: Summary) -> list[Mapping[str, Any]]:
    """Its results, the most accurate model first; models that never answered last."""
    shown = _shown(summary)
    rows = [row for row in summary["results"] if row["condition"] == shown]
    return sorted(rows, key=lambda row: (row["accuracy"]["value"] is None, -(row["accuracy"]["value"] or 0)))


def leaderboard_figure(summary: Summary, *paths: Path) -> None:
    """Accuracy of every model under every condition; the best floor and the ceiling as lines."""
    models = [row["model"] for row in of_condition(summary)]
    names = list(dict.fromkeys(row["condition"] for row in summary["results"]))
    accuracy = {(row["model"], row["condition"]): row["accuracy"] for row in summary["results"]}
    best = accuracy[models[0], _shown(summary)]["value"]
    leader = "nothing was answered" if best is None else f"first is {models[0]} with {percent(best)} %"
    alt = f"Accuracy of the models under each condition; under {_shown(summary)} {leader}. {_about(summary)}"
    with drawing(*paths, width=7.5, height=_height(len(models), len(names)), alt=alt) as figure:
        axes = figure.add_subplot()
        for n, name in enumerate(names):
            at = [place for place, model in enumerate(models) if _value(accuracy.get((model, name))) is not None]
            beside = 0.62 * (n / max(1, len(names) - 1) - 0.5) if len(names) > 1 else 0.0
            _dots(axes, [accuracy[models[p], name] for p in at], [p + beside for p in at], _look(name), name)
        _references(axes, summary)
        _rows(axes, models)
        axes.set_xlabel("accuracy in %, 95 % interval by cluster")
        figure.suptitle(_about(summary), x=0.01, ha="left")
        figure.legend(loc="outside lower left", ncols=3)


def _references(axes: Any, summary: Summary) -> None:
    axes.axvline(50, color=SOFT, lw=0.9, ls=":", label="chance; a user-blind model on mirror rows")
    floors = [row for row in of_condition(summary) if row["floor"] and row["accuracy"]["value"] is not None]
    if floors:
        best = floors[0]
        axes.axvline(100 * best["accuracy"]["value"], color=SOFT, lw=0.9, ls="--", label=f"best floor: {best['model']}")
    oracle = [row for row in summary["results"] if row["condition"] == "oracle" and row["accuracy"]["value"]]
    if oracle:
        best = max(oracle, key=lambda row: float(row["accuracy"]["value"]))
        label = f"ceiling: {best['model']} reading the rubric"
        axes.axvline(100 * best["accuracy"]["value"], color=CONDITIONS["oracle"], lw=0.9, ls="-.", label=label)


def contrasts(summary: Summary, *paths: Path) -> None:
    """Gain and control with their intervals; filled where Holm's p is below 5 %."""
    kinds = {"gain": "gain: profile − none", "control": "control: profile − another user's posts"}
    present = [kind for kind in kinds if any(row["kind"] == kind for row in summary["contrasts"])]
    models = [row["model"] for row in of_condition(summary)]
    contrast = {(row["model"], row["kind"]): row for row in summary["contrasts"]}
    alt = f"Gain and control of {len(models)} models in points, with 95 % intervals. {_about(summary)}"
    with drawing(*paths, width=7.5, height=_height(len(models), 1), alt=alt) as figure:
        panels = figure.subplots(1, len(present), sharey=True, squeeze=False)[0]
        for axes, kind in zip(panels, present, strict=True):
            axes.axvline(0, color=SOFT, lw=0.9)
            for place, model in enumerate(models):
                if (row := contrast.get((model, kind))) and row["value"] is not None:
                    color = CONDITIONS["profile" if kind == "gain" else "shuffled"]
                    clear = row["p_holm"] is not None and row["p_holm"] < LEVEL
                    _dots(axes, [row], [place], {"fmt": "o", "color": color, "mfc": color if clear else PAPER})
                    above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
                    axes.annotate(stars(row["p_holm"]), (100 * row["value"], place), **above)
            axes.set_title(kinds[kind])
            axes.set_xlabel("points, 95 % interval")
            axes.margins(x=0.1)
        _rows(panels[0], models)
        for axes in panels[1:]:
            axes.grid(axis="y")
        figure.suptitle(_about(summary), x=0.01, ha="left")
        figure.supxlabel(
            "filled: p < .05 (sign flips, Holm); stars: .05, .01, .001", x=0.01, ha="left", fontsize=7, color=SOFT
        )


def by_label(summary: Summary, field: str, *paths: Path) -> None:
    """One panel per category or tier, the largest first."""
    rows = of_condition(summary)
    counts: dict[str, int] = {}
    for row in rows:
        for label, estimate in row[field].items():
            counts[label] = max(counts.get(label, 0), estimate["n"])
    labels = sorted(counts, key=lambda label: -counts[label])[:MAX_PANELS]
    left = f"; {len(counts) - len(labels)} smaller ones left out" if len(counts) > len(labels) else ""
    title = f"{_about(summary)}; condition {_shown(summary)}{left}"
    down, across = ceil(len(labels) / ACROSS), min(len(labels), ACROSS)
    height = 0.5 + down * _height(len(rows), 1)
    alt = f"Accuracy of {len(rows)} models {field.replace('_', ' ')}. {title}"
    with drawing(*paths, width=max(4.5, 2 + 2.2 * across), height=height, alt=alt) as figure:
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes, label in zip(panels.flat, labels, strict=False):
            at = [n for n, row in enumerate(rows) if _value(row[field].get(label)) is not None]
            axes.axvline(50, color=SOFT, lw=0.9, ls=":")
            _dots(axes, [rows[n][field][label] for n in at], at, _look(_shown(summary)))
            axes.set_title(fill(f"{label.replace('_', ' ')} ({counts[label]})", 26), fontsize=8)
            axes.grid()
        for axes in list(panels.flat)[len(labels) :]:
            axes.set_visible(False)
        _rows(panels[0, 0], [row["model"] for row in rows])
        figure.supxlabel("accuracy in %, 95 % interval by cluster; in brackets: pairs", fontsize=8)
        figure.suptitle(title, x=0.01, ha="left")


def calibration(summary: Summary, *paths: Path) -> None:
    """How often a model is right against how sure it is; a dot's area is the share of pairs in its bin."""
    rows = [row for row in of_condition(summary) if row["biases"]["calibration"]]
    down, across = ceil(len(rows) / ACROSS), min(len(rows), ACROSS)
    title = f"{_about(summary)}; condition {_shown(summary)}"
    alt = f"Calibration of {len(rows)} models: share right against confidence. {title}"
    with drawing(*paths, width=max(4.0, 0.6 + 1.9 * across), height=0.9 + 1.95 * down, alt=alt) as figure:
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes, row in zip(panels.flat, rows, strict=False):
            fit = row["biases"]["calibration"]
            axes.plot([50, 100], [50, 100], color=SOFT, lw=0.9, ls=":")
            x, y = ([100 * bin_[key] for bin_ in fit["curve"]] for key in ("confidence", "accuracy"))
            axes.plot(x, y, color=LINE, lw=0.9)
            axes.scatter(x, y, s=[8 + 120 * bin_["n"] / fit["n"] for bin_ in fit["curve"]], c=CONDITIONS["profile"])
            axes.set_title(f"{shortened(row['model'], 26)}\nECE {percent(fit['ece'])}", fontsize=7.5)
            axes.grid()
            axes.set(xlim=(46, 104), ylim=(-4, 104))
        for axes in list(panels.flat)[len(rows) :]:
            axes.set_visible(False)
        figure.supxlabel("confidence in %, σ(|margin| / T) with T from other users", fontsize=8)
        figure.supylabel("right, %", fontsize=8)
        figure.suptitle(title, x=0.01, ha="left")


def _value(estimate: Mapping[str, Any] | None) -> float | None:
    return None if estimate is None else estimate["value"]


def _dots(
    axes: Any, estimates: Sequence[Mapping[str, Any]], places: Sequence[float], look: Mapping[str, Any], label: str = ""
) -> None:
    values = [100 * e["value"] for e in estimates]
    axes.errorbar(values, places, xerr=whiskers(estimates), elinewidth=1.1, label=label or None, **look)


def _look(condition: str) -> dict[str, Any]:
    """Conditions differ in shape as well as in color."""
    mark = dict(zip(CONDITIONS, MARKS, strict=False))[condition]
    return {"fmt": mark, "color": CONDITIONS[condition]}


def _rows(axes: Any, models: Sequence[str]) -> None:
    axes.set_yticks(range(len(models)), [shortened(model) for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid()


def _height(models: int, lanes: int) -> float:
    return 1.3 + models * (0.16 + 0.1 * lanes)


def _about(summary: Summary) -> str:
    data = summary["dataset"]
    return f"{shortened(dataset_label(summary), 60)}: {data['rows']} pairs, {data['clusters']} clusters"


def _shown(summary: Summary) -> str:
    return shown_condition([row["condition"] for row in summary["results"]])


# --- audit ---
def write_audit(result: Summary, folder: Path, progress: Progress = SILENT) -> None:
    write_or_note(partial(audit, result), folder / "audit.svg", progress)


def audit(result: Summary, *paths: Path) -> None:
    """Accuracies with their intervals, from the floors to the ceiling."""
    rows = [(name, e) for name, e in audit_estimates(result) if e["value"] is not None]
    with drawing(*paths, width=7.5, height=1.4 + 0.35 * len(rows), alt=result["verdict"]) as figure:
        axes = figure.add_subplot()
        axes.axvline(50, color=SOFT, lw=0.8, ls=":")
        for place, (name, estimate) in enumerate(rows):
            value = 100 * estimate["value"]
            color = CONDITIONS["shuffled" if "blind" in name else "profile" if "rubric" in name else "none"]
            axes.errorbar([value], [-place], xerr=whiskers([estimate]), fmt="o", ms=5, color=color, capsize=2)
            above = {"xytext": (0, 6), "textcoords": "offset points", "fontsize": 7, "ha": "center"}
            axes.annotate(percent(estimate["value"]), (value, -place), **above)
        axes.set_yticks([-n for n in range(len(rows))], [name for name, _ in rows])
        axes.set_ylim(-len(rows) + 0.4, 0.7)
        lowest = [e["value"] if e["low"] is None else e["low"] for _, e in rows]
        axes.set_xlim(min([35, *(100 * low - 3 for low in lowest)]), 102)
        axes.set_xlabel("accuracy in %, 95 % interval; dotted: chance")
        axes.set_title(result["dataset"]["name"])
