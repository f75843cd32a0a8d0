"""What `prb bon`, `prb ppo` and `prb correlate` return and print: tables, and the sentences their numbers allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prb.downstream.bon import trust
from prb.errors import BadInput
from prb.failures import count_reasons
from prb.progress import SILENT, Progress
from prb.reporting.format import (
    MISSING,
    Table,
    bounds,
    dataset_name,
    interval,
    latex,
    markdown,
    number,
    p_equals,
    p_value,
    percent,
    points,
    stars,
)
from prb.reporting.results import Result, Run
from prb.runs import write_bytes, write_sealed
from prb.stats.paired import LEVEL

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


# --- bon ---
class BestOfN(Run):
    """The result of `prb bon`."""

    def tables(self) -> Sequence[Table]:
        return list(bon_tables(self.summary))


def bon_tables(summary: Result) -> Iterator[Table]:
    """The curves and the paired differences; under both, how far the grader can be trusted."""
    ks, samples, grader_trust = summary["ks"], summary["samples"], trust(summary)
    rows = []
    for result in summary["results"]:
        bend = result["bend"]
        peak = MISSING if bend is None else f"{bend['peak']}, then down" if bend["down"] else str(bend["peak"])
        failed = str(result["curve"][-1]["failed"])
        rows.append((result["model"], *map(interval, result["curve"]), interval(result["headroom"][-1]), peak, failed))
    for name, share in (("random", "0"), ("oracle", "100")):
        rows.append((f"({name} pick)", *map(interval, summary[name]), share, MISSING, MISSING))
    notes = (
        "Expected graded score of best-of-k in % of the rubric, exact over all N samples; 95 % intervals by cluster.",
        f"headroom: share of the oracle's gain over a random pick at k = {ks[-1]}. peak: the k with the highest "
        "score; “then down” where the fall from there to the end is significant (corrected sign-flip p < .05).",
        f"{samples['drawn']} samples, {samples['failed']} failed, {samples['truncated']} stopped by --max-tokens; "
        f"{number(samples['distinct_of_n'])} of {summary['n']} distinct. Failed queries are left out, never scored.",
        *_failures(summary),
        grader_trust,
    )
    columns = ("model", *(f"best of {k}" for k in ks), "headroom", "peak", "failed")
    yield Table(_bon_title(summary), columns, tuple(rows), notes)
    if summary["contrasts"]:
        contrasts = []
        for row in summary["contrasts"]:
            numbers = (points(row), bounds(row, sign=True), p_value(row["p"]), p_value(row["p_holm"]), str(row["n"]))
            contrasts.append((f"{row['model_a']} − {row['model_b']}", *numbers))
        note = "Points, paired by query; sign-flip p over clusters, and the 95 % interval that inverts it."
        columns = ("models", "difference", "95 %", "p", "p (Holm)", "queries")
        yield Table(f"Best of {ks[-1]}, paired", columns, tuple(contrasts), (note, grader_trust))


def _failures(summary: Result) -> Iterator[str]:
    if reasons := summary["queries"]["failures"]:
        yield f"Failed in sampling or grading: {count_reasons(reasons)}."
    for result in summary["results"]:
        if result["failures"]:
            yield f"Failed, {result['model']}: {count_reasons(result['failures'])}."


def _bon_title(summary: Result) -> str:
    queries = summary["queries"]
    failed = {"sampling": queries["sampling_failed"], "grading": queries["grading_failed"]}
    left_out = "".join(f"; {count} left out: {stage} failed" for stage, count in failed.items() if count)
    size = f"{queries['rows']} queries, {queries['clusters']} clusters, N = {summary['n']}"
    about = f"{summary['policy']['spec']} on {dataset_name(summary['dataset'])}, condition {summary['condition']}"
    return f"{about}: {size}{left_out}"


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
    held, steps = summary["held_out"], summary["train"]["steps"]
    if not held["prompts"]:
        return
    rows = []
    for name in ("reward", "grade"):
        if name in held:
            before, after, difference = (held[name][part] for part in ("before", "after", "difference"))
            numbers = (number(before["value"], 3), number(after["value"], 3), number(difference["value"], 3, sign=True))
            ends = bounds(difference, 3, scale=1, sign=True)
            rows.append((name, *numbers, ends, p_value(difference["p"]), str(difference["dropped"])))
    title = f"{held['prompts']} held-out prompts, one answer each, before and after {steps} steps"
    columns = ("measure", "before", "after", "difference", "95 %", "p", "failed")
    yield Table(title, columns, tuple(rows))


def ppo_lines(summary: Result) -> Iterator[str]:
    if summary["grader"]:
        yield trust(summary)
    if summary["train"]["stopped"]:
        yield f"Stopped early: {summary['train']['stopped']}"


# --- correlate ---
class Correlation(Run):
    """The result of `prb correlate`."""

    def tables(self) -> Sequence[Table]:
        return list(correlation_tables(self.summary))


def correlation_tables(result: Result) -> Iterator[Table]:
    left_out = f" ({len(result['left_out'])} with missing scores left out)" if result["left_out"] else ""
    notes = (
        "p: permutation test (≈: sampled), two-sided for correlations, one-sided for NDCG, RBO and regret. Holm over "
        "all columns of a measure; stars: p < .05, .01, .001 after it. Ties share ranks.",
        "over models: 95 % of resamples of the models (10 or more). measured again: the same models, their scores "
        "redrawn within their own uncertainty.",
    )
    for part in result["sets"]:
        if part["problem"]:
            continue
        rows = []
        for cell in part["correlations"]:
            ends = [
                f"[{number(e[0], 2)}, {number(e[1], 2)}]" if e else MISSING for e in (cell["interval"], cell["noise"])
            ]
            value = number(cell["value"], 3) + stars(cell["p_holm"])
            p = p_value(cell["p"]) if cell["exact"] else f"≈ {p_value(cell['p'])}"
            measure = MEASURES[cell["measure"]]
            rows.append((cell["bench"], cell["downstream"], measure, value, *ends, p, p_value(cell["p_holm"])))
        columns = ("benchmark", "downstream", "measure", "value", "over models", "measured again", "p", "p (Holm)")
        yield Table(f"{part['set'].capitalize()}: {part['n']}{left_out}", columns, tuple(rows), notes)
        if part["comparisons"]:
            yield _benchmark_contrasts(part["comparisons"])


def _benchmark_contrasts(contrasts: list[Result]) -> Table:
    rows = []
    for row in contrasts:
        value = number(row["difference"], 3, sign=True) + stars(row["p_holm"])
        test = (row["test"], p_value(row["p"]), p_value(row["p_holm"]))
        names = f"{row['first']} − {row['second']}", row["downstream"], MEASURES[row["measure"]]
        rows.append((*names, value, *test))
    columns = ("benchmarks", "downstream", "measure", "difference", "test", "p", "p (Holm)")
    note = "Swap test: each model's two ranks change places. Pearson: Williams' test, with 20 or more models."
    return Table("Two benchmarks against the same downstream", columns, tuple(rows), (note,))


def write_correlation(summary: Result, folder: Path, progress: Progress = SILENT) -> None:
    """`correlation.json`, the tables as Markdown and LaTeX, and the scatter plot."""
    from prb.reporting.downstream_figures import write_scatter

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror}") from None
    tables = list(correlation_tables(summary))
    listed = "\n".join(f"- {sentence}" for sentence in summary["sentences"])
    write_bytes(folder / "table.md", "\n".join([*map(markdown, tables), listed, ""]).encode())
    write_bytes(folder / "table.tex", "\n".join(map(latex, tables)).encode())
    write_sealed(folder / "correlation.json", summary)
    write_scatter(summary, folder, progress)


def correlation_sentences(result: Result) -> list[str]:
    """What the numbers allow to be said, set by set, and how far the grades behind them can be trusted."""
    sentences = [sentence for part in result["sets"] for sentence in set_sentences(part, len(result["sets"]) > 1)]
    return sentences + [f"{column['name']}: {column['note']}" for column in result["downstream"] if column["note"]]


def set_sentences(part: Result, several: bool = False) -> Iterator[str]:
    """Of one set of models, by the first measure; where there are several sets, each sentence names its own."""
    prefix = f"{part['set'].capitalize()}: " if several else ""
    if part["problem"]:
        yield prefix + part["problem"] + "."
        return
    measure = part["correlations"][0]["measure"]
    cells = [cell for cell in part["correlations"] if cell["measure"] == measure]
    for cell in cells:
        yield prefix + _claim(cell, part["n"], len(cells))
    for row in part["comparisons"]:
        if row["measure"] == measure:
            yield prefix + _contrast(row, part["n"])
    power = part["power"]
    needed = "more than 512" if power["needed"] is None else str(power["needed"])
    yield (
        f"{prefix}A true ρ of {power['rho']:g} would be detected in {percent(power['power'], 0)} % of studies with "
        f"{part['n']} models; {needed} models would be needed for {percent(power['wanted'], 0)} %."
    )


def _claim(cell: Result, n: int, columns: int) -> str:
    corrected = f" corrected for {columns} tests" if columns > 1 else ""
    evidence = f"{MEASURES[cell['measure']]} {number(cell['value'], 2)}, {p_equals(cell['p_holm'])}{corrected}"
    names = f"With {n} models, {cell['bench']}"
    if cell["p_holm"] >= LEVEL:
        return f"{names} does not predict {cell['downstream']} significantly better than chance ({evidence})."
    if cell["measure"] != "regret" and cell["value"] < 0:
        return f"{names} predicts {cell['downstream']} worse than chance: it reverses their order ({evidence})."
    return f"{names} predicts {cell['downstream']} better than chance ({evidence})."


def _contrast(row: Result, n: int) -> str:
    difference = number(abs(row["difference"]), 2)
    evidence = f"{MEASURES[row['measure']]} differs by {difference}, {p_equals(row['p_holm'])}"
    first_better = (row["difference"] > 0) != (row["measure"] == "regret")  # a lower regret is better
    better, worse = (row["first"], row["second"]) if first_better else (row["second"], row["first"])
    how = "significantly better" if row["p_holm"] >= LEVEL else "better"
    verb = "does not predict" if row["p_holm"] >= LEVEL else "predicts"
    return f"With {n} models, {better} {verb} {row['downstream']} {how} than {worse} ({evidence})."
