"""Every figure except the scatter plot, in the look of `prb.reporting.style`, made from the same files as the site.

A function draws to all the paths it is given, as SVG or PDF. `write_*` is what a verb calls when it has finished: it
puts the verb's figure into the run folder, or notes that matplotlib is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

from prb.downstream.curves import trust
from prb.downstream.ppo.checkpoints import CURVES, read_curves
from prb.errors import MissingExtra
from prb.progress import SILENT, Progress
from prb.reporting.downstream_tables import PPO_PANELS
from prb.reporting.format import number, percent, shortened, stars
from prb.reporting.gather import FLOORS, Given, Group, called, result_of
from prb.reporting.scatter import scatter
from prb.reporting.style import CONDITIONS, INK, LINE, MARKS, PAPER, SERIES, SOFT, drawing, series, whiskers
from prb.reporting.tables import audit_estimates, shown_condition
from prb.stats.paired import holm

Summary = Mapping[str, Any]
Draw = Callable[..., None]
"""Draws to all paths it is given."""
MOST_PANELS = 12
ACROSS = 4
LEVEL = 0.05


# --- into run folders ---
def write_bon(summary: Summary, folder: Path, progress: Progress = SILENT) -> None:
    _write(partial(best_of_n, summary), folder / "bon.svg", progress)


def write_ppo(summary: Summary, folder: Path, progress: Progress = SILENT) -> None:
    rows = read_curves(folder / CURVES, up_to=summary["train"]["steps"])
    _write(partial(ppo, {**summary, "curves": rows}), folder / "curves.svg", progress)


def write_curve(result: Summary, folder: Path, progress: Progress = SILENT) -> None:
    draw = partial(learning_curve, {result["method"]: result["points"]}, title=result["dataset"])
    _write(draw, folder / "curve.svg", progress)


def write_audit(result: Summary, folder: Path, progress: Progress = SILENT) -> None:
    _write(partial(audit, result), folder / "audit.svg", progress)


def write_correlation(result: Summary, folder: Path, progress: Progress = SILENT) -> None:
    _write(partial(scatter, result), folder / "scatter.svg", progress)


def _write(draw: Draw, path: Path, progress: Progress) -> None:
    try:
        draw(path)
    except MissingExtra as missing:
        progress.note(f"no {path.name}: {missing}")


# --- of a site ---
def write_figures(given: Given, folder: Path) -> list[Path]:
    """All figures of what was given, as .svg and .pdf; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in _named(list(figures(given))):
        paths = [folder / f"{name}{suffix}" for suffix in (".svg", ".pdf")]
        draw(*paths)
        written += paths
    return written


def figures(given: Given) -> Iterator[tuple[str, str, Draw]]:
    """What it is, of what, and how it is drawn."""
    for group in given.groups:
        of = Path(group.about["name"]).stem
        yield from ((kind, of, draw) for kind, draw in of_summary(joined(group)))
    kinds = {"bon": ("best-of-n", best_of_n), "ppo": ("ppo", ppo), "correlation": ("correlation", scatter)}
    for kind, (name, draw) in {**kinds, "audit": ("audit", audit)}.items():
        for place in given.others.get(kind, ()):
            yield name, called(place), partial(draw, result_of(place))


def _named(found: Sequence[tuple[str, str, Draw]]) -> Iterator[tuple[str, Draw]]:
    """`ppo.svg`; with several of a kind `ppo-brevity.svg`, and a number where that is not enough."""
    taken: set[str] = set()
    for kind, of, draw in found:
        alone = sum(other == kind for other, *_ in found) == 1
        own = "".join(c if c.isalnum() else "-" for c in of)
        wanted = kind if alone else own if own.startswith(kind) else f"{kind}-{own}"
        name = next(n for n in (wanted, *(f"{wanted}-{k}" for k in range(2, 10_000))) if n not in taken)
        taken.add(name)
        yield name, draw


def joined(group: Group) -> Summary:
    """The summaries of a group's runs as one, models by the names the site gives them, Holm over all of them."""
    results, contrasts = [], []
    for entry in group.entries:
        own = entry.run.summary
        about = {"model": entry.name, "floor": entry.spec in FLOORS}
        results += [{**row, **about} for row in own["results"] if row["model"] == entry.spec]
        contrasts += [{**row, **about} for row in own["contrasts"] if row["model"] == entry.spec]
    tested = [row for row in contrasts if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return {"dataset": group.about, "results": results, "contrasts": contrasts}


def of_summary(summary: Summary) -> Iterator[tuple[str, Draw]]:
    """The figures of an evaluation, by name; those that it has the numbers for."""
    rows = of_condition(summary)
    yield "leaderboard", partial(leaderboard, summary)
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


def leaderboard(summary: Summary, *paths: Path) -> None:
    """Accuracy of every model under every condition; the best floor and the ceiling as lines."""
    models = [row["model"] for row in of_condition(summary)]
    names = list(dict.fromkeys(row["condition"] for row in summary["results"]))
    found = {(row["model"], row["condition"]): row["accuracy"] for row in summary["results"]}
    with drawing(*paths, width=7.5, height=_height(len(models), len(names)), alt=_leader(summary)) as figure:
        axes = figure.add_subplot()
        for n, name in enumerate(names):
            at = [place for place, model in enumerate(models) if _value(found.get((model, name))) is not None]
            beside = 0.62 * (n / max(1, len(names) - 1) - 0.5) if len(names) > 1 else 0.0
            _dots(axes, [found[models[p], name] for p in at], [p + beside for p in at], _look(name), name)
        _references(axes, summary)
        _rows(axes, models)
        axes.set_xlabel("accuracy in %, 95 % interval by cluster")
        figure.suptitle(_about(summary), x=0.01, ha="left")
        figure.legend(loc="outside lower left", ncols=3)


def _references(axes: Any, summary: Summary) -> None:
    axes.axvline(50, color=SOFT, lw=0.9, ls=":", label="a coin, a user-blind model on mirror rows")
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
    kinds = {"gain": "gain: profile − none", "control": "control: profile − somebody else's posts"}
    present = [kind for kind in kinds if any(row["kind"] == kind for row in summary["contrasts"])]
    models = [row["model"] for row in of_condition(summary)]
    found = {(row["model"], row["kind"]): row for row in summary["contrasts"]}
    alt = f"Gain and control of {len(models)} models in points, with 95 % intervals. {_about(summary)}"
    with drawing(*paths, width=7.5, height=_height(len(models), 1), alt=alt) as figure:
        panels = figure.subplots(1, len(present), sharey=True, squeeze=False)[0]
        for axes, kind in zip(panels, present, strict=True):
            axes.axvline(0, color=SOFT, lw=0.9)
            for place, model in enumerate(models):
                if (row := found.get((model, kind))) and row["value"] is not None:
                    _contrast(axes, row, place, CONDITIONS["profile" if kind == "gain" else "shuffled"])
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


def _contrast(axes: Any, row: Mapping[str, Any], place: int, colour: str) -> None:
    clear = row["p_holm"] is not None and row["p_holm"] < LEVEL
    _dots(axes, [row], [place], {"fmt": "o", "color": colour, "mfc": colour if clear else PAPER})
    beside = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": 7}
    axes.annotate(stars(row["p_holm"]), (100 * row["value"], place), **beside)


def by_label(summary: Summary, field: str, *paths: Path) -> None:
    """A panel a category or tier, the most frequent first; under the condition people would use."""
    rows = of_condition(summary)
    counts: dict[str, int] = {}
    for row in rows:
        for label, estimate in row[field].items():
            counts[label] = max(counts.get(label, 0), estimate["n"])
    labels = sorted(counts, key=lambda label: -counts[label])[:MOST_PANELS]
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
            found = row["biases"]["calibration"]
            axes.plot([50, 100], [50, 100], color=SOFT, lw=0.9, ls=":")
            x, y = ([100 * bin_[key] for bin_ in found["curve"]] for key in ("confidence", "accuracy"))
            axes.plot(x, y, color=LINE, lw=0.9)
            axes.scatter(x, y, s=[8 + 120 * bin_["n"] / found["n"] for bin_ in found["curve"]], c=CONDITIONS["profile"])
            axes.set_title(f"{shortened(row['model'], 26)}\nECE {percent(found['ece'])}", fontsize=7.5)
            axes.grid()
            axes.set(xlim=(46, 104), ylim=(-4, 104))
        for axes in list(panels.flat)[len(rows) :]:
            axes.set_visible(False)
        figure.supxlabel("confidence in %, σ(|margin| / T) with T from other people", fontsize=8)
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
    """Told apart by shape as well as by colour."""
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
    split = f", split {data['split']}" if data["split"] else ""
    return f"{shortened(Path(data['name']).name)}{split}: {data['rows']} pairs, {data['clusters']} clusters"


def _leader(summary: Summary) -> str:
    first = of_condition(summary)[0]
    value = first["accuracy"]["value"]
    told = "nothing was answered" if value is None else f"first is {first['model']} with {percent(value)} %"
    return f"Accuracy of the models under each condition; under {first['condition']} {told}. {_about(summary)}"


def _shown(summary: Summary) -> str:
    return shown_condition([row["condition"] for row in summary["results"]])


# --- downstream, training, audit ---
def best_of_n(summary: Summary, *paths: Path) -> None:
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


def _best_of_n_line(axes: Any, result: Summary, position: int, lines: int) -> None:
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


def ppo(summary: Summary, *paths: Path) -> None:
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


def learning_curve(curves: Mapping[str, Sequence[Summary]], *paths: Path, title: str) -> None:
    """Accuracy against the number of labeled pairs of a user, one line per method."""
    with drawing(*paths, width=6, height=4, alt=f"Accuracy against labeled pairs of the user. {title}") as figure:
        axes = figure.add_subplot()
        for n, (name, points) in enumerate(curves.items()):
            estimates = [point["accuracy"] for point in points]
            places = [place + 0.06 * (n - (len(curves) - 1) / 2) for place in range(len(points))]
            values = [100 * estimate["value"] for estimate in estimates]
            axes.errorbar(places, values, yerr=whiskers(estimates), label=name, elinewidth=0.8, **series(n))
        axes.axhline(50, color=SOFT, linewidth=0.8, linestyle=":")
        first = next(iter(curves.values()))
        axes.set_xticks(range(len(first)), [str(point["m"]) for point in first])
        axes.set(xlabel="labeled pairs of the user", ylabel="accuracy, %", title=title)
        figure.legend(loc="outside right upper")


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
