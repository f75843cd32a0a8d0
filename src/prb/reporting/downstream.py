"""What `prb bon`, `prb ppo` and `prb correlate` found: the types of their results, tables, sentences and figures.

`write_*` is what a verb calls when it has finished: it puts the verb's figure into the run folder, or notes that
matplotlib is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import convert

from prb.downstream.bon import BonSummary, ModelResult
from prb.downstream.correlate import Agreement, ColumnSummary, Comparison, CorrelationSummary, ModelSet
from prb.downstream.ppo import CURVES, PpoSummary, read_curves
from prb.errors import BadInput
from prb.progress import SILENT, Progress
from prb.reporting.figures import INK, PAPER, SERIES, SOFT, drawing, series, whiskers, write_or_note
from prb.reporting.format import (
    MISSING,
    Table,
    bounds,
    interval,
    latex,
    markdown,
    number,
    p_equals,
    p_value,
    percent,
    points,
    shortened,
    stars,
)
from prb.reporting.results import Result, Run
from prb.runs import write_bytes, write_json
from prb.stats.paired import LEVEL
from prb.work import count_reasons

MEASURES = {
    "spearman": "Spearman's ρ",
    "kendall": "Kendall's τ-b",
    "weighted_kendall": "weighted τ",
    "pearson": "Pearson's r",
    "ndcg": "NDCG",
    "rbo": "RBO",
    "regret": "top-1 regret",
}
PPO_PANELS = {
    "reward": "reward",
    "kl": "KL to the reference, nats per answer",
    "length": "length",
    "entropy": "entropy",
}
"""The columns of a PPO run's curves that are drawn, with their labels."""
DIRECT, SHORT = 12, 24
"""Up to this many models, with names no longer than this, are named beside their points."""
FAMILIES, OTHERS = 6, "others"
"""Families of models with a color of their own."""
SIZE = 7
PANEL = (210, 170)
"""About the size of what a panel shows, in points: labels are placed by it."""


# --- bon ---
class BestOfN(Run):
    """The result of `prb bon`."""

    def tables(self) -> Sequence[Table]:
        curves, *others = bon_tables(self.summary)
        return [curves._replace(title=gain_sentence(convert(self.summary, BonSummary)), lead=(curves.title,)), *others]


def gain_sentence(bon: BonSummary) -> str:
    """Does picking by a reward model gain over a random pick? By the interval of the share of the oracle's gain."""
    ends = {result.model: result.headroom[-1] for result in bon.results}
    gaining = [model for model, end in ends.items() if end.low is not None and end.low > 0]
    losing = [model for model, end in ends.items() if end.high is not None and end.high < 0]
    if not gaining:
        first = f"Best of {bon.ks[-1]}: no reward model is shown to pick better answers than chance"
    else:
        best = max(gaining, key=lambda model: ends[model].value or 0)
        more = f"; so do {len(gaining) - 1} more" if len(gaining) > 1 else ""
        share = f"{percent(ends[best].value)} % of what is possible"
        first = f"Best of {bon.ks[-1]}: {best} picks better answers than chance, {share}{more}"
    return f"{first}; {', '.join(losing)} worse." if losing else f"{first}."


def bon_tables(summary: Result) -> Iterator[Table]:
    """The curves and the paired differences; under both, how far the grader can be trusted."""
    bon = convert(summary, BonSummary)
    rows = []
    for result in bon.results:
        bend = result.bend
        peak = MISSING if bend is None else f"{bend.peak}, then down" if bend.down else str(bend.peak)
        curve = map(interval, result.curve)
        rows.append((result.model, *curve, interval(result.headroom[-1]), peak, str(result.curve[-1].failed)))
    for name, curve_of, share in (("random", bon.random, "0"), ("oracle", bon.oracle, "100")):
        rows.append((f"({name} pick)", *map(interval, curve_of), share, MISSING, MISSING))
    samples = bon.samples
    notes = (
        "Expected graded score of best-of-k in % of the rubric, exact over all N samples; 95 % intervals by cluster.",
        f"headroom: share of the oracle's gain over a random pick at k = {bon.ks[-1]}. peak: the k with the highest "
        "score; “then down” where the fall from there to the end is significant (corrected sign-flip p < .05).",
        f"{samples.drawn} samples, {samples.failed} failed, {samples.truncated} stopped by --max-tokens; "
        f"{number(samples.distinct_of_n)} of {bon.n} distinct. Failed queries are left out, never scored.",
        *_by_people(bon),
        *_failures(bon),
        bon.grader.trust,
    )
    columns = ("model", *(f"best of {k}" for k in bon.ks), "headroom", "peak", "failed")
    yield Table(_bon_title(bon), columns, tuple(rows), notes)
    if bon.contrasts:
        contrasts = []
        for row in bon.contrasts:
            numbers = (points(row), bounds(row, sign=True), p_value(row.p), p_value(row.p_holm), str(row.n))
            contrasts.append((f"{row.model_a} − {row.model_b}", *numbers))
        note = "Points, paired by query; sign-flip p over clusters, and the 95 % interval that inverts it."
        columns = ("models", "difference", "95 %", "p", "p (Holm)", "queries")
        yield Table(f"Best of {bon.ks[-1]}, paired", columns, tuple(contrasts), (note, bon.grader.trust))


def _by_people(bon: BonSummary) -> Iterator[str]:
    if people := bon.by_people:
        scores = ", ".join(f"{model} {interval(score)}" for model, score in people.scores.items())
        yield f"As people would grade, best of {bon.ks[-1]}: {scores}. {people.sentence}"


def _failures(bon: BonSummary) -> Iterator[str]:
    if bon.queries.failures:
        yield f"Failed in sampling or grading: {count_reasons(bon.queries.failures)}."
    for result in bon.results:
        if result.failures:
            yield f"Failed, {result.model}: {count_reasons(result.failures)}."


def _bon_title(bon: BonSummary) -> str:
    queries = bon.queries
    failed = {"sampling": queries.sampling_failed, "grading": queries.grading_failed}
    left_out = "".join(f"; {count} left out: {stage} failed" for stage, count in failed.items() if count)
    size = f"{queries.rows} queries, {queries.clusters} clusters, N = {bon.n}"
    return f"{bon.policy.spec} on {bon.dataset.full_name}, condition {bon.condition}: {size}{left_out}"


def write_bon(summary: Result, folder: Path, progress: Progress = SILENT) -> None:
    write_or_note(partial(best_of_n, summary), folder / "bon.svg", progress)


def best_of_n(summary: Result, *paths: Path) -> None:
    """Expected grade against k, with the KL bound below it and the grader's validity below that."""
    bon = convert(summary, BonSummary)
    size = f"{bon.queries.used} queries, {bon.queries.clusters} clusters, condition {bon.condition}"
    title = f"{bon.policy.spec} on {bon.dataset.name}: {size}"
    alt = f"Expected graded score of best-of-k against k. {title}. {bon.grader.trust}"
    with drawing(*paths, width=7.5, height=4.8, alt=alt) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for name, curve, color, dash in (("oracle", bon.oracle, INK, "--"), ("random", bon.random, SOFT, ":")):
            known = [point for point in curve if point.value is not None]
            values = [100 * (point.value or 0) for point in known]
            axes.plot([point.k for point in known], values, dash, color=color, label=f"({name} pick)")
        for position, result in enumerate(bon.results):
            _best_of_n_line(axes, result, position, len(bon.results))
        axes.minorticks_off()
        axes.set_xticks(bon.ks, [f"{k}\n{number(bound, 2)}" for k, bound in zip(bon.ks, bon.kl_bound, strict=True)])
        axes.set_xlabel("k of best-of-k; below it the bound on its KL to the policy, log k − (k−1)/k")
        axes.set_ylabel("graded score, % of the rubric")
        axes.grid(axis="y")
        figure.suptitle(title, x=0.01, ha="left")
        figure.legend(loc="outside right center")
        figure.supxlabel(bon.grader.trust, fontsize=7, color=SOFT, wrap=True)


def _best_of_n_line(axes: Any, result: ModelResult, position: int, lines: int) -> None:
    """A curve, with a ring around its peak if it then goes down significantly."""
    known = [point for point in result.curve if point.value is not None]
    beside = 2 ** (0.03 * (position - (lines - 1) / 2))  # or the error bars would hide each other
    spots = {point.k: (point.k * beside, 100 * (point.value or 0)) for point in known}
    x, y = [spot[0] for spot in spots.values()], [spot[1] for spot in spots.values()]
    axes.errorbar(x, y, whiskers(known), elinewidth=0.8, label=result.model, **series(position))
    if result.bend and result.bend.down and result.bend.peak in spots:
        peak = spots[result.bend.peak]
        axes.plot(*peak, "o", ms=11, mfc="none", mec=INK, mew=1)
        axes.annotate("then down", peak, xytext=(0, 8), textcoords="offset points", ha="center", fontsize=7)


# --- ppo ---
@dataclass(frozen=True, repr=False)
class Ppo(Run):
    """The result of `prb ppo`."""

    message: str = ""
    """What to show if verl trained, which writes no summary."""
    main_process: bool = True
    """False in all but one of the processes that accelerate started."""

    def tables(self) -> Sequence[Table]:
        return list(ppo_tables(self.summary))


def ppo_tables(summary: Result) -> Iterator[Table]:
    """Held-out prompts before and after training; nothing if none were held out."""
    ppo = convert(summary, PpoSummary)
    held = ppo.held_out
    if not held.prompts:
        return
    rows = []
    for name, change in (("reward", held.reward), ("grade", held.grade)):
        if change:
            by = change.difference
            values = (number(change.before.value, 3), number(change.after.value, 3), number(by.value, 3, sign=True))
            rows.append((name, *values, bounds(by, 3, scale=1, sign=True), p_value(by.p), str(by.dropped)))
    title = f"{held.prompts} held-out prompts, one answer each, before and after {ppo.train.steps} steps"
    columns = ("measure", "before", "after", "difference", "95 %", "p", "failed")
    yield Table(title, columns, tuple(rows))


def ppo_lines(summary: Result) -> Iterator[str]:
    ppo = convert(summary, PpoSummary)
    if ppo.grader:
        yield ppo.grader.trust
    if ppo.train.stopped:
        yield f"Stopped early: {ppo.train.stopped}"


def write_ppo(summary: Result, folder: Path, progress: Progress = SILENT) -> None:
    rows = read_curves(folder / CURVES, up_to=summary["train"]["steps"])
    write_or_note(partial(ppo_figure, {**summary, "curves": rows}), folder / "curves.svg", progress)


def ppo_figure(summary: Result, *paths: Path) -> None:
    """Reward, KL to the reference, length and entropy over the steps, from the summary with its `curves`."""
    ppo, rows = convert(summary, PpoSummary), summary["curves"]
    title = shortened(f"{ppo.policy.spec} against {ppo.model.spec}", 100)
    alt = f"PPO, {len(rows)} steps: reward, KL, length and entropy. {title}"
    with drawing(*paths, width=7.5, height=4.4, alt=alt) as figure:
        for axes, (name, label), color in zip(figure.subplots(2, 2).flat, PPO_PANELS.items(), SERIES, strict=False):
            axes.plot([row["step"] for row in rows], [row[name] for row in rows], color=color)
            axes.set_title(label)
            axes.set_xlabel("step")
            axes.grid(axis="y")
        figure.suptitle(title, x=0.01, ha="left")


# --- correlate ---
class Correlation(Run):
    """The result of `prb correlate`."""

    def tables(self) -> Sequence[Table]:
        return list(correlation_tables(self.summary))


def correlation_tables(summary: Result) -> Iterator[Table]:
    result = convert(summary, CorrelationSummary)
    left_out = f" ({len(result.left_out)} with missing scores left out)" if result.left_out else ""
    notes = (
        "p: permutation test (≈: sampled), two-sided for correlations, one-sided for NDCG, RBO and regret. Holm over "
        "all columns of a measure; stars: p < .05, .01, .001 after it. Ties share ranks.",
        "over models: 95 % of resamples of the models (10 or more). measured again: the same models, their scores "
        "redrawn within their own uncertainty.",
    )
    for part in result.sets:
        if part.problem:
            continue
        rows = []
        for cell in part.correlations:
            ends = [f"[{number(e[0], 2)}, {number(e[1], 2)}]" if e else MISSING for e in (cell.interval, cell.noise)]
            value = number(cell.value, 3) + stars(cell.p_holm)
            p = p_value(cell.p) if cell.exact else f"≈ {p_value(cell.p)}"
            rows.append((cell.bench, cell.downstream, MEASURES[cell.measure], value, *ends, p, p_value(cell.p_holm)))
        columns = ("benchmark", "downstream", "measure", "value", "over models", "measured again", "p", "p (Holm)")
        yield Table(f"{part.set.capitalize()}: {part.n}{left_out}", columns, tuple(rows), notes)
        if part.comparisons:
            yield _benchmark_contrasts(part.comparisons)


def _benchmark_contrasts(contrasts: Sequence[Comparison]) -> Table:
    rows = []
    for row in contrasts:
        value = number(row.difference, 3, sign=True) + stars(row.p_holm)
        test = (row.test, p_value(row.p), p_value(row.p_holm))
        rows.append((f"{row.first} − {row.second}", row.downstream, MEASURES[row.measure], value, *test))
    columns = ("benchmarks", "downstream", "measure", "difference", "test", "p", "p (Holm)")
    note = "Swap test: each model's two ranks change places. Pearson: Williams' test, with 20 or more models."
    return Table("Two benchmarks against the same downstream", columns, tuple(rows), (note,))


def write_correlation(summary: Result, folder: Path, progress: Progress = SILENT) -> None:
    """`correlation.json`, the tables as Markdown and LaTeX, and the scatter plot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror}") from None
    tables = list(correlation_tables(summary))
    listed = "\n".join(f"- {sentence}" for sentence in summary["sentences"])
    write_bytes(folder / "table.md", "\n".join([*map(markdown, tables), listed, ""]).encode())
    write_bytes(folder / "table.tex", "\n".join(map(latex, tables)).encode())
    write_json(folder / "correlation.json", summary)
    write_or_note(partial(scatter, summary), folder / "scatter.svg", progress)


def correlation_sentences(summary: Result) -> list[str]:
    """What the numbers allow to be said, set by set, and how far the grades behind them can be trusted."""
    result = convert(summary, CorrelationSummary)
    sentences = [sentence for part in result.sets for sentence in set_sentences(part, len(result.sets) > 1)]
    return sentences + [f"{column.name}: {column.note}" for column in result.downstream if column.note]


def set_sentences(part: ModelSet, several: bool = False) -> Iterator[str]:
    """Of one set of models, by the first measure; where there are several sets, each sentence names its own."""
    prefix = f"{part.set.capitalize()}: " if several else ""
    if part.problem:
        yield prefix + part.problem + "."
        return
    measure = part.correlations[0].measure
    cells = [cell for cell in part.correlations if cell.measure == measure]
    for cell in cells:
        yield prefix + _claim(cell, part.n, len(cells))
    for row in part.comparisons:
        if row.measure == measure:
            yield prefix + _contrast(row, part.n)
    power = part.power
    assert power is not None
    needed = "more than 512" if power.needed is None else str(power.needed)
    yield (
        f"{prefix}A true ρ of {power.rho:g} would be detected in {percent(power.power, 0)} % of studies with "
        f"{part.n} models; {needed} models would be needed for {percent(power.wanted, 0)} %."
    )


def _claim(cell: Agreement, n: int, columns: int) -> str:
    corrected = f" corrected for {columns} tests" if columns > 1 else ""
    evidence = f"{MEASURES[cell.measure]} {number(cell.value, 2)}, {p_equals(cell.p_holm)}{corrected}"
    names = f"With {n} models, {cell.bench}"
    if cell.p_holm >= LEVEL:
        return f"{names} does not predict {cell.downstream} significantly better than chance ({evidence})."
    if cell.measure != "regret" and (cell.value or 0) < 0:
        return f"{names} predicts {cell.downstream} worse than chance: it reverses their order ({evidence})."
    return f"{names} predicts {cell.downstream} better than chance ({evidence})."


def _contrast(row: Comparison, n: int) -> str:
    evidence = f"{MEASURES[row.measure]} differs by {number(abs(row.difference), 2)}, {p_equals(row.p_holm)}"
    first_better = (row.difference > 0) != (row.measure == "regret")  # a lower regret is better
    better, worse = (row.first, row.second) if first_better else (row.second, row.first)
    how = "significantly better" if row.p_holm >= LEVEL else "better"
    verb = "does not predict" if row.p_holm >= LEVEL else "predicts"
    return f"With {n} models, {better} {verb} {row.downstream} {how} than {worse} ({evidence})."


def families(result: CorrelationSummary) -> list[str]:
    """Of every model, where the table names families; small ones beyond what a reader tells apart are one."""
    kinds = [result.families.get(m) or ("constructed" if m in result.constructed else "model") for m in result.models]
    shown = dict(Counter(kinds).most_common(FAMILIES))
    return [kind if kind in shown or len(set(kinds)) == FAMILIES + 1 else OTHERS for kind in kinds]


def scatter(summary: Result, *paths: Path) -> None:
    """One panel for each benchmark (across) and downstream (down); a color and a shape for each family of models."""
    result = convert(summary, CorrelationSummary)
    models = result.models
    direct = len(models) <= DIRECT and max(map(len, models)) <= SHORT
    kinds = families(result)
    looks = {kind: series(n) for n, kind in enumerate(sorted(set(kinds) - {OTHERS}))}
    looks |= {OTHERS: {"color": SOFT, "marker": "x"}} if OTHERS in kinds else {}
    alt = f"Benchmark scores against downstream scores of {len(models)} models."
    width = 4.2 * len(result.bench) + (1.6 if len(looks) > 1 else 0)
    with drawing(*paths, width=width, height=3.6 * len(result.downstream), alt=alt) as figure:
        grid = figure.subplots(len(result.downstream), len(result.bench), squeeze=False)
        for row, y in zip(grid, result.downstream, strict=True):
            for axes, x in zip(row, result.bench, strict=True):
                for kind, base in looks.items():
                    at = [n for n, other in enumerate(kinds) if other == kind]
                    look = {**base, "linestyle": "", "ms": 4.5, "elinewidth": 0.6, "ecolor": (base["color"], 0.4)}
                    if models[at[0]] in result.constructed:
                        look["mfc"] = PAPER
                    spots = [[column.values[n] for n in at] for column in (x, y)]
                    axes.errorbar(*spots, xerr=_bars(x, at), yerr=_bars(y, at), label=kind, **look)
                offsets = _label_offsets(x, y, models) if direct else ()
                for label, *spot, offset in zip(models, x.values, y.values, offsets, strict=False):
                    axes.annotate(label, spot, xytext=offset, textcoords="offset points", fontsize=SIZE)
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
    axes.text(0, 1.02, "\n".join(lines), transform=axes.transAxes, va="bottom", fontsize=SIZE, color=SOFT)


def _label_offsets(x: ColumnSummary, y: ColumnSummary, labels: Sequence[str]) -> list[tuple[float, float]]:
    """For each label the first place around its point that covers no point and no earlier label, else the emptiest."""
    in_points = []  # about where values come to stand in a panel
    for values, size in ((x.values, PANEL[0]), (y.values, PANEL[1])):
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


def _bars(column: ColumnSummary, at: Sequence[int]) -> list[float] | None:
    return None if column.errors is None else [1.96 * column.errors[n] for n in at]
