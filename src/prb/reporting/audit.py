"""An audit as tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prb.reporting.style import CONDITIONS, SOFT, drawing, whiskers
from prb.reporting.table import Table, interval, p_value


def rows_of(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What was measured, from knowing nothing to knowing the rubric."""
    for floor in result["floors"]:
        yield f"floor: {floor['model']}", floor["accuracy"]
    if result["blind"]:
        yield "user-blind learner: answer alone", result["blind"]["answer"]
        yield "user-blind learner: question and answer", result["blind"]["question_and_answer"]
    if result["ceiling"]:
        yield f"reading the rubric: {result['ceiling']['model']}", result["ceiling"]["accuracy"]


def tables(result: Mapping[str, Any]) -> Iterator[Table]:
    data = result["dataset"]
    split = f", split {data['split']}" if data["split"] else ""
    title = (
        f"{data['name']}{split}: {data['rows']} pairs, {data['clusters']} clusters, {data['mirror_rows']} mirror rows"
    )
    rows = tuple((name, interval(estimate), str(estimate["failed"])) for name, estimate in rows_of(result))
    notes = ["Accuracy in % with a 95 % interval by cluster; a tie counts half, a failure not at all."]
    if result["blind"]:
        blind = result["blind"]
        notes.append(
            f"Learner: linear Bradley-Terry on {blind['features']}, out of fold; {blind['groups']} groups kept whole "
            f"(by {blind['grouped_by']}, near-duplicate questions together)."
        )
    yield Table(title, ("who answers", "accuracy", "failed"), rows, tuple(notes))
    yield Table("What to look at", ("finding", "found"), tuple(_findings(result)), ())
    if result["giveaways"]["words"]:
        words = tuple(
            (w["word"], str(w["chosen"]), str(w["rejected"]), p_value(w["p"])) for w in result["giveaways"]["words"]
        )
        counted = f"{result['giveaways']['more_than_chance']} of {result['giveaways']['looked_at']}"
        note = "Pairs in which only one answer has it; sign test by cluster, Holm over all that were looked at."
        yield Table(
            f"What gives an answer away: {counted}", ("word", "only chosen", "only rejected", "p"), words, (note,)
        )


def _findings(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    length, repeats, leaks, splits = result["length"], result["repeats"], result["leaks"], result["splits"]
    yield (
        "chosen is the longer answer",
        f"{interval(length['chosen_longer'])} %; median ratio {length['median_ratio']:.2f}",
    )
    yield "answers within a tenth of each other's length", f"{100 * length['within_a_tenth']:.0f} %"
    several = f"{repeats['under_several_questions']} of {repeats['answers']}"
    one_sided = f"{repeats['of_these_always_on_one_side']} always on one side"
    yield "answers under several questions", f"{several}, {one_sided}; in {repeats['rows_with_such_an_answer']} rows"
    yield "rows that are there twice", str(repeats["rows_twice"])
    places = ", ".join(f"{place} {leaks[place]}" for place in ("question", "posts", "chosen", "rejected"))
    yield f"rows with {leaks['words']} hidden words in a row in what a model reads", places
    if splits:
        asked = f"{splits['questions_elsewhere_too']} the same, {splits['questions_nearly_elsewhere']} nearly"
        yield "questions also in other splits", f"{asked}, of {splits['questions']}"
        yield (
            "answers and people also in other splits",
            f"{splits['answers_elsewhere_too']}, {splits['people_elsewhere_too']}",
        )


def plot(result: Mapping[str, Any], *paths: Path) -> None:
    """Accuracies with their intervals, one below the other."""
    rows = [(name, e) for name, e in rows_of(result) if e["value"] is not None]
    with drawing(*paths, width=7.5, height=1.4 + 0.35 * len(rows), alt=result["verdict"]) as figure:
        axes = figure.add_subplot()
        axes.axvline(50, color=SOFT, lw=0.8, ls=":")
        for place, (name, estimate) in enumerate(rows):
            value = 100 * estimate["value"]
            colour = CONDITIONS["shuffled" if "blind" in name else "profile" if "rubric" in name else "none"]
            axes.errorbar([value], [-place], xerr=whiskers([estimate]), fmt="o", ms=5, color=colour, capsize=2)
            above = {"xytext": (0, 6), "textcoords": "offset points", "fontsize": 7, "ha": "center"}
            axes.annotate(f"{value:.1f}", (value, -place), **above)
        axes.set_yticks([-n for n in range(len(rows))], [name for name, _ in rows])
        axes.set_ylim(-len(rows) + 0.4, 0.7)
        lowest = [e["value"] if e["low"] is None else e["low"] for _, e in rows]
        axes.set_xlim(min([35, *(100 * low - 3 for low in lowest)]), 102)
        axes.set_xlabel("accuracy in %, 95 % interval; dotted: a coin")
        axes.set_title(result["dataset"]["name"])
