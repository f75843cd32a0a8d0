"""What `prb evaluate`, `prb compare` and `prb audit` return and print.

result = prb.evaluate(model="embedding")
result.accuracy("embedding", "profile")     # Estimate(value=0.508, low=0.487, high=0.530, n=240, …)
result.frame()                              # a pandas DataFrame, one row per model and condition
result.tables()                             # what the command line prints
prb.open_run("runs/mirror-1a2b3c4d")        # the same object from its folder
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prb.errors import BadInput, unknown
from prb.evaluation.config import shown_condition
from prb.evaluation.summary import model_warnings
from prb.reporting.format import (
    MISSING,
    Table,
    bounds,
    dataset_name,
    interval,
    number,
    p_value,
    percent,
    points,
    stars,
)
from prb.reporting.results import Result, Run, data_frame, estimate
from prb.runs import OUTCOMES, USERS, read_lines, read_result
from prb.stats.ratings import METRICS
from prb.types import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

FRAMES = Literal["summary", "outcomes", "users"]
SHOWN_FAILURES = 8
PARTS = ("low", "high", "p", "p_holm", "n", "failed", "ties")
"""Of an estimate, beside its value."""


# --- evaluate ---
class Evaluation(Run):
    """The result of `prb evaluate`, by model and condition."""

    @cached_property
    def users(self) -> Mapping[str, Any]:
        """The content of `users.json`."""
        return read_result(self.folder, USERS)  # type: ignore[no-any-return]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row["model"] for row in self.summary["results"]))

    @property
    def conditions(self) -> list[str]:
        return list(dict.fromkeys(row["condition"] for row in self.summary["results"]))

    def accuracy(self, model: str | None = None, condition: str = "profile") -> Estimate:
        """Mean credit; the model may be left out if there is only one."""
        return estimate(self.result(model, condition)["accuracy"])

    def person_effect(self, model: str | None = None, condition: str = "profile") -> Estimate:
        """Share of twins that the model orders by the user; 0.5 for a user-blind one."""
        return estimate(self.result(model, condition)["person_effect"])

    def gain(self, model: str | None = None) -> Estimate:
        """Accuracy with the user's own history minus accuracy without any."""
        return estimate(self.contrast("gain", model))

    def control(self, model: str | None = None) -> Estimate:
        """Accuracy with the user's own history minus accuracy with another user's."""
        return estimate(self.contrast("control", model))

    def result(self, model: str | None = None, condition: str = "profile") -> Mapping[str, Any]:
        """The entry of `summary.json` with every metric of one model under one condition."""
        name = self._model(model)
        if condition not in self.conditions:
            raise unknown("condition of this run", condition, self.conditions)
        return next(r for r in self.summary["results"] if (r["model"], r["condition"]) == (name, condition))

    def contrast(self, kind: Literal["gain", "control"], model: str | None = None) -> Mapping[str, Any]:
        """The entry of `summary.json` with difference, interval and p-values."""
        name = self._model(model)
        rows = [row for row in self.summary["contrasts"] if (row["kind"], row["model"]) == (kind, name)]
        if not rows:
            raise BadInput(f"this run has no {kind}: it needs profile and {'none' if kind == 'gain' else 'shuffled'}")
        return rows[0]  # type: ignore[no-any-return]

    def frame(self, of: FRAMES = "summary") -> DataFrame:
        """One row per model and condition, per outcome, or per user, model and condition."""
        if of == "outcomes":
            return data_frame(read_lines(self.folder / OUTCOMES))
        if of == "users":
            return data_frame(
                {"user": user} | {k: v if k in ("model", "condition") else v[n] for k, v in row.items()}
                for row in self.users["results"]
                for n, user in enumerate(self.users["users"])
            )
        contrasts = {(row["model"], row["kind"]): row for row in self.summary["contrasts"]}
        rows = [dict(row) for row in self.summary["results"]]
        for row in rows:
            if row["condition"] == "profile":
                row |= {kind: contrasts.get((row["model"], kind)) for kind in ("gain", "control")}
        return data_frame(rows)

    def tables(self) -> Sequence[Table]:
        return [evaluation_table(self.summary)]

    def _model(self, model: str | None) -> str:
        if model is None and len(self.models) == 1:
            return self.models[0]
        if model not in self.models:
            raise unknown("model of this run", str(model), self.models)
        return model


def evaluation_table(summary: Result) -> Table:
    """One row per model, cells such as `63.3 [57.0, 69.2]`, and the columns that this run has."""
    return _ratings(summary) if summary["task"] == "ratings" else _pairs(summary)


class ExtraColumn(NamedTuple):
    """A column that only some runs have: its heading, a model's cell, and what the reader must know of it."""

    heading: str
    cell: Callable[[Result], str]
    note: str = ""


def _pairs(summary: Result) -> Table:
    results, data = summary["results"], summary["dataset"]
    conditions = [c for c in dict.fromkeys(row["condition"] for row in results) if _measured(results, c)]
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
    linked = "user" if data["clusters"] == data["users"] else "user (linked users, such as twins, count as one)"
    notes = [f"Accuracy in % with a 95 % interval clustered by {linked}; {counted}."]
    if unscored := max((row["indifference"]["n"] for row in results if "indifference" in row), default=0):
        notes.append(f"{unscored} rows whose user's history shows no preference have no right answer and do not count.")
    if "noise_ceiling" in data:
        notes.append(_noise_note(data["noise_ceiling"]))
    if str(data["name"]).startswith("personalrewardbench"):
        means = [f"{row['model']} {percent(row['users']['mean'])}" for row in results if row["condition"] == shown]
        notes.append(f"Mean accuracy over users under {shown}, as PersonalRewardBench reports it: {', '.join(means)}.")
    models = dict.fromkeys(row["model"] for row in results)
    warnings = [f"{model} {warning}." for model in models for warning in model_warnings(summary, model)]
    notes += [*filter(None, (column.note for column in extra)), *warnings, *_rows_without_outcome(results)]
    headings = ("model", *conditions, *(column.heading for column in extra), "failed")
    return Table(_title(summary), headings, tuple(rows), tuple(notes))


def _contrast_columns(contrasts: Sequence[Result]) -> Iterator[ExtraColumn]:
    meanings = {"gain": "gain = profile − none", "control": "control = profile − shuffled (another user's history)"}
    kinds = [kind for kind in meanings if any(row["kind"] == kind for row in contrasts)]
    contrast = {(row["kind"], row["model"]): row for row in contrasts}
    note = "; ".join(meanings[kind] for kind in kinds) + ". Stars: p < .05, .01, .001 after Holm."
    for kind in kinds:
        cell = partial(lambda kind, row: points(contrast.get((kind, row["model"]))), kind)
        yield ExtraColumn(kind, cell, note if kind == kinds[-1] else "")


def _extra_columns(summary: Result, shown: str) -> Iterator[ExtraColumn]:
    results = summary["results"]
    if any(row["person_effect"] for row in results):
        yield ExtraColumn(
            "person effect",
            lambda row: percent(e["value"]) + stars(e.get("p_holm")) if (e := row["person_effect"]) else MISSING,
        )
        yield ExtraColumn(
            "mirror",
            lambda row: percent((row["mirror_accuracy"] or {}).get("value")),
            f"person effect and mirror under {shown}: share of twin pairs whose margins lean toward each user's own "
            "answer (user-blind: exactly 50; stars after Holm over the models), and share with both twins right (coin: "
            "25, user-blind: 0).",
        )
    if all("pairwise_accuracy" in row for row in results):
        chance = percent(summary["dataset"]["chance"])
        yield ExtraColumn(
            "pairwise",
            lambda row: percent(row["pairwise_accuracy"]["value"]),
            f"A row counts as correct if a right answer is ranked first; a coin would score {chance}. "
            f"pairwise: share of right-wrong pairs in the right order under {shown} (coin: 50).",
        )
    if any("rewardbench" in row for row in results):
        note = "RewardBench: its official score, the mean of its sections with their published weights."
        yield ExtraColumn("RewardBench", lambda row: percent(row.get("rewardbench", {}).get("score")), note)
    if any("rewardbench2" in row for row in results):
        note = "RewardBench 2: its official score, the mean of six subsets, ties included."
        yield ExtraColumn("RewardBench 2", lambda row: percent(row.get("rewardbench2", {}).get("score")), note)
    if all("paper" in row for row in results):
        yield ExtraColumn("ties", lambda row: str(row["paper"]["ties"]))
        yield ExtraColumn("unparsed", lambda row: str(row["paper"]["unparsed"]))


def _noise_note(retest: Result | None) -> str:
    """What is known of the noise in users' votes; accuracies are never divided by it."""
    if retest is None:
        return "Noise ceiling: unknown, since nobody voted twice on the same prompt and answers."
    votes = f"{retest['n']} pairs of votes by one user on the same prompt and answers"
    agreement = percent(retest["agreement"])
    return f"Noise ceiling: test-retest agreement is {agreement} % ({votes}); accuracies are not corrected for it."


def _ratings(summary: Result) -> Table:
    rows = tuple(
        (
            row["model"],
            row["condition"],
            *(interval(row[metric], 3, scale=1) for metric in METRICS),
            str(row["users"]),
            str(row["failed"]),
        )
        for row in summary["results"]
    )
    note = "Means over users with 95 % intervals; scores are mapped to each user's scale, fitted on their other rows."
    columns = ("model", "condition", *METRICS, "users", "failed")
    return Table(_title(summary), columns, rows, (note, *_rows_without_outcome(summary["results"])))


def _measured(results: Sequence[Result], condition: str) -> bool:
    """Whether any model has an answer or a failure under a condition; of a run without any, all are shown."""
    counts = {row["condition"]: 0 for row in results}
    for row in results:
        counts[row["condition"]] += row["accuracy"]["n"] + row["accuracy"]["failed"]
    return counts[condition] > 0 or not any(counts.values())


def _rows_without_outcome(results: Sequence[Result]) -> Iterator[str]:
    """Why rows failed, or were not measured; models alike in this share a line."""
    models: dict[tuple[str, str, str, int], list[str]] = {}
    for row in results:
        for what, counts in (("Failed", row["failures"]), ("Not measured", row["not_measured"])):
            for reason, count in counts.items():
                models.setdefault((what, row["condition"], reason, count), []).append(row["model"])
    everyone = len({row["model"] for row in results})
    lines = []
    for (what, condition, reason, count), names in models.items():
        who = ", ".join(names) if len(names) < everyone else "every model"
        lines.append(f"{what} under {condition}: {count} × {reason} ({who}).")
    yield from lines[:SHOWN_FAILURES]
    if len(lines) > SHOWN_FAILURES:
        yield f"… and {len(lines) - SHOWN_FAILURES} more reasons; summary.json has all."


def _title(summary: Result) -> str:
    data = summary["dataset"]
    left = f"; {data['left_out']} rows with errors left out" if data["left_out"] else ""
    paper = "; procedure of the paper's scripts" if summary.get("protocol") == "paper" else ""
    size = f"{data['rows']} rows, {data['users']} users, {data['clusters']} clusters"
    return f"{dataset_name(data)}: {size}{left}{paper}"


def numbers_table(summaries: Mapping[str, Result]) -> Table:
    """One row per run, model and condition; one number per cell, as `summary.json` has it (shares, not percent)."""
    rows: list[dict[str, Any]] = []
    for run, summary in summaries.items():
        data = summary["dataset"]
        for result in summary["results"]:
            row = {"run": run, "dataset": data["name"], "split": data["split"]}
            contrasts = {c["kind"]: c for c in summary["contrasts"] if c["model"] == result["model"]}
            for name, value in {**result, **(contrasts if result["condition"] == "profile" else {})}.items():
                if isinstance(value, Mapping) and "value" in value:
                    row[name] = value["value"]
                    row |= {f"{name}_{part}": value[part] for part in PARTS if part in value}
                elif not isinstance(value, Mapping | list):
                    row[name] = value
            rows.append(row)
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = [["" if row.get(name) is None else str(row[name]) for name in columns] for row in rows]
    return Table("", columns, tuple(map(tuple, cells)))


# --- compare ---
class Comparison(Run):
    """The result of `prb compare`; `folder` is that of the first run."""

    def tables(self) -> Sequence[Table]:
        return [comparison(self.summary)]

    def frame(self) -> DataFrame:
        return data_frame(self.summary["comparisons"])


def comparison(result: Result) -> Table:
    columns = ("condition", "A", "B", "acc. A", "acc. B", "A − B", "95 %", "p", "p (Holm)", "changed", "n", "dropped")
    rows = tuple(
        (
            row["condition"],
            row["model_a"],
            row["model_b"],
            percent(row["accuracy_a"]),
            percent(row["accuracy_b"]),
            points(row),
            bounds(row, sign=True),
            p_value(row["p"]),
            p_value(row["p_holm"]),
            percent(row["changed_sides"]),
            str(row["n"]),
            str(row["dropped"]),
        )
        for row in result["comparisons"]
    )
    tests = sorted({row["test"] for row in result["comparisons"]})
    how = f"the 95 % interval inverts the sign-flip test over clusters, p by {', '.join(tests)}"
    notes = [f"Paired on rows both answered; {how}."]
    smallest = [row["smallest_detectable"] for row in result["comparisons"] if row["smallest_detectable"]]
    if smallest:
        notes.append(f"Smallest detectable difference (80 % power): about {percent(max(smallest))} points.")
    if result["same_data"] is False:
        notes.append("The two runs did not use the same data file; only rows with the same id are compared.")
    only = max(row["only_in_one"] for row in result["comparisons"])
    if only:
        notes.append(f"Up to {only} rows are in one run only and were left out.")
    return Table(f"A = {result['a']}, B = {result['b']}", columns, rows, tuple(notes))


# --- audit ---
class Audit(Run):
    """The result of `prb audit`."""

    def tables(self) -> Sequence[Table]:
        return list(audit_tables(self.summary))


def audit_estimates(result: Result) -> Iterator[tuple[str, Result]]:
    """Accuracies from knowing nothing to knowing the rubric."""
    for floor in result["floors"]:
        yield f"floor: {floor['model']}", floor["accuracy"]
    if result["blind"]:
        yield "user-blind learner: answer alone", result["blind"]["answer"]
        yield "user-blind learner: question and answer", result["blind"]["question_and_answer"]
    if result["ceiling"]:
        yield f"reading the rubric: {result['ceiling']['model']}", result["ceiling"]["accuracy"]


def audit_tables(result: Result) -> Iterator[Table]:
    data, blind, giveaways = result["dataset"], result["blind"], result["giveaways"]
    size = f"{data['rows']} pairs, {data['clusters']} clusters, {data['mirror_rows']} mirror rows"
    rows = tuple((name, interval(estimate), str(estimate["failed"])) for name, estimate in audit_estimates(result))
    notes = ["Accuracy in % with a 95 % interval by cluster; a tie counts half, failures are left out."]
    if blind:
        notes.append(
            f"Learner: linear Bradley-Terry on {blind['features']}, out of fold; {blind['groups']} groups kept whole "
            f"(by {blind['grouped_by']}, near-duplicate questions together)."
        )
    yield Table(f"{dataset_name(data)}: {size}", ("scorer", "accuracy", "failed"), rows, tuple(notes))
    yield Table("What to look at", ("finding", "result"), tuple(_findings(result)))
    if giveaways["words"]:
        words = tuple((w["word"], str(w["chosen"]), str(w["rejected"]), p_value(w["p"])) for w in giveaways["words"])
        title = f"Giveaway words: {giveaways['more_than_chance']} of {giveaways['looked_at']} tested"
        note = "Pairs in which only one answer has the word; sign test by cluster, Holm over all words tested."
        yield Table(title, ("word", "only chosen", "only rejected", "p"), words, (note,))


def _findings(result: Result) -> Iterator[tuple[str, str]]:
    length, repeats, leaks, splits = result["length"], result["repeats"], result["leaks"], result["splits"]
    ratio = number(length["median_ratio"], 2)
    yield "chosen is the longer answer", f"{interval(length['chosen_longer'])} %; median ratio {ratio}"
    yield "answers within 10 % of each other's length", f"{percent(length['within_a_tenth'], 0)} %"
    several = f"{repeats['under_several_questions']} of {repeats['answers']}"
    one_sided = f"{repeats['of_these_always_on_one_side']} always on one side"
    yield "answers under several questions", f"{several}, {one_sided}; in {repeats['rows_with_such_an_answer']} rows"
    if "rows_with_a_question_of_several_users" in repeats:
        yield "rows whose question several users ask", str(repeats["rows_with_a_question_of_several_users"])
    yield "duplicate rows", str(repeats["rows_twice"])
    if result.get("topics"):
        for kind, label in (("matched", "a matched donor's"), ("any", "any donor's")):
            closer = interval(result["topics"][kind]["difference"], scale=1, digits=3, sign=True)
            yield f"cosine of question and own posts, minus {label}", closer
    places = ", ".join(f"{place} {leaks[place]}" for place in ("question", "posts", "chosen", "rejected"))
    yield f"rows that leak {leaks['words']} consecutive hidden words to the model", places
    if splits:
        repeated = f"{splits['questions_elsewhere_too']} the same, {splits['questions_nearly_elsewhere']} nearly"
        yield "questions also in other splits", f"{repeated}, of {splits['questions']}"
        yield (
            "answers and users also in other splits",
            f"{splits['answers_elsewhere_too']}, {splits['people_elsewhere_too']}",
        )
