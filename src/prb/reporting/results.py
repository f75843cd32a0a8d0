"""What verbs return: a folder, the content of its result file, and the tables and lines that the command prints.

`prb evaluate` and `prb compare` have their own file, `evaluation_results.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from shlex import quote
from typing import ClassVar, TypeVar

from msgspec import convert

from prb.downstream.bon import BonSummary
from prb.downstream.columns import PLURAL
from prb.downstream.correlate import CorrelationSummary, ModelSet
from prb.downstream.ppo import CURVES, PpoSummary, read_curves
from prb.evaluation.audit import AuditSummary, VoteShares
from prb.grading.license import LICENSE, License
from prb.grading.run import ScoreSummary, ValidationSummary, read_summary
from prb.registry import Spec
from prb.reporting.format import (
    MISSING,
    Table,
    bounds,
    dollars,
    html_table,
    interval,
    number,
    p_equals,
    p_value,
    percent,
    plain,
    plural,
    points,
    stars,
)
from prb.runs import SUMMARY, Finished
from prb.stats.paired import LEVEL
from prb.study.agreement import AgreementSummary, verdict
from prb.work import Planned, count_reasons

T = TypeVar("T")
REPLY_TOKENS = 200
"""What a dry run takes a reply of an LLM to have."""
MEASURES = {
    "spearman": "Spearman's ρ",
    "kendall": "Kendall's τ-b",
    "weighted_kendall": "weighted τ",
    "pearson": "Pearson's r",
    "ndcg": "NDCG",
    "rbo": "RBO",
    "regret": "top-1 regret",
}


class Run(Finished):
    """A finished job: the folder it wrote and the content of its result file."""

    kind: ClassVar[str] = ""
    """What makes it: the verb in `config.json`, or the name of what its file holds."""
    file: ClassVar[str] = SUMMARY
    """The result file in the folder."""
    keys: ClassVar[frozenset[str]] = frozenset()
    """By which a result file is recognized that is given without its folder."""
    label: ClassVar[str] = "run"
    """Of the folder, in the last line; nothing is said of it without one."""

    def tables(self) -> Sequence[Table]:
        """What the command prints, the answer first."""
        return []

    def numbers(self) -> Sequence[Table]:
        """What reports show: tables without an answer in words; of a verb that prints lines, those."""
        lines = tuple((line,) for line in self.lines())
        return self.tables() or ([Table(self.kind, ("result",), lines)] if lines else [])

    def lines(self) -> list[str]:
        """What the command prints below its tables."""
        return []

    def footer(self) -> str:
        """Where the result is, and what to do next."""
        return f"{self.label}: {self.folder}" if self.label else ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}>"

    def __str__(self) -> str:
        return "\n\n".join(map(plain, self.tables())) or repr(self)

    def _repr_html_(self) -> str:
        return "\n".join(map(html_table, self.tables())) or f"<p>{escape(repr(self))}</p>"


def decoded(kind: type[T]) -> cached_property[T]:
    """The summary of a run, typed."""
    return cached_property(lambda run: convert(run.summary, kind))


def significant(p: float | None) -> bool:
    """Of a p after Holm's correction; `None` where nothing could be tested."""
    return p is not None and p < LEVEL


# --- dry runs ---
class DryRun(Run):
    """What a run would ask, with `dry_run`; nothing was asked, and nothing is in its folder yet."""

    label = ""

    @classmethod
    def of(cls, folder: Path, planned: Mapping[str, Planned], specs: Mapping[str, str]) -> DryRun:
        """`specs` by the name of a model."""
        rows = []
        for name, calls in planned.items():
            prices = dict(re.findall(r"\b(usd_in|usd_out)=([\d.]+)", specs.get(name, name)))
            tokens, usd = calls.characters // 4, None
            if prices:
                read, written = float(prices.get("usd_in", 0)), float(prices.get("usd_out", 0))
                usd = (tokens * read + calls.owed * REPLY_TOKENS * written) / 1e6
            row = {"model": name, "calls": len(calls.keys), "owed": calls.owed, "tokens": tokens, "usd": usd}
            rows.append(row)
        return cls(folder, {"dry_run": rows})

    def tables(self) -> Sequence[Table]:
        rows = []
        for row in self.summary["dry_run"]:
            counts = (row["calls"], row["calls"] - row["owed"], row["owed"], row["tokens"])
            rows.append((row["model"], *(f"{count:,}" for count in counts), dollars(row["usd"])))
        notes = (
            "Nothing was asked. Tokens to read are estimated as characters / 4, without a judge's instructions.",
            f"Cost: usd_in for what is read, usd_out for {REPLY_TOKENS} tokens per reply, where the spec has prices.",
        )
        columns = ("model", "calls", "known", "to ask", "tokens", "cost")
        return [Table("Dry run", columns, tuple(rows), notes)]


# --- grade ---
class Grading(Run):
    """The result of `prb grade`: the mean score; of a validation, how often the grader prefers the chosen answer."""

    kind = "grade"

    @cached_property
    def typed(self) -> ScoreSummary | ValidationSummary:
        return read_summary(self.summary)

    def tables(self) -> Sequence[Table]:
        result, grader = self.typed, self.typed.grader
        if isinstance(result, ValidationSummary):
            table, failures = _validation_table(result), result.validation.failures
        else:
            score, failures = result.score, result.failures
            counts = (score.n, result.answers.distinct, score.failed)
            notes = ["Mean score in % of the rubric (Σ grades / 2n) with a 95 % interval clustered by user."]
            row = (grader.spec, interval(score), *map(str, counts))
            columns = ("grader", "score", "graded", "distinct", "failed")
            table = Table(result.dataset.label, columns, (row,), tuple(notes))
        notes = list(table.notes)
        if failures:
            notes.append("Failed: " + ", ".join(f"{count} {reason}" for reason, count in failures.items()) + ".")
        if grader.validity:
            notes.append(f"Graded by {grader.spec}. {grader.validity}")
        elif isinstance(result, ScoreSummary):
            notes.append(f"Graded by {grader.spec}. To validate it: prb grade --validate --grader '{grader.spec}'")
        if result.tokens:
            notes.append(f"{result.tokens:,} tokens, {dollars(result.cost)}.")
        return [table._replace(notes=tuple(notes))]


def _validation_table(result: ValidationSummary) -> Table:
    checked, human = result.validation, result.human
    tiers = {f"tier {name}": estimate for name, estimate in checked.by_tier.items()}
    parts = {"all": checked.accuracy, **checked.by_category, **tiers}
    rows = [(name, interval(e), str(e.n), str(e.ties), str(e.failed)) for name, e in parts.items()]
    means = f"chosen {percent(checked.score_chosen.value)}, rejected {percent(checked.score_rejected.value)}"
    notes = [
        "How often the chosen answer is graded above the rejected one, in % with a 95 % interval clustered by user;",
        f"a tie counts half (as a loss: {percent(checked.strict_accuracy.value)}), failures are left out.",
        f"Mean score: {means}, gap {interval(checked.gap, sign=True)}.",
    ]
    if human:
        kappa, spearman = (interval(coefficient, 2, scale=1) for coefficient in (human.kappa, human.spearman))
        notes.append(
            f"Against human grades, {human.answers} answers: {interval(human.equal)} % of aspect grades equal, "
            f"quadratic kappa {kappa}, Spearman of scores {spearman}; {human.failed} failed."
        )
    columns = ("rows", "chosen > rejected", "n", "ties", "failed")
    return Table(f"{result.grader.spec} on {result.dataset.label}", columns, tuple(rows), tuple(notes))


class Licensed(Run):
    """The result of `prb grade --license JUDGE --human FILE`."""

    kind = "license"
    file = LICENSE
    keys = frozenset({"judge", "human", "epsilon", "questions"})
    license = decoded(License)

    def tables(self) -> Sequence[Table]:
        """The verdict as title; per kind of judgment what it rests on."""
        columns = ("question", "items", "people", "ω", "ρ", "judge = person", "person = person", "inflation")
        rows, notes = [], []
        for q in self.license.questions:
            scale = 1 if q.scale == "numeric" else 100
            test = (number(q.test.winning_rate, 2), number(q.test.advantage, 2))
            agree = (interval(q.agreement), interval(q.agreement_of_people))
            inflation = interval(q.inflation, 2 if scale == 1 else 1, scale=scale, sign=True)
            rows.append((q.name, str(q.items), str(q.annotators), *test, *agree, inflation))
            people, judge = (interval(e, scale=scale) for e in (q.powered.human, q.powered.tuned))
            needed = f"; ± 5 points need about {q.labels_needed} labeled items" if q.labels_needed else ""
            alone = f"(the judge alone: {number(q.powered.judge * scale, 1)}){needed}"
            notes.append(f"{q.name}: mean by people alone {people}, with the judge {judge} {alone}.")
        epsilon = f"{self.license.epsilon:g}"
        notes.append(f"ω: share of people over whom the judge wins (ε = {epsilon}); 0.5 or more passes.")
        return [Table(self.license.sentence(), columns, tuple(rows), tuple(notes))]


# --- build ---
class BuiltBenchmark(Run):
    """The result of `prb build`; with `dry_run` the summary is the estimate and nothing was written."""

    kind = "build"
    file = "card.json"

    @property
    def is_estimate(self) -> bool:
        return "stages" in self.summary

    def tables(self) -> Sequence[Table]:
        if not self.is_estimate:
            return []
        rows = []
        for stage, cost in self.summary["stages"].items():
            counts = [f"{cost[name]:,}" for name in ("calls", "tokens_in", "tokens_out")]
            rows.append((stage, *counts, dollars(cost["usd"])))
        total = self.summary["usd"]
        rows.append(("total", "", "", "", dollars(total)))
        records = plural(self.summary["records"], "record")
        title = f"{records}, if every reply can be parsed and every pair passes in its first round"
        notes = ["Pairs that fail a gate are rewritten and cost more."]
        if total is None:
            notes.append("For the cost, add prices to the LLM: usd_in=…&usd_out=…, in dollars per million tokens.")
        return [Table(title, ("stage", "calls", "tokens in", "tokens out", "cost"), tuple(rows), tuple(notes))]

    def lines(self) -> list[str]:
        if self.is_estimate:
            return []
        card, counts = self.summary, self.summary["counts"]
        size = f"{plural(counts['rows'], 'row')} of {plural(counts['people'], 'user')}"
        lines = [f"{size} ({plural(counts['mirror_rows'], 'mirror row')})"]
        if counts["rejected"]:
            by_gate = ", ".join(f"{gate} {n}" for gate, n in counts["rejected_by_gate"].items())
            lines.append(f"{counts['rejected']} rejected: {by_gate} (reasons in rejects.jsonl)")
        for name, value in card["user_blind_accuracy"].items():
            right = "not measured, too few pairs" if value is None else f"{percent(value)} % right without the user"
            lines.append(f"{name}: {right}")
        lines.append(f"{sum(cost['calls'] for cost in card['cost'].values()):,} calls, {dollars(card['usd'])}")
        if card["failures"]:
            lines.append(f"failed requests: {count_reasons(card['failures'])}")
        if counts["rejected_by_gate"].get("endpoint"):
            lines.append("some calls failed at the endpoint; run the same command again to retry them")
        return lines

    def footer(self) -> str:
        if self.is_estimate:
            return ""
        rows, pairs = self.summary["counts"]["rows"], self.folder / "pairs.jsonl"
        return f"build: {self.folder}" + (f"   try: prb evaluate --dataset {pairs}" if rows else "")


# --- train ---
@dataclass(frozen=True, repr=False)
class TrainedModel(Run):
    """A head or model that `prb train` made."""

    kind = "train"
    file = "card.json"

    dataset: str = ""
    """What it was trained on, as it was given."""

    @property
    def spec(self) -> str:
        """What to give to `prb evaluate --model`."""
        return str(self.summary.get("model") or Spec("personal", {"path": str(self.folder)}))

    def lines(self) -> list[str]:
        card = self.summary
        if "fitted_on" not in card:  # a whole model
            return [f"model: {card['model']}"]
        fitted, checked = card["fitted_on"], card["validation"]
        size = f"{plural(fitted['rows'], 'row')} of {plural(fitted['users'], 'user')}"
        lines = [f"{card['method']}: fitted on {size}"]
        if checked:
            gain, control = (number(checked[kind]["value"], scale=100, sign=True) for kind in ("gain", "control"))
            right = f"{interval(checked['by_condition']['profile'])} % right"
            others = f"validation, {plural(checked['users'], 'other user')}"
            lines.append(f"{others}: {right}; gain {gain}, control {control} points")
        if card["sweep"]:
            best = interval(card["sweep"][0]["accuracy"])
            lines.append(f"best in cross-validation: {best} % right on held-out users")
        return lines + [f"{name}: {value}" for name, value in card["report"].items()]

    def footer(self) -> str:
        data = Spec.parse(self.dataset)
        unseen = data.name if "split" in data.options else self.dataset  # not the split that it was trained on
        return f"evaluate: prb evaluate --dataset {quote(unseen)} --model random --model {quote(self.spec)}"


# --- audit ---
class Audit(Run):
    """The result of `prb audit`."""

    kind = "audit"
    file = "audit.json"
    label = "written"
    keys = frozenset({"floors", "giveaways", "verdict"})
    typed = decoded(AuditSummary)

    def tables(self) -> Sequence[Table]:
        if not (tables := self.numbers()):
            return []
        first, *others = tables
        return [first._replace(title=self.typed.verdict, lead=(first.title,)), *others]

    def lines(self) -> list[str]:
        """If there is nothing to measure, why."""
        return [] if self.typed.floors or self.typed.votes else [self.typed.verdict]

    def numbers(self) -> Sequence[Table]:
        result = self.typed
        tables = [_vote_table(result.votes)] if result.votes else []
        if not result.floors:
            return tables
        data, blind, giveaways = result.dataset, result.blind, result.giveaways
        size = f"{data.rows} pairs, {data.clusters} clusters, {data.mirror_rows} mirror rows"
        rows = tuple((name, interval(estimate), str(estimate.failed)) for name, estimate in result.estimates.items())
        notes = ["Accuracy in % with a 95 % interval by cluster; a tie counts half, failures are left out."]
        if blind:
            notes.append(
                f"Learner: linear Bradley-Terry on {blind.features}, out of fold; {blind.groups} groups kept whole "
                f"(by {blind.grouped_by}, near-duplicate questions together)."
            )
        title = f"{data.label}: {size}"
        tables.append(Table(title, ("scorer", "accuracy", "failed"), rows, tuple(notes)))
        length, sees = result.length, "no: a history may decide every row"
        assert length is not None  # an audit of pairs measures it
        if data.restraint_rows:
            sees = f"yes: a history must not decide {data.restraint_rows} of {data.rows} rows"
        longer = f"{interval(length.chosen_longer)} %; median ratio {number(length.median_ratio, 2)}"
        findings = [
            ("chosen is the longer answer", longer),
            ("answers within 10 % of each other's length", f"{percent(length.within_a_tenth, 0)} %"),
            ("can see restraint (over-personalization)", sees),
        ]
        if result.topics:
            closer = interval(result.topics.difference, scale=1, digits=3, sign=True)
            findings.append(("cosine of question and own posts, minus a donor's", closer))
        tables.append(Table("What to look at", ("finding", "result"), tuple(findings)))
        if giveaways.words:
            words = tuple((w.word, str(w.chosen), str(w.rejected), p_value(w.p)) for w in giveaways.words)
            title = f"Giveaway words: {giveaways.more_than_chance} of {giveaways.looked_at} tested"
            note = "Pairs in which only one answer has the word; sign test by cluster, Holm over all words tested."
            tables.append(Table(title, ("word", "only chosen", "only rejected", "p"), words, (note,)))
        return tables


def _vote_table(votes: Sequence[VoteShares]) -> Table:
    """Parts of the variance of votes, by table."""
    rows = []
    for table in votes:
        counts = (str(table.votes), str(table.users), str(table.items))
        shares = [interval(share, digits=0) for share in table.parts.values()]
        rows.append((table.name, *counts, *shares, percent(table.individual.detectable)))
    notes = [
        "Parts of the variance in % with a 95 % interval over users and items. Shared: what all think of an item; "
        "leaning: how much a user agrees in general; group: what their group thinks of an item; "
        "detectable: the smallest individual share that is shown in 80 % of repetitions."
    ]
    if any(not table.repeated for table in votes):
        notes.append("Where nobody voted twice, individual is a lower bound: what a user's other votes predict.")
    if several := {table.attribute or "" for table in votes if table.attributes > 1}:
        notes.append(f"Group: the attribute that explains most ({', '.join(sorted(several))}), which flatters it.")
    columns = ("votes of", "votes", "users", "items", *votes[0].parts, "detectable")
    return Table("Whose votes they are", columns, tuple(rows), tuple(notes))


# --- bon ---
class BestOfN(Run):
    """The result of `prb bon`."""

    kind = "bon"
    typed = decoded(BonSummary)

    def tables(self) -> Sequence[Table]:
        """With the answer as title: does picking by a model gain over a random pick? By sign flips over clusters, after
        Holm."""
        bon = self.typed
        ends = {result.model: result.headroom[-1] for result in bon.results}
        shown = [row for row in bon.over_chance if significant(row.p_holm)]
        gaining = [row.model_a for row in shown if (row.value or 0) > 0]
        losing = [row.model_a for row in shown if (row.value or 0) < 0]
        if not gaining:
            first = f"Best of {bon.ks[-1]}: no reward model is shown to pick better answers than chance"
        else:
            best = max(gaining, key=lambda model: ends[model].value or 0)
            others = len(gaining) - 1
            more = f"; so {'does' if others == 1 else 'do'} {others} more" if others else ""
            share = f"{percent(ends[best].value)} % of what is possible"
            first = f"Best of {bon.ks[-1]}: {best} picks better answers than chance, {share}{more}"
        answer = f"{first}; {', '.join(losing)} worse." if losing else f"{first}."
        curves, *contrasts = self.numbers()
        return [curves._replace(title=answer, lead=(curves.title,)), *contrasts]

    def numbers(self) -> Sequence[Table]:
        """The curves and the paired differences; under both, how far the grader can be trusted."""
        bon = self.typed
        queries, samples, last = bon.queries, bon.samples, f"best of {bon.ks[-1]}"
        rows = []
        for result in bon.results:
            bend = result.bend
            peak = MISSING if bend is None else f"{bend.peak}, then down" if bend.down else str(bend.peak)
            ends = (interval(result.headroom[-1]), peak, str(result.curve[-1].failed))
            rows.append((result.model, *map(interval, result.curve), *ends))
        for name, curve, share in (("random", bon.random, "0"), ("oracle", bon.oracle, "100")):
            rows.append((f"({name} pick)", *map(interval, curve), share, MISSING, MISSING))
        notes = [
            "Expected graded score of best-of-k in % of the rubric, exact over all N samples; 95 % intervals by "
            "cluster.",
            f"headroom: share of the oracle's gain over a random pick at k = {bon.ks[-1]}. peak: the k with the "
            "highest score; “then down” where the fall from there to the end is significant (corrected sign-flip "
            "p < .05).",
            f"{samples.drawn} samples, {samples.failed} failed, {samples.truncated} stopped by --max-tokens; "
            f"{number(samples.distinct_of_n)} of {bon.n} distinct. Failed queries are left out, never scored.",
        ]
        if queries.failures:
            notes.append(f"Failed in sampling or grading: {count_reasons(queries.failures)}.")
        notes += [f"Failed, {r.model}: {count_reasons(r.failures)}." for r in bon.results if r.failures]
        failed = {"sampling": queries.sampling_failed, "grading": queries.grading_failed}
        left_out = "".join(f"; {count} left out: {stage} failed" for stage, count in failed.items() if count)
        size = f"{queries.rows} queries, {plural(queries.clusters, 'cluster')}, N = {bon.n}"
        title = f"{bon.policy.spec} on {bon.dataset.label}, condition {bon.condition}: {size}{left_out}"
        columns = ("model", *(f"best of {k}" for k in bon.ks), "headroom", "peak", "failed")
        tables = [Table(title, columns, tuple(rows), (*notes, bon.grader.trust))]
        if bon.over_chance:
            contrasts = []
            for row in (*bon.over_chance, *bon.contrasts):
                test = (points(row), bounds(row, sign=True), p_value(row.p), p_value(row.p_holm), str(row.n))
                contrasts.append((f"{row.model_a} − {row.model_b}", *test))
            note = (
                "Points, paired by query; sign-flip p over clusters, and the 95 % interval that inverts it. Holm: over "
                "the comparisons with a random pick, and over those between models."
            )
            columns = ("models", "difference", "95 %", "p", "p (Holm)", "queries")
            tables.append(Table(f"{last.capitalize()}, paired", columns, tuple(contrasts), (note, bon.grader.trust)))
        return tables


# --- ppo ---
@dataclass(frozen=True, repr=False)
class Ppo(Run):
    """The result of `prb ppo`."""

    kind = "ppo"

    message: str = ""
    """What to show if verl trained, which writes no summary."""
    typed = decoded(PpoSummary)

    @cached_property
    def curves(self) -> list[dict[str, float]]:
        """One row per step."""
        return read_curves(self.folder / CURVES, up_to=self.typed.train.steps)

    def tables(self) -> Sequence[Table]:
        """Held-out prompts before and after training; nothing if none were held out."""
        if self.message or not self.typed.held_out.prompts:
            return []
        held = self.typed.held_out
        rows = []
        for name, change in (("reward", held.reward), ("grade", held.grade)):
            if change:
                by = change.difference
                values = (number(change.before.value, 3), number(change.after.value, 3), number(by.value, 3, sign=True))
                rows.append((name, *values, bounds(by, 3, scale=1, sign=True), p_value(by.p), str(by.dropped)))
        steps = f"before and after {self.typed.train.steps} steps"
        title = f"{held.prompts} held-out prompts, one answer each, {steps}"
        return [Table(title, ("measure", "before", "after", "difference", "95 %", "p", "failed"), tuple(rows))]

    def lines(self) -> list[str]:
        if self.message:
            return []
        graded = [self.typed.grader.trust] if self.typed.grader else []
        stopped = self.typed.train.stopped
        return graded + ([f"Stopped early: {stopped}"] if stopped else [])

    def footer(self) -> str:
        paths = f"curves: {self.folder / CURVES}   policy: transformers/{self.folder / 'policy'}"
        return self.message or f"{super().footer()}   {paths}"


# --- correlate ---
class Correlation(Run):
    """The result of `prb correlate`."""

    kind = "correlation"
    file = "correlation.json"
    keys = frozenset({"sets", "bench", "downstream"})
    typed = decoded(CorrelationSummary)

    def tables(self) -> Sequence[Table]:
        return list(correlation_tables(self.typed))

    def lines(self) -> list[str]:
        return correlation_sentences(self.typed)

    def footer(self) -> str:
        return f"written: {self.folder}" if self.folder != Path() else ""


def correlation_tables(result: CorrelationSummary) -> Iterator[Table]:
    left_out = f" ({len(result.left_out)} with missing scores left out)" if result.left_out else ""
    units = PLURAL[result.unit]
    notes = (
        "p: permutation test (≈: sampled), two-sided for correlations, one-sided for NDCG, RBO and regret. Holm over "
        "all columns of a measure; stars: p < .05, .01, .001 after it. Ties share ranks.",
        f"over {units}: 95 % of resamples of the {units} (10 or more). measured again: the same {units}, their scores "
        "redrawn within their own uncertainty."
        + (" without one: the range if any one family is left out, with the highest p." * (result.unit == "family")),
    )
    for part in result.sets:
        if part.problem:
            continue
        rows: list[tuple[str, ...]] = []
        for cell in part.correlations:
            ends = [f"[{number(e[0], 2)}, {number(e[1], 2)}]" if e else MISSING for e in (cell.interval, cell.noise)]
            value = number(cell.value, 3) + stars(cell.p_holm)
            p = p_value(cell.p) if cell.exact else f"≈ {p_value(cell.p)}"
            without = [MISSING] if result.unit == "family" else []
            if left := cell.leave_one_out:
                highest = p_value(left.highest_p).removeprefix("<")
                without = [f"[{number(left.low, 2)}, {number(left.high, 2)}], p ≤ {highest}"]
            names = (cell.bench, cell.downstream, MEASURES[cell.measure])
            rows.append((*names, value, *ends, p, p_value(cell.p_holm), *without))
        columns = ("benchmark", "downstream", "measure", "value", f"over {units}", "measured again", "p", "p (Holm)")
        last = ["without one"] if result.unit == "family" else []
        yield Table(f"{part.set.capitalize()}: {part.n}{left_out}", (*columns, *last), tuple(rows), notes)
        if part.comparisons:
            rows = []
            for row in part.comparisons:
                value = number(row.difference, 3, sign=True) + stars(row.p_holm)
                names = (f"{row.first} − {row.second}", row.downstream, MEASURES[row.measure])
                rows.append((*names, value, row.test, p_value(row.p), p_value(row.p_holm)))
            headings = ("benchmarks", "downstream", "measure", "difference", "test", "p", "p (Holm)")
            swap = f"Swap test: each {result.unit}'s two ranks change places."
            note = f"{swap} Pearson: Williams' test, with 20 or more {units}."
            yield Table("Two benchmarks against the same downstream", headings, tuple(rows), (note,))


def correlation_sentences(result: CorrelationSummary) -> list[str]:
    """What the numbers allow to be said, set by set, and how far the grades behind them can be trusted."""
    sentences = []
    for part in result.sets:
        prefix = f"{part.set.capitalize()}: " if len(result.sets) > 1 else ""
        sentences += [prefix + sentence for sentence in set_sentences(part, PLURAL[result.unit])]
    return sentences + [f"{column.name}: {column.note}" for column in result.downstream if column.note]


def set_sentences(part: ModelSet, units: str) -> Iterator[str]:
    """Of one set of models, by the first measure."""
    if part.problem:
        yield f"{part.problem}."
        return
    key, size = part.correlations[0].measure, f"With {part.n} {units}"
    cells, measure = [cell for cell in part.correlations if cell.measure == key], MEASURES[key]
    corrected = f" corrected for {len(cells)} tests" if len(cells) > 1 else ""
    for cell in cells:
        how = "predicts", "better than chance"
        if not significant(cell.p_holm):
            how = "does not predict", "significantly better than chance"
        elif key != "regret" and (cell.value or 0) < 0:
            how = "predicts", "worse than chance: it reverses their order"
        evidence = f"{measure} {number(cell.value, 2)}, {p_equals(cell.p_holm)}{corrected}"
        yield f"{size}, {cell.bench} {how[0]} {cell.downstream} {how[1]} ({evidence})."
        if left := cell.leave_one_out:
            ends = f"{number(left.low, 2)} to {number(left.high, 2)}"
            value = "undefined" if left.value is None else number(left.value, 2)
            yield (
                f"Without any one family, {measure} of {cell.bench} and {cell.downstream} is {ends}, p at most "
                f"{p_value(left.highest_p).removeprefix('<')}; it changes most without {left.family}: {value} "
                f"({p_equals(left.p)})."
            )
    for row in (row for row in part.comparisons if row.measure == key):
        first_better = (row.difference > 0) != (key == "regret")  # a lower regret is better
        better, worse = (row.first, row.second) if first_better else (row.second, row.first)
        how = ("predicts", "better") if significant(row.p_holm) else ("does not predict", "significantly better")
        evidence = f"{measure} differs by {number(abs(row.difference), 2)}, {p_equals(row.p_holm)}"
        yield f"{size}, {better} {how[0]} {row.downstream} {how[1]} than {worse} ({evidence})."
    power = part.power
    assert power is not None
    needed = "more than 512" if power.needed is None else str(power.needed)
    yield (
        f"A true ρ of {power.rho:g} would be detected in {percent(power.power, 0)} % of studies with "
        f"{part.n} {units}; {needed} {units} would be needed for {percent(power.wanted, 0)} %."
    )


# --- study ---
class Study(Run):
    """The result of `prb study agree`."""

    kind = "agreement"
    file = "agreement.json"
    keys = frozenset({"agreement", "preference", "verdicts"})
    typed = decoded(AgreementSummary)

    def lines(self) -> list[str]:
        return verdict(self.typed)
