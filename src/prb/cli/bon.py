"""`prb bon`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prb.cli.parse import parse_or_repeat, refuse_repeated
from prb.cli.verbs import print_json

if TYPE_CHECKING:
    from prb.downstream.bon import BonConfig
    from prb.reporting.table import Table


def command(args: Sequence[str]) -> None:
    config = _config(args)
    from prb.downstream.bon import best_of_n
    from prb.progress import watch
    from prb.reporting.table import show

    with watch(config.quiet) as progress:
        result = best_of_n(config, progress=progress)
    if config.json:
        print_json(result.summary)
        return
    for table in tables(result.summary):
        show(table)
    print(f"run: {result.folder}")  # noqa: T201


def _config(args: Sequence[str]) -> BonConfig:
    """A run that is repeated keeps its models; `--model` adds to them."""
    from prb.downstream.bon import BonConfig, reward_models

    refuse_repeated(args, "--condition")

    def held(content: dict[str, Any]) -> dict[str, Any]:
        return {**content["bon"], "model": reward_models(content.get("models", {}))}

    return parse_or_repeat(BonConfig, args, "bon", held)


def tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    """The curves, and the models against each other; beside both, how far the grader can be trusted."""
    from prb.downstream.curves import trust
    from prb.reporting.table import Table

    trusted = trust(summary)
    yield Table(
        _title(summary),
        ("model", *(f"best of {k}" for k in summary["ks"]), "headroom", "peak", "failed"),
        tuple(_rows(summary)),
        (*_notes(summary), trusted),
    )
    if summary["contrasts"]:
        largest = summary["ks"][-1]
        columns = ("models", "difference", "p", "p (Holm)", "queries")
        note = "Points, 95 % bootstrap interval over clusters; sign-flip p, paired by query."
        yield Table(f"Best of {largest}, paired", columns, tuple(map(_contrast, summary["contrasts"])), (note, trusted))


def _title(summary: Mapping[str, Any]) -> str:
    data, queries = summary["dataset"], summary["queries"]
    split = f", split {data['split']}" if data["split"] else ""
    left = {"sampling": queries["sampling_failed"], "grading": queries["grading_failed"]}
    out = "; ".join(f"{count} left out: {stage} failed" for stage, count in left.items() if count)
    size = f"{queries['rows']} queries, {queries['clusters']} clusters, N = {summary['n']}"
    about = f"{summary['policy']['spec']} on {data['name']}{split}, condition {summary['condition']}"
    return f"{about}: {size}" + (f"; {out}" if out else "")


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    from prb.reporting.table import interval

    for result in summary["results"]:
        values = [interval(point) for point in result["curve"]]
        failed = str(result["curve"][-1]["failed"])
        yield result["model"], *values, interval(result["headroom"][-1]), _peak(result["bend"]), failed
    for name, share in (("random", "0"), ("oracle", "100")):
        yield f"({name} pick)", *(interval(point) for point in summary[name]), share, "–", "–"


def _peak(bend: Mapping[str, Any] | None) -> str:
    if bend is None:
        return "–"
    return f"{bend['peak']}, then down" if bend["down"] else str(bend["peak"])


def _notes(summary: Mapping[str, Any]) -> tuple[str, ...]:
    samples = summary["samples"]
    largest = summary["ks"][-1]
    shorter = f"{samples['distinct_of_n']:.1f}" if samples["distinct_of_n"] is not None else "–"
    return (
        "Expected graded score of best-of-k in % of the rubric, exact over all N samples; 95 % intervals by cluster.",
        f"headroom: share of what the oracle adds to a random pick at k = {largest}. peak: the k with the highest "
        "score; “then down” where the fall from there to the end is more than chance (corrected sign-flip p < .05).",
        f"{samples['drawn']} samples, {samples['failed']} failed, {samples['truncated']} stopped by --max-tokens; "
        f"{shorter} of {summary['n']} distinct. Failed queries are left out, never scored.",
    )


def _contrast(row: Mapping[str, Any]) -> tuple[str, ...]:
    from prb.reporting.table import p_value, signed

    ends = "" if row["low"] is None else f" [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
    names = f"{row['model_a']} − {row['model_b']}"
    return names, signed(row) + ends, p_value(row["p"]), p_value(row["p_holm"]), str(row["n"])
