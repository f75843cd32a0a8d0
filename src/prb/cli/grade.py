"""`prb grade`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prb.cli.parse import parse_or_repeat
from prb.cli.verbs import print_json
from prb.grading.config import GradeConfig

if TYPE_CHECKING:
    from prb.reporting.table import Table


def command(args: Sequence[str]) -> None:
    config = parse_or_repeat(GradeConfig, args, "grade")
    from prb.grading.run import grade
    from prb.progress import watch
    from prb.reporting.table import show

    with watch(config.quiet) as progress:
        result = grade(config, progress=progress)
    if config.json:
        print_json(result.summary)
        return
    show(validation(result.summary) if config.validate else mean(result.summary))
    print(f"run: {result.folder}")  # noqa: T201


def mean(summary: Mapping[str, Any]) -> Table:
    from prb.reporting.table import Table, interval

    score, answers = summary["score"], summary["answers"]
    row = (summary["grader"]["spec"], interval(score), str(score["n"]), str(answers["distinct"]), str(score["failed"]))
    notes = (
        "Mean score in % of the rubric (Σ grades / 2n) with a 95 % interval clustered by person.",
        *_failures(summary["failures"]),
        *_trust(summary),
    )
    return Table(_title(summary), ("grader", "score", "graded", "distinct", "failed"), (row,), notes)


def validation(summary: Mapping[str, Any]) -> Table:
    from prb.reporting.table import Table, interval, percent

    found = summary["validation"]
    parts = {"all": found["accuracy"], **found["by_category"], **{f"tier {k}": v for k, v in found["by_tier"].items()}}
    rows = tuple((name, interval(e), str(e["n"]), str(e["ties"]), str(e["failed"])) for name, e in parts.items())
    gap, points = found["gap"], [percent(found[side]["value"]) for side in ("score_chosen", "score_rejected")]
    notes = [
        "How often the chosen answer is graded above the rejected one, in % with a 95 % interval clustered by person;",
        f"a tie counts half (as lost: {percent(found['strict_accuracy']['value'])}), a failure not at all.",
        f"Mean score: chosen {points[0]}, rejected {points[1]}, gap {_signed(gap)}.",
    ]
    more = (*_human(summary["human"]), *_retest(summary["retest"]), *_failures(found["failures"]), *_trust(summary))
    title = f"{summary['grader']['spec']} on {_title(summary)}"
    return Table(title, ("rows", "chosen > rejected", "n", "ties", "failed"), rows, (*notes, *more))


def _title(summary: Mapping[str, Any]) -> str:
    data = summary["dataset"]
    return f"{data['name']}, split {data['split']}" if data["split"] else str(data["name"])


def _signed(gap: Mapping[str, Any]) -> str:
    if gap["value"] is None:
        return "–"
    ends = "" if gap["low"] is None else f" [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
    return f"{100 * gap['value']:+.1f}{ends}"


def _human(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found:
        yield (
            f"Against people, {found['answers']} answers: {_agreement(found)}, Spearman of scores "
            f"{_plain(found['spearman'])}; {found['failed']} failed."
        )


def _retest(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found and found["deterministic"]:
        yield "Test and retest: this grader is deterministic, so it always says the same."
    elif found:
        again = f"Graded again under another seed, {found['answers']} answers"
        yield f"{again}: {_agreement(found)}; {found['failed']} failed."


def _agreement(found: Mapping[str, Any]) -> str:
    from prb.reporting.table import interval

    return f"{interval(found['equal'])} % of aspect grades equal, quadratic kappa {_plain(found['kappa'])}"


def _plain(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return "undefined"
    ends = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['value']:.2f}{ends}"


def _failures(found: Mapping[str, int]) -> Iterator[str]:
    if found:
        yield "Failed: " + ", ".join(f"{count} {reason}" for reason, count in found.items()) + "."


def _trust(summary: Mapping[str, Any]) -> Iterator[str]:
    grader = summary["grader"]
    if grader["validity"]:
        yield f"Graded by {grader['spec']}. {grader['validity']}"
    elif "score" in summary:
        yield f"Graded by {grader['spec']}. What that is worth: prb grade --validate --grader '{grader['spec']}'"
    if summary["tokens"]:
        yield f"{summary['tokens']:,} tokens, cost {summary['cost']:.4f}."
