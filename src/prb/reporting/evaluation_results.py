"""What `prb evaluate` and `prb compare` return and print.

result = prb.evaluate(model="embedding")
print(result.verdict)                       # which models know whose preference they judge, in sentences
result.accuracy("embedding", "profile")     # Estimate(value=0.508, low=0.487, high=0.530, n=240, …)
result.frame()                              # a pandas DataFrame, one row per model and condition
result.tables()                             # what the command line prints
prb.open_run("runs/mirror-1a2b3c4d")        # the same object from its folder
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import convert, to_builtins

from prb.data.load import LINKED
from prb.errors import BadInput, MissingExtra, unknown
from prb.evaluation.compare import ComparisonSummary, TwoModels
from prb.reporting.format import (
    MISSING,
    Table,
    bounds,
    interval,
    number,
    p_value,
    percent,
    plural,
    points,
    stars,
    table_of,
)
from prb.reporting.results import Run, significant
from prb.runs import OUTCOMES, read_lines
from prb.stats.paired import UNTESTED
from prb.summary import (
    CONDITIONS,
    MAIN,
    METRICS,
    Contrast,
    Metric,
    RatingResult,
    Retest,
    Summary,
)
from prb.types import Estimate, Tested

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN_FAILURES = 8
COUNTS = frozenset({"ties", "unparsed", "failed"})
"""Columns that the short table leaves out if they are 0 for every model: nothing went wrong."""
OFFICIAL = {
    "RewardBench": "its official score, the mean of its sections with their published weights",
    "RewardBench 2": "its official score, the mean of six subsets, ties included",
}
UNKNOWN = Estimate(value=None, low=None, high=None, n=0)


# --- evaluate ---
@dataclass(frozen=True, repr=False)
class Evaluation(Run):
    """The result of `prb evaluate`, by model and condition; `summary` is the content of summary.json."""

    kind = "evaluate"

    full: bool = False
    """Whether `tables` has all numbers."""

    @cached_property
    def verdict(self) -> Conclusion | None:
        """What the corrected tests show, in sentences; `None` for ratings, which have no such test."""
        return verdict(self.typed)

    @cached_property
    def typed(self) -> Summary:
        return Summary.read(self.summary, self.folder)

    @property
    def models(self) -> list[str]:
        return self.typed.models

    @property
    def conditions(self) -> list[str]:
        return self.typed.conditions

    def accuracy(self, model: str | None = None, condition: str = MAIN) -> Estimate:
        """Mean credit; the model may be left out if there is only one."""
        return self.metric("accuracy", model, condition)

    def metric(self, key: str, model: str | None = None, condition: str = MAIN) -> Estimate:
        """Any metric; one that compares conditions, such as gain and control, needs none."""
        if model is None and len(self.models) == 1:
            model = self.models[0]
        if model not in self.models:
            raise unknown("model of this run", str(model), self.models)
        if needs := METRICS.look_up(key).needs:
            contrast = self.typed.contrasts_of(model).get(key)
            if contrast is None:
                raise BadInput(f"this run has no {key}: it needs {' and '.join(needs)}")
            return contrast.estimate
        result = self.typed.result(model, condition)
        if result is None:
            raise unknown("condition of this run", condition, self.conditions)
        return result.estimate(key) or UNKNOWN

    def frame(self, of: Literal["summary", "outcomes"] = "summary") -> DataFrame:
        """One row per model and condition, or per outcome."""
        try:
            from pandas import DataFrame, json_normalize
        except ImportError:
            raise MissingExtra("a data frame", "pandas") from None
        if of == "outcomes":
            rows = list(read_lines(self.folder / OUTCOMES))
        else:
            contrasts = [c for c in self.typed.contrasts if c.condition and METRICS[c.kind].column]
            rows = [dict(row) for row in self.summary["results"]]
            for row in rows:
                place = row["model"], row["condition"]
                row |= {c.kind: to_builtins(c) for c in contrasts if (c.model, c.condition) == place}
        return json_normalize(rows) if rows else DataFrame()

    def tables(self) -> Sequence[Table]:
        conclusion = self.verdict
        if conclusion is None:
            return self.numbers()
        if self.full or not conclusion.measured:
            table = evaluation_table(self.typed, ranked=not self.full)
        else:
            table = (restraint_table if self.typed.dataset.only_restraint else verdict_table)(self.typed, conclusion)
        return [table._replace(title=conclusion.headline, lead=(*conclusion.sentences, conclusion.size))]

    def numbers(self) -> Sequence[Table]:
        return [evaluation_table(self.typed)]

    def footer(self) -> str:
        return f"run: {self.folder}   site: prb report {self.folder}"


# --- the verdict ---
REFERENCES = frozenset({"random", "length", "constant", "aspect-match"})
"""Models that do not read the history: other numbers are compared with theirs."""
NAMED = 4
"""Models that a sentence names; of more it says how many."""


@dataclass(frozen=True)
class Standing:
    """Where a model stands on control, by the test after Holm's correction."""

    model: str
    control: Contrast
    others: float | None
    """Accuracy with somebody else's history."""
    own: float | None
    rubric: float | None
    """Accuracy when shown the true rubric, of a model that reads it."""
    failed: int

    @property
    def says(self) -> Literal["personalizes", "reversed", "not shown", "not measured"]:
        if self.control.value is None:
            return "not measured"
        if not significant(self.control.p_holm):
            return "not shown"
        return "personalizes" if self.control.value > 0 else "reversed"


@dataclass(frozen=True)
class Conclusion:
    """What an evaluation shows: which models are right more often with the user's own history than with another's."""

    headline: str
    sentences: tuple[str, ...]
    size: str
    """What it rests on, and how small a control it could have found."""
    standings: tuple[Standing, ...]
    """The one with the most control first."""
    references: tuple[Standing, ...]
    """Models that do not read the history and whose verdicts did not depend on the history."""

    @property
    def measured(self) -> bool:
        """Whether the control of any model was."""
        return any(standing.control.value is not None for standing in self.standings)

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.sentences, self.size))


def verdict(summary: Summary, references: Collection[str] | None = None) -> Conclusion | None:
    """From the corrected tests of control; `None` for ratings. `references`: those of the models that are baselines."""
    if summary.task == "ratings":
        return None
    if references is None:
        references = [model for model in summary.models if model.partition("?")[0] in REFERENCES]
    results = {(result.model, result.condition): result for result in summary.pairs}
    standings = []
    for model in summary.models:
        control = summary.contrasts_of(model).get("control") or Contrast(model=model, kind="control")
        three = [results.get((model, condition)) for condition in (*METRICS["control"].needs, "oracle")]
        own, others, rubric = (result.accuracy.value if result else None for result in three)
        failed = sum(result.failed for result in summary.pairs if result.model == model)
        standings.append(Standing(model, control, others, own, None if rubric == own else rubric, failed))
    blind = [s for s in standings if s.model in references and s.control.value == 0 and s.control.test == UNTESTED]
    if len(blind) == len(standings) or summary.dataset.only_restraint:
        blind = []
    ranked = sorted(standings, key=lambda s: (s.control.value is None, -(s.control.value or 0)))
    ranked = [standing for standing in ranked if standing not in blind]
    measured = [standing for standing in ranked if standing.control.value is not None]
    sentences: list[str] = []
    if not measured:
        own_history, another = METRICS["control"].needs
        why = f"it takes {own_history} and {another}, and two users with a history"
        if any(contrast.kind == "control" for contrast in summary.contrasts):
            why = f"no pair has an answer under both {own_history} and {another}"
        headline = f"Whether a model knows whose preference it judges was not measured: {why}."
    elif summary.dataset.only_restraint:
        headline, sentences = _restraint_conclusion(summary, [standing.model for standing in measured])
    else:
        headline, sentences = _conclusion(summary, measured)
    return Conclusion(headline, tuple(sentences), _size(summary, measured), tuple(ranked), tuple(blind))


def _conclusion(summary: Summary, measured: Sequence[Standing]) -> tuple[str, list[str]]:
    """Says of a difference that no test confirms that it is not shown, never that there is none."""
    says: dict[str, list[str]] = {"personalizes": [], "not shown": [], "reversed": []}
    for standing in measured:
        says[standing.says].append(standing.model)
    know, not_shown, reverse = says.values()
    best, count = measured[0], len(measured)
    if count == 1:
        headline = f"{best.model} {'knows' if know else 'is not shown to know'} whose preference it judges."
    elif len(know) > 1:
        headline = f"{len(know)} of {count} models know whose preference they judge."
    else:
        how_many = f"1 of {count} models knows" if know else f"None of {count} models is shown to know"
        headline = f"{how_many} whose preference it judges."
    of = "pairs" if summary.dataset.chance is None else "rows"
    right = f"{best.model}: right in {percent(best.own)} % of the {of} with the user's own history"
    right = f"{right} and in {percent(best.others)} % with somebody else's"
    sentences = [f"{right}{'; no difference is shown' if best.model in not_shown else ''}."]
    if others := [model for model in know if model != best.model]:
        also = "also " if best.model in know else ""
        sentences.append(f"A difference is {also}shown for {_names(others)}.")
    if rest := [model for model in not_shown if model != best.model]:
        sentences.append(f"For {_names(rest)} no difference is shown.")
    if reverse:
        are = "is" if len(reverse) == 1 else "are"
        right_with = "right more often with somebody else's history than with the user's own"
        sentences.append(f"{_names(reverse)} {are} {right_with}.")
    return headline, sentences


def _restraint_conclusion(summary: Summary, models: Sequence[str]) -> tuple[str, list[str]]:
    """Of rows that the history must not decide: being right less often with the user's history is the fault."""
    spoiled = [_spoiled(summary, model) for model in models]
    misled = [s for s in spoiled if s.says == "▽ misapplies"]
    let, decide = ("lets" if len(misled) == 1 else "let"), "the user's history decide where it must not"
    if len(models) == 1:
        headline = f"{models[0]} {'lets' if misled else 'is not shown to let'} {decide}."
    elif misled:
        headline = f"{len(misled)} of {len(models)} models {let} {decide}."
    else:
        headline = f"None of {len(models)} models is shown to let {decide}."
    worst = max(spoiled, key=lambda s: s.share.value or 0)
    if not worst.share.value:
        return headline, []
    lost = f"{percent(worst.share.value)} % of the pairs are lost with it"
    shown = CONDITIONS[METRICS[worst.test.kind].needs[-1]].shows
    chance = "" if misled else "; with this few rows that may be chance"
    return headline, [f"{worst.share.model}: {lost} and not with {shown}{chance}."]


def _names(models: Sequence[str]) -> str:
    if len(models) > NAMED:
        return f"{len(models)} more models"
    return " and ".join([", ".join(models[:-1]), models[-1]] if len(models) > 1 else models)


def _size(summary: Summary, measured: Sequence[Standing]) -> str:
    data = summary.dataset
    users = plural(data.users, "user")
    users += f" in {plural(data.clusters, 'cluster')}" if data.clusters != data.users else ""
    parts = [f"{data.label}: {plural(data.rows, 'pair' if data.chance is None else 'row')}", users]
    tests = [s.control if not data.only_restraint else _spoiled(summary, s.model).test for s in measured]
    detectable = [test.smallest_detectable for test in tests if test.smallest_detectable is not None]
    what = "a difference" if data.only_restraint else "control"
    if smallest := max(detectable, default=0):
        parts.append(f"detects {what} from about {percent(smallest, 0 if smallest > 0.02 else 1)} points")
    elif any(test.low != test.high for test in tests) or (tests and not detectable):
        parts.append(f"too few users to detect {what}")
    if data.left_out:
        parts.append(f"{data.left_out} rows with errors left out")
    if summary.protocol == "paper":
        parts.append("procedure of the paper's scripts")
    return " · ".join(parts)


def verdict_table(summary: Summary, conclusion: Conclusion) -> Table:
    """Every model by control, at most 80 columns wide with short names."""
    marks = {"personalizes": "● personalizes", "reversed": "▽ reversed", "not shown": "○ not shown"}
    failed = any(standing.failed for standing in conclusion.standings)
    rows = []
    for standing in conclusion.standings:
        control = standing.control
        row = [standing.model, f"{percent(standing.others)} → {percent(standing.own)}"]
        row += [number(control.value, scale=100, sign=True), bounds(control)]
        row += [marks.get(standing.says, standing.says), p_value(control.p_holm)]
        rows.append((*row, *([str(standing.failed)] if failed else [])))
    columns = ("model", "other's → own", "control", "95 %", "verdict", "p", *(["failed"] if failed else []))
    blind: dict[str, list[str]] = {}  # by their accuracy
    for s in conclusion.references:
        if s.rubric is None:
            blind.setdefault(percent(s.own), []).append(s.model)
    known = "; ".join(f"{', '.join(names)} {value}" for value, names in blind.items())
    shown = [s for s in conclusion.references if s.rubric is not None]
    parts = [f"{known} (user-blind)"] if known else []
    parts += [f"{s.model} {percent(s.rubric)} (shown the rubric)" for s in shown]
    notes = [f"For comparison: {'; '.join(parts)}."] if parts else []
    read = "Accuracy in % with somebody else's history → with the user's own. Control: the difference in points, with"
    notes.append(f"{read} its 95 % interval and p after Holm. All numbers: --full.")
    notes += [*_caveats(summary, summary.shown), *_problems(summary, METRICS["control"].needs)]
    return Table(conclusion.headline, columns, tuple(rows), tuple(notes))


class Spoiled(NamedTuple):
    """What the user's history spoils where it must not decide: against no history, or where that was not run, against
    another user's."""

    share: Contrast
    """Of the rows."""
    test: Contrast
    """The difference in accuracy."""
    says: str


def _spoiled(summary: Summary, model: str) -> Spoiled:
    kinds = ("misapplication", "gain") if "none" in summary.conditions else ("misapplication_control", "control")
    contrasts = summary.contrasts_of(model)
    share, test = (contrasts.get(kind) or Contrast(model=model, kind=kind) for kind in kinds)
    says = "○ not shown" if test.value is not None else "not measured"
    if test.value is not None and significant(test.p_holm):
        says = "▽ misapplies" if test.value < 0 else "● resists"
    return Spoiled(share, test, says)


def restraint_table(summary: Summary, conclusion: Conclusion) -> Table:
    """Of rows that the history must not decide: every model, the one that misapplies the least first."""
    spoiled = [_spoiled(summary, standing.model) for standing in conclusion.standings]
    share, test, pull = (METRICS[kind] for kind in (spoiled[0].share.kind, spoiled[0].test.kind, "pull"))
    own, without = test.needs
    rows = []
    for s in sorted(spoiled, key=lambda s: (s.share.value is None, s.share.value or 0)):
        model = s.share.model
        accuracy = {r.condition: percent(r.accuracy.value) for r in summary.pairs if r.model == model}
        numbers = (percent(s.share.value), bounds(s.share), metric_cell(pull, summary.contrasts_of(model).get("pull")))
        rows.append((model, f"{accuracy[without]} → {accuracy[own]}", *numbers, s.says, p_value(s.test.p_holm)))
    notes = [f"Misapplied, in %: {share.sentence}. Pull: {pull.sentence}."]
    notes.append(f"Accuracy in % under {without} → {own}; p of the difference after Holm. All numbers: --full.")
    notes += _problems(summary, (*test.needs, *pull.needs))
    columns = ("model", f"{without} → own", "misapplied", "95 %", "pull", "verdict", "p")
    return Table(conclusion.headline, columns, tuple(rows), tuple(notes))


# --- the table with all numbers ---
def evaluation_table(summary: Summary, *, ranked: bool = False) -> Table:
    """One row per model, cells such as `63.3 [57.0, 69.2]`, and the columns that this run has; if `ranked`, the most
    accurate model first, without columns that have no value, and without counts that are all 0."""
    if summary.task == "ratings":
        return _ratings(summary)
    results, data, models = summary.pairs, summary.dataset, summary.models
    cell = {(result.model, result.condition): result for result in results}
    measured = [c for c in summary.conditions if any(r.measured for r in results if r.condition == c)]
    conditions = measured or summary.conditions
    shown = summary.shown if summary.shown in conditions else conditions[0]
    if ranked:
        accuracy = {model: cell[model, summary.shown].accuracy.value for model in models}
        models = sorted(models, key=lambda model: -(-1 if (value := accuracy[model]) is None else value))
    columns = [(c, [interval(cell[model, c].accuracy) for model in models]) for c in conditions]
    # a contrast that could not be measured is a column of dashes; other metrics that do not apply are left out
    present = {contrast.kind for contrast in summary.contrasts}
    present |= {key for result in results for key, value in result.metrics.items() if value is not None}
    contrasts, metrics = {model: summary.contrasts_of(model) for model in models}, []
    for metric in METRICS.values():
        key = metric.key
        if metric.column and key in present:
            of_model = {m: contrasts[m].get(key) if metric.needs else cell[m, shown].metrics.get(key) for m in models}
            cells = [metric_cell(metric, value) for value in of_model.values()]
            if not ranked or set(cells) != {MISSING}:
                metrics.append(metric)
                columns.append((metric.label, cells))
    official = [name for name in OFFICIAL if any(name in result.official for result in results)]
    columns += [(name, [percent(cell[model, shown].official.get(name)) for model in models]) for name in official]
    counted = "a tie counts half, failures are left out"
    if all(result.paper for result in results):
        counts = [paper for model in models if (paper := cell[model, shown].paper)]
        counted = "as in the paper's scripts, ties count as lost and replies without a verdict as A"
        columns.append(("ties", [str(paper.ties) for paper in counts]))
        columns.append(("unparsed", [str(paper.unparsed) for paper in counts]))
    columns.append(("failed", [str(sum(cell[model, c].failed for c in conditions)) for model in models]))
    if ranked:
        empty = {name: {MISSING, "0"} if name in COUNTS else {MISSING} for name, _ in columns}
        columns = [columns[0], *(column for column in columns[1:] if set(column[1]) - empty[column[0]])]
    linked = "user" if data.clusters == data.users else "user (linked users, such as twins, count as one)"
    if data.clustered_by not in ("users", LINKED):
        linked = data.clustered_by
    notes = [f"Accuracy in % with a 95 % interval clustered by {linked}; {counted}.", *_caveats(summary, shown)]
    for where, needs in (("", True), (f"Under {shown}: ", False)):
        if sentences := [f"{metric.label}: {metric.sentence}" for metric in metrics if bool(metric.needs) is needs]:
            notes.append(f"{where}{'; '.join(sentences)}.")
    if any(metric.tested for metric in metrics):
        notes.append("Stars: p < .05, .01, .001 after Holm.")
    notes += _problems(summary)
    rows = zip(models, *(cells for _, cells in columns), strict=True)
    return Table(_title(summary), ("model", *(name for name, _ in columns)), tuple(rows), tuple(notes))


def metric_cell(metric: Metric, value: Estimate | Contrast | float | None) -> str:
    """A metric in a table: `+6.3*`, `56.7**`, `0.613`."""
    number_ = value if isinstance(value, (int, float)) or value is None else value.value
    if number_ is None:
        return MISSING
    marks = stars(value.p_holm) if metric.tested and isinstance(value, (Tested, Contrast)) else ""
    if metric.unit == "number":
        return number(number_, 3) + marks
    return number(number_, scale=100, sign=metric.unit == "points") + marks


def _caveats(summary: Summary, shown: str) -> Iterator[str]:
    """What the reader must know of the data."""
    data, results = summary.dataset, summary.pairs
    if summary.license:
        by_people = [
            f"{result.model} {interval(estimate)}"
            for result in results
            if result.condition == shown and (estimate := result.metrics.get("human_accuracy")) is not None
        ]
        yield f"Accuracy by people's labels, {shown}: {', '.join(by_people) or 'no row has one'}. {summary.license}"
    if unscored := max((r.indifference.n for r in results if r.indifference), default=0):
        yield f"{unscored} rows whose user's history shows no preference have no right answer and do not count."
    if isinstance(data.noise_ceiling, Retest):
        agreement = f"test-retest agreement is {percent(data.noise_ceiling.agreement)} %"
        votes = f"{data.noise_ceiling.n} pairs of votes by one user on the same prompt and answers"
        yield f"Noise ceiling: {agreement} ({votes}); accuracies are not corrected for it."
    elif data.noise_ceiling is None:
        yield "Noise ceiling: unknown, since nobody voted twice on the same prompt and answers."
    if data.chance is not None:
        chance = percent(data.chance)
        yield f"A row counts as correct if a right answer is ranked first; a coin would score {chance}."
    for name, meaning in OFFICIAL.items():
        if any(name in result.official for result in results):
            yield f"{name}: {meaning}."


def _ratings(summary: Summary) -> Table:
    metrics = [metric for metric in METRICS.values() if metric.task == "ratings" and metric.column]
    rows = []
    for result in summary.results:
        assert isinstance(result, RatingResult)
        values = [result.estimate(metric.key) or UNKNOWN for metric in metrics]
        cells = [interval(value, 3, scale=1) for value in values]
        rows.append((result.model, result.condition, *cells, str(result.users), str(result.failed)))
    columns = ("model", "condition", *(metric.label for metric in metrics), "users", "failed")
    note = "Means over users with 95 % intervals; scores are mapped to each user's scale, fitted on their other rows."
    return Table(_title(summary), columns, tuple(rows), (note, *_problems(summary)))


def _problems(summary: Summary, conditions: Collection[str] | None = None) -> Iterator[str]:
    """Warnings about models, and why rows failed, or were not measured (under these conditions): models alike in this
    share a line."""
    if summary.task == "pairs":
        for model in summary.models:
            yield from (f"{model} {warning}." for warning in summary.warnings(model))
    models: dict[tuple[str, str, str, int], list[str]] = {}
    for result in summary.results:
        not_measured = result.not_measured if conditions is None or result.condition in conditions else {}
        for what, counts in (("Failed", result.failures), ("Not measured", not_measured)):
            for reason, count in counts.items():
                models.setdefault((what, result.condition, reason, count), []).append(result.model)
    lines = []
    for (what, condition, reason, count), names in models.items():
        who = ", ".join(names) if len(names) < len(summary.models) else "every model"
        lines.append(f"{what} under {condition}: {count} × {reason} ({who}).")
    yield from lines[:SHOWN_FAILURES]
    if len(lines) > SHOWN_FAILURES:
        yield f"… and {len(lines) - SHOWN_FAILURES} more reasons; summary.json has all."


def _title(summary: Summary) -> str:
    data = summary.dataset
    left = f"; {data.left_out} rows with errors left out" if data.left_out else ""
    paper = "; procedure of the paper's scripts" if summary.protocol == "paper" else ""
    size = (plural(data.rows, "row"), plural(data.users, "user"), plural(data.clusters, "cluster"))
    return f"{data.label}: {', '.join(size)}{left}{paper}"


def numbers_table(summaries: Mapping[str, Summary]) -> Table:
    """One row per run, model and condition; one number per cell, as `summary.json` has it (shares, not percent)."""
    parts = ("low", "high", "p", "p_holm", "n", "failed", "ties")
    rows: list[dict[str, Any]] = []
    for run, summary in summaries.items():
        for result in summary.results:
            row: dict[str, Any] = {"run": run, "dataset": summary.dataset.name, "split": summary.dataset.split}
            row |= {"model": result.model, "condition": result.condition}
            values: dict[str, Any] = dict(result.metrics)
            contrasts = summary.contrasts_of(result.model)
            values |= {key: contrast for key, contrast in contrasts.items() if contrast.condition == result.condition}
            for key, value in values.items():
                if isinstance(value, (Estimate, Contrast)):
                    row[key] = value.value
                    row |= {f"{key}_{part}": getattr(value, part) for part in parts if hasattr(value, part)}
                else:
                    row[key] = value
            rows.append(row)
    return table_of(rows)


# --- compare ---
class Comparison(Run):
    """The result of `prb compare`; `folder` is that of the first run."""

    label = ""

    def tables(self) -> Sequence[Table]:
        result = convert(self.summary, ComparisonSummary)
        return [paired_table(result), *other_metrics(result.comparisons)]


def paired_table(result: ComparisonSummary) -> Table:
    columns = ("condition", "A", "B", "acc. A", "acc. B", "A − B", "95 %", "p", "p (Holm)", "changed", "n", "dropped")
    rows = []
    for row in result.comparisons:
        accuracies = (percent(row.accuracy_a), percent(row.accuracy_b))
        test = (points(row), bounds(row, sign=True), p_value(row.p), p_value(row.p_holm), percent(row.changed_sides))
        rows.append((row.condition, row.model_a, row.model_b, *accuracies, *test, str(row.n), str(row.dropped)))
    tests = sorted({row.test for row in result.comparisons} - {UNTESTED})
    how = "the 95 % interval inverts the sign-flip test over clusters" + f", p by {', '.join(tests)}" * bool(tests)
    notes = [f"Paired on rows both answered; {how}."]
    if smallest := max((row.smallest_detectable or 0 for row in result.comparisons), default=0):
        notes.append(f"Smallest detectable difference (80 % power): about {percent(smallest)} points.")
    if not result.same_data:
        notes.append("The two runs did not use the same data file; only rows with the same id are compared.")
    if only := max(row.only_in_one for row in result.comparisons):
        notes.append(f"Up to {only} rows are in one run only and were left out.")
    personal = [row for row in result.comparisons if row.condition == MAIN and row.value is not None]
    lead, known = [], f"with {CONDITIONS[MAIN].shows}"
    for row in personal if len(personal) <= NAMED else ():
        same = row.model_a == row.model_b
        a, b = (f"{row.model_a} in A", f"{row.model_b} in B") if same else (row.model_a, row.model_b)
        if row.p is None:
            lead.append(f"Whether {a} or {b} is better {known} cannot be tested: all rows are in one cluster.")
        elif not significant(row.p_holm) or not row.value:
            lead.append(f"Neither {a} nor {b} is shown to be better {known}.")
        else:
            better, worse = (a, b) if row.value > 0 else (b, a)
            lead.append(f"{better} is better than {worse} {known}, by {percent(abs(row.value))} points.")
    return Table(f"A = {result.a}, B = {result.b}", columns, tuple(rows), tuple(notes), tuple(lead))


def other_metrics(comparisons: Sequence[TwoModels]) -> Iterator[Table]:
    """Every other metric of both models, side by side; nothing if there is none."""
    compared = [row for row in comparisons if row.metrics]
    metrics = [metric for key, metric in METRICS.items() if any(key in row.metrics for row in compared)]
    if not metrics:
        return
    rows = []
    for row in compared:
        values = [(metric, row.metrics.get(metric.key)) for metric in metrics]
        cells = [f"{metric_cell(m, v.a)} / {metric_cell(m, v.b)}" if v else MISSING for m, v in values]
        rows.append((row.condition, row.model_a, row.model_b, *cells))
    sentences = "; ".join(f"{metric.label}: {metric.sentence}" for metric in metrics)
    notes = ("A / B, each over all rows of its own run; no test compares them.", f"{sentences}.")
    columns = ("condition", "A", "B", *(metric.label for metric in metrics))
    yield Table("Other metrics", columns, tuple(rows), notes)
