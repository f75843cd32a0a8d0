"""The table of `prb evaluate`: one row per model, and the columns that this run has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from prb.reporting.format import MISSING, Table, interval, percent, points, stars
from prb.reporting.tables import dataset_name

Result = Mapping[str, Any]
SHOWN_FAILURES = 8
PAPER_COLUMNS = ("ties", "unparsed")


def leaderboard(summary: Result) -> Table:
    return _ratings(summary) if summary["task"] == "ratings" else _pairs(summary)


class Column(NamedTuple):
    """A column that only some runs have: its heading, a model's cell, and what the reader must know of it."""

    heading: str
    cell: Callable[[Result], str]
    note: str = ""


def _pairs(summary: Result) -> Table:
    results, data = summary["results"], summary["dataset"]
    conditions = list(dict.fromkeys(row["condition"] for row in results))
    shown = shown_condition(conditions)
    cell = {(row["model"], row["condition"]): row for row in results}
    extra = [*_contrast_columns(summary["contrasts"]), *_extra_columns(summary, shown)]
    rows = []
    for model in dict.fromkeys(row["model"] for row in results):
        values = [interval(cell[model, condition]["accuracy"]) for condition in conditions]
        values += [column.cell(cell[model, shown]) for column in extra]
        failed = sum(cell[model, condition]["accuracy"]["failed"] for condition in conditions)
        rows.append((model, *values, str(failed)))
    counted = "a tie counts half, failures are left out"
    if all("paper" in row for row in results):
        counted = "as in the paper's scripts, ties count as lost and replies without a verdict as A"
    alone = data["clusters"] == data["users"]
    linked = "user" if alone else "user (linked users, such as twins, count as one)"
    notes = [f"Accuracy in % with a 95 % interval clustered by {linked}; {counted}."]
    if "noise_ceiling" in data:
        notes.append(noise_note(data["noise_ceiling"]))
    if str(data["name"]).startswith("personalrewardbench"):
        means = [f"{row['model']} {percent(row['users']['mean'])}" for row in results if row["condition"] == shown]
        notes.append(f"Mean accuracy over users under {shown}, as PersonalRewardBench reports it: {', '.join(means)}.")
    notes += [*filter(None, (column.note for column in extra)), *_failed_rows(results)]
    headings = ("model", *conditions, *(column.heading for column in extra), "failed")
    return Table(_title(summary), headings, tuple(rows), tuple(notes))


def _contrast_columns(contrasts: Sequence[Result]) -> Iterator[Column]:
    meanings = {"gain": "gain = profile − none", "control": "control = profile − shuffled (another user's history)"}
    kinds = [kind for kind in meanings if any(row["kind"] == kind for row in contrasts)]
    for kind in kinds:
        change = {row["model"]: row for row in contrasts if row["kind"] == kind}
        note = "; ".join(meanings[k] for k in kinds) + ". Stars: sign-flip p < .05, .01, .001 after Holm."
        yield Column(kind, partial(_change, change), note if kind == kinds[-1] else "")


def _change(change: Mapping[str, Result], row: Result) -> str:
    return points(change.get(row["model"]))


def _extra_columns(summary: Result, shown: str) -> Iterator[Column]:
    results = summary["results"]
    if any(row["person_effect"] for row in results):
        yield Column("person effect", _person_effect)
        yield Column(
            "mirror",
            lambda row: percent((row["mirror_accuracy"] or {}).get("value")),
            f"person effect and mirror under {shown}: share of twins ordered by the user (user-blind: exactly 50) "
            "and share with both twins right (coin: 25, user-blind: 0).",
        )
    if all("pairwise_accuracy" in row for row in results):
        chance = percent(summary["dataset"]["chance"])
        yield Column(
            "pairwise",
            lambda row: percent(row["pairwise_accuracy"]["value"]),
            f"A row is right if a right answer is ranked first; a coin would score {chance}. "
            f"pairwise: share of right-wrong pairs in the right order under {shown} (coin: 50).",
        )
    if any("rewardbench2" in row for row in results):
        note = "RewardBench 2: its official score, the mean of six subsets, ties included."
        yield Column("RewardBench 2", lambda row: percent(row.get("rewardbench2", {}).get("score")), note)
    if all("paper" in row for row in results):
        yield from (Column(name, partial(_paper_count, name)) for name in PAPER_COLUMNS)


def _paper_count(name: str, row: Result) -> str:
    return str(row["paper"][name])


def _person_effect(row: Result) -> str:
    effect = row["person_effect"]
    return percent(effect["value"]) + stars(effect["p"]) if effect else MISSING


def noise_note(retest: Result | None) -> str:
    """What is known of the noise in users' votes; accuracies are never divided by it."""
    if retest is None:
        return "Noise ceiling: unknown, since nobody voted twice on the same prompt and answers."
    votes = f"{retest['n']} pairs of votes by one user on the same prompt and answers"
    agreement = percent(retest["agreement"])
    return f"Noise ceiling: test-retest agreement is {agreement} % ({votes}); accuracies are not corrected for it."


def _ratings(summary: Result) -> Table:
    metrics = ("alignment", "mae", "skill", "spearman", "concordance")
    rows = tuple(
        (
            row["model"],
            row["condition"],
            *(interval(row[metric], 3, scale=1) for metric in metrics),
            str(row["users"]),
            str(row["failed"]),
        )
        for row in summary["results"]
    )
    note = "Means over users with 95 % intervals; scores are mapped to each user's scale, fitted on their other rows."
    return Table(
        _title(summary),
        ("model", "condition", *metrics, "users", "failed"),
        rows,
        (note, *_failed_rows(summary["results"])),
    )


def _failed_rows(results: Sequence[Result]) -> Iterator[str]:
    """Why rows failed; models that failed alike share a line."""
    models: dict[tuple[str, str, int], list[str]] = {}
    for row in results:
        for reason, count in row["failures"].items():
            models.setdefault((row["condition"], reason, count), []).append(row["model"])
    everyone = len({row["model"] for row in results})
    lines = [
        f"Failed under {condition}: {count} {reason} ({', '.join(names) if len(names) < everyone else 'every model'})."
        for (condition, reason, count), names in models.items()
    ]
    yield from lines[:SHOWN_FAILURES]
    if len(lines) > SHOWN_FAILURES:
        yield f"… and {len(lines) - SHOWN_FAILURES} more reasons; `failures` in summary.json has all."


def _title(summary: Result) -> str:
    data = summary["dataset"]
    left = f"; {data['left_out']} rows with errors left out" if data["left_out"] else ""
    paper = "; procedure of the paper's scripts" if summary.get("protocol") == "paper" else ""
    size = f"{data['rows']} rows, {data['users']} users, {data['clusters']} clusters"
    return f"{dataset_name(data)}: {size}{left}{paper}"


def shown_condition(conditions: Sequence[str]) -> str:
    """The condition a reader asks for first: the user's own history, if it was run."""
    return "profile" if "profile" in conditions else conditions[0]
