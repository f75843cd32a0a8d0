"""What a verb returns (`Run`), and what `prb grade`, `build`, `train`, `data`, `models` and `cache` print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from prb.errors import BadInput, MissingExtra
from prb.grading.license import License
from prb.registry import Spec
from prb.reporting.format import MISSING, Table, dataset_name, dollars, html_table, interval, number, percent, plain
from prb.runs import Finished
from prb.summary import DatasetAbout
from prb.types import Estimate, Pair
from prb.weights import here
from prb.work import Planned, count_reasons

if TYPE_CHECKING:
    from pandas import DataFrame

Result = Mapping[str, Any]
DAMAGED = (KeyError, TypeError, IndexError, AttributeError, ValueError, msgspec.ValidationError)
"""What reading a result of an unexpected shape raises."""


@contextmanager
def explain_damage(place: Path) -> Iterator[None]:
    """A result of an unexpected shape is one line that names it."""
    try:
        yield
    except DAMAGED as error:
        said = f"{type(error).__name__} {error}" if isinstance(error, LookupError) else " ".join(str(error).split())
        raise BadInput(f"{place} was edited or written by another version of prb: {said}") from None


def dataset_label(result: Result) -> str:
    return msgspec.convert(result["dataset"], DatasetAbout).label


class Run(Finished):
    """A finished job: the folder it wrote and the content of its result file."""

    def tables(self) -> Sequence[Table]:
        """The tables that the command line prints."""
        return ()

    def frame(self) -> DataFrame:
        """One row per result; nested values become dotted columns."""
        return data_frame(self.summary.get("results", [self.summary]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}>"

    def __str__(self) -> str:
        return "\n\n".join(map(plain, self.tables())) or repr(self)

    def _repr_html_(self) -> str:
        return "\n".join(map(html_table, self.tables())) or f"<p>{escape(repr(self))}</p>"


def estimate(entry: Mapping[str, Any] | None) -> Estimate:
    """An entry of a summary as an object."""
    if entry is None:
        return Estimate(value=None, low=None, high=None, n=0)
    return Estimate(**{field.name: entry[field.name] for field in fields(Estimate) if field.name in entry})


def data_frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    try:
        from pandas import DataFrame, json_normalize
    except ImportError:
        raise MissingExtra("a data frame", "pandas") from None
    flat = json_normalize(list(rows))
    return flat if len(flat) else DataFrame()


# --- dry runs ---
class DryRun(Run):
    """What a run would ask, with `dry_run`; nothing was asked, and nothing is in its folder yet."""

    def tables(self) -> Sequence[Table]:
        rows = tuple(
            (
                row["model"],
                f"{row['calls']:,}",
                f"{row['calls'] - row['owed']:,}",
                f"{row['owed']:,}",
                f"{row['tokens']:,}",
                MISSING if row["usd"] is None else dollars(row["usd"]),
                MISSING if row["seconds"] is None else f"{row['seconds'] / 60:,.1f} min",
            )
            for row in self.summary["dry_run"]
        )
        notes = (
            "Nothing was asked. Tokens to read are estimated as characters / 4, without a judge's instructions.",
            f"Cost: usd_in for what is read, usd_out for {REPLY_TOKENS} tokens per reply, where the spec has prices.",
            "Time: at the pace of the replies that are there, if any.",
        )
        columns = ("model", "calls", "known", "to ask", "tokens", "cost", "time")
        return [Table("Dry run", columns, rows, notes)]


REPLY_TOKENS = 200
"""What a dry run takes a reply of an LLM to have."""


def estimated(planned: Mapping[str, Planned], specs: Mapping[str, str], pace: Mapping[str, float]) -> list[Result]:
    """The rows of a dry run; `specs` by the name of a model, `pace` its seconds per call."""

    def row(name: str, calls: Planned) -> Result:
        prices = dict(re.findall(r"\b(usd_in|usd_out)=([\d.]+)", specs.get(name, name)))
        tokens = calls.characters // 4
        usd = None
        if prices:
            read, written = float(prices.get("usd_in", 0)), float(prices.get("usd_out", 0))
            usd = (tokens * read + calls.owed * REPLY_TOKENS * written) / 1e6
        seconds = calls.owed * pace[name] if name in pace else None
        about = {"model": name, "calls": len(calls.keys), "owed": calls.owed}
        return {**about, "tokens": tokens, "usd": usd, "seconds": seconds}

    return [row(name, calls) for name, calls in planned.items()]


# --- grade ---
class Grading(Run):
    """The result of `prb grade`."""

    def tables(self) -> Sequence[Table]:
        return [grade_table(self.summary)]


def grade_table(summary: Result) -> Table:
    """The mean score; of a validation, how often the grader prefers the chosen answer."""
    if summary.get("validation"):
        return _validation(summary)
    score, answers = summary["score"], summary["answers"]
    row = (summary["grader"]["spec"], interval(score), str(score["n"]), str(answers["distinct"]), str(score["failed"]))
    note = "Mean score in % of the rubric (Σ grades / 2n) with a 95 % interval clustered by user."
    licensed = summary.get("licensed")
    by_people = [f"As people would grade: {interval(licensed['score'])}. {licensed['sentence']}"] if licensed else []
    notes = (note, *by_people, *_failures(summary["failures"]), *_grader_trust(summary))
    return Table(dataset_name(summary["dataset"]), ("grader", "score", "graded", "distinct", "failed"), (row,), notes)


def _validation(summary: Result) -> Table:
    checked = summary["validation"]
    tiers = {f"tier {name}": estimate for name, estimate in checked["by_tier"].items()}
    parts = {"all": checked["accuracy"], **checked["by_category"], **tiers}
    rows = tuple((name, interval(e), str(e["n"]), str(e["ties"]), str(e["failed"])) for name, e in parts.items())
    chosen, rejected = (percent(checked[side]["value"]) for side in ("score_chosen", "score_rejected"))
    notes = [
        "How often the chosen answer is graded above the rejected one, in % with a 95 % interval clustered by user;",
        f"a tie counts half (as a loss: {percent(checked['strict_accuracy']['value'])}), failures are left out.",
        f"Mean score: chosen {chosen}, rejected {rejected}, gap {interval(checked['gap'], sign=True)}.",
    ]
    human, retest = summary["human"], summary["retest"]
    if human:
        notes.append(
            f"Against human grades, {human['answers']} answers: {_agreement(human)}, Spearman of scores "
            f"{interval(human['spearman'], 2, scale=1)}; {human['failed']} failed."
        )
    if retest and retest["deterministic"]:
        notes.append("Test-retest: this grader is deterministic.")
    elif retest:
        again = f"Graded again under another seed, {retest['answers']} answers"
        notes.append(f"{again}: {_agreement(retest)}; {retest['failed']} failed.")
    notes += [*_failures(checked["failures"]), *_grader_trust(summary)]
    title = f"{summary['grader']['spec']} on {dataset_name(summary['dataset'])}"
    return Table(title, ("rows", "chosen > rejected", "n", "ties", "failed"), rows, tuple(notes))


class Licensed(Run):
    """The result of `prb grade --license JUDGE --human FILE`."""

    @property
    def license(self) -> License:
        return msgspec.convert(self.summary, License)

    def tables(self) -> Sequence[Table]:
        return [license_table(self.license)]


def license_table(license: License) -> Table:
    """The verdict as title; per kind of judgment what it rests on."""
    columns = ("question", "items", "people", "ω", "ρ", "judge = person", "person = person", "inflation")
    rows, notes = [], []
    for q in license.questions:
        scale = 1 if q.scale == "numeric" else 100
        test = (number(q.test.winning_rate, 2), number(q.test.advantage, 2))
        agree = (interval(q.agreement), interval(q.agreement_of_people))
        inflation = interval(q.inflation, 2 if scale == 1 else 1, scale=scale, sign=True)
        rows.append((q.name, str(q.items), str(q.annotators), *test, *agree, inflation))
        means = (interval(e, scale=scale) for e in (q.powered.human, q.powered.tuned))
        note = "{}: mean by people alone {}, with the judge {}".format(q.name, *means)
        needed = f"; ± 5 points need about {q.labels_needed} labeled items" if q.labels_needed else ""
        notes.append(f"{note} (the judge alone: {number(q.powered.judge * scale, 1)}){needed}.")
        if q.person_effect:
            notes.append(f"{q.name}: person effect by people {interval(q.person_effect.tuned)}.")
        for group, estimate_ in q.inflation_by_group.items():
            notes.append(f"{q.name}: inflation for {group} {interval(estimate_, scale=scale, sign=True)}.")
    notes.append(f"ω: share of people over whom the judge wins (ε = {license.epsilon:g}); 0.5 or more passes.")
    return Table(license.sentence(), columns, tuple(rows), tuple(notes))


def _agreement(result: Result) -> str:
    kappa = interval(result["kappa"], 2, scale=1)
    return f"{interval(result['equal'])} % of aspect grades equal, quadratic kappa {kappa}"


def _failures(reasons: Mapping[str, int]) -> Iterator[str]:
    if reasons:
        yield "Failed: " + ", ".join(f"{count} {reason}" for reason, count in reasons.items()) + "."


def _grader_trust(summary: Result) -> Iterator[str]:
    grader = summary["grader"]
    if grader["validity"]:
        yield f"Graded by {grader['spec']}. {grader['validity']}"
    elif "score" in summary:
        yield f"Graded by {grader['spec']}. To validate it: prb grade --validate --grader '{grader['spec']}'"
    if summary["tokens"]:
        yield f"{summary['tokens']:,} tokens, {dollars(summary['cost'])}."


# --- build ---
class BuiltBenchmark(Run):
    """The result of `prb build`; with `dry_run` the summary is the estimate and nothing was written."""

    @property
    def pairs(self) -> Path:
        return self.folder / "pairs.jsonl"

    def tables(self) -> Sequence[Table]:
        return [build_estimate(self.summary)] if "stages" in self.summary else ()


def build_estimate(estimate: Result) -> Table:
    rows = [
        (stage, f"{cost['calls']:,}", f"{cost['tokens_in']:,}", f"{cost['tokens_out']:,}", dollars(cost["usd"]))
        for stage, cost in estimate["stages"].items()
    ]
    rows.append(("total", "", "", "", dollars(estimate["usd"])))
    title = f"{estimate['records']} records, if every reply can be parsed and every pair passes in its first round"
    note = "Pairs that fail a gate are rewritten and cost more."
    return Table(title, ("stage", "calls", "tokens in", "tokens out", "cost"), tuple(rows), (note,))


def build_lines(card: Result) -> list[str]:
    counts = card["counts"]
    paid = f"{sum(cost['calls'] for cost in card['cost'].values()):,} calls, {dollars(card['usd'])}"
    if card["stopped_after"]:
        return [
            f"stopped after stage {card['stopped_after']!r}: {paid}; run the same command without --until to resume"
        ]
    lines = [f"{counts['rows']} rows of {counts['people']} users ({counts['mirror_rows']} mirror rows)"]
    if counts["rejected"]:
        by_gate = ", ".join(f"{gate} {n}" for gate, n in counts["rejected_by_gate"].items())
        lines.append(f"{counts['rejected']} rejected: {by_gate} (reasons in rejects.jsonl)")
    for name, value in card["user_blind_accuracy"].items():
        right = "not measured, too few pairs" if value is None else f"{percent(value)} % right without the user"
        lines.append(f"{name}: {right}")
    lines.append(paid)
    if card["failures"]:
        lines.append(f"failed requests: {count_reasons(card['failures'])}")
    if counts["rejected_by_gate"].get("endpoint"):
        lines.append("some calls failed at the endpoint; run the same command again to retry them")
    return lines


# --- train ---
class TrainedModel(Run):
    """A head or model that `prb train` made."""

    @property
    def spec(self) -> str:
        """What to give to `prb evaluate --model`."""
        return str(self.summary.get("model") or Spec("personal", {"path": str(self.folder)}))


def train_lines(card: Result) -> list[str]:
    fitted, checked = card["fitted_on"], card["validation"]
    lines = [f"{card['method']}: fitted on {fitted['rows']} rows of {fitted['users']} users"]
    if checked:
        gain, control = (number(checked[kind]["value"], scale=100, sign=True) for kind in ("gain", "control"))
        accuracy = interval(checked["by_condition"]["profile"])
        lines.append(
            f"validation, {checked['users']} other users: {accuracy} % right; gain {gain}, control {control} points"
        )
    if card["sweep"]:
        lines.append(f"best in cross-validation: {interval(card['sweep'][0]['accuracy'])} % right on held-out users")
    return lines + [f"{name}: {value}" for name, value in card["report"].items()]


# --- data, models, cache ---
def stats_table(stats: Result, name: str) -> Table:
    return Table(name, ("what", "value"), tuple((what.replace("_", " "), _figure(v)) for what, v in _flat(stats)))


def _flat(stats: Result) -> Iterator[tuple[str, Any]]:
    """Groups of groups become one line per group."""
    for name, value in stats.items():
        if isinstance(value, Mapping) and all(isinstance(v, Mapping) for v in value.values()):
            yield from ((f"{name}: {key}", item) for key, item in value.items())
        elif name == "review":
            yield from _flat(value)
        else:
            yield name, value


def _figure(value: Any) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"min", "median", "max"}:
            return f"{_figure(value['median'])} ({_figure(value['min'])} to {_figure(value['max'])})"
        return ", ".join(f"{key} {_figure(item)}" for key, item in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pair_text(pair: Pair) -> str:
    """A row to read."""
    about = [pair.category, pair.tier, pair.topic, pair.split, f"mirror of {pair.mirror}" if pair.mirror else None]
    sections = {
        "question": [pair.question],
        "chosen": [pair.chosen],
        "rejected": [pair.rejected],
        f"{pair.user}: {len(pair.profile)} posts, oldest first": [f"{post.id}  {post.text}" for post in pair.profile],
        "hidden from reward models": [
            pair.narrative,
            *(f"- {aspect.label}  “{aspect.evidence}”  {aspect.reason}" for aspect in pair.rubric),
        ],
    }
    parts = ["\n".join([f"== {name} ==", *texts]) for name, texts in sections.items()]
    return "\n\n".join(["  ·  ".join(filter(None, [pair.id, *about])), *parts])


def models_tables(models: Sequence[Result], weights: Sequence[Result], known: Sequence[Result]) -> Iterator[Table]:
    yield names_table("Models: name?option=value&… (`prb models list NAME` shows the options)", models)
    weight_rows = tuple((w["name"], f"{w['size_mb']} MB", w["licence"], here(w["name"]), w["what"]) for w in weights)
    yield Table("Weights: prb models pull NAME", ("name", "size", "license", "here", "description"), weight_rows)
    known_rows = tuple((c["name"] + "…", c["runs"], c["tested"] or MISSING) for c in known)
    yield Table("Checkpoints: classifier?path=NAME", ("name", "runs in", "tested on a tiny"), known_rows)


def names_table(title: str, known: Sequence[Result]) -> Table:
    return Table(title, ("name", "description"), tuple((one["name"], one["what"]) for one in known))


def options_table(about: Result, title: str = "") -> Table:
    """The options of a model, dataset or LLM with their defaults."""
    options = [option.partition("=") for option in about["options"] if option != "model" or not title]
    rows = tuple((key, value or "empty" if equals else "required") for key, equals, value in options)
    return Table(title or f"{about['name']}?option=value&…", ("option", "default"), rows, (about["about"],))


def cache_table(path: Path, size: int, entries: Mapping[str, int]) -> Table:
    title = f"{path}: {sum(entries.values()):,} entries, {number(size, scale=1e-6)} MB"
    return Table(title, ("model", "entries"), tuple((model, f"{n:,}") for model, n in entries.items()))
