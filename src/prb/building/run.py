"""The pipeline: records → rubrics → couples → opposite wishes → answers → gates → a set that needs the user.

It knows nothing of resuming: every call goes through the ledger, so a build that was stopped runs again from the top
and finds its calls in the log.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from typing import Any

from prb import __version__
from prb.building.calls import Ledger, Usage, estimate_cost, make_llms
from prb.building.config import GATES, PROMPTS, ROLES, ROUNDS, STAGES, BuildConfig, Role, Stage, gate_limits
from prb.building.gates import (
    BlindResult,
    BuildContext,
    Check,
    StageReached,
    find_duplicates,
    leaking_posts,
    measure_blind,
    record_gate,
    run_round,
)
from prb.building.stages import (
    SIDES,
    AnswerPair,
    PairTask,
    Partner,
    Reject,
    Rubric,
    UserRecord,
    judge_couples,
    propose_couples,
    read_records,
    wishes,
    write_opposites,
    write_rubrics,
)
from prb.data.convert import convert
from prb.data.publish import HUB, CardText, write_folder
from prb.data.source import MemorySource
from prb.failures import refuse_failures, share_problem, unanswered
from prb.llm import LLM, check_llm
from prb.progress import SILENT, Progress
from prb.prompts import load
from prb.runs import Finished, RunFolder, write_json, write_lines
from prb.text.encoders import ENCODERS
from prb.types import Failure
from prb.work import open_replies

PAIRS, REJECTS, CHECKS, CARD = "pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json"


def build(
    config: BuildConfig | None = None,
    *,
    llms: Mapping[Role, LLM] | None = None,
    progress: Progress = SILENT,
    **settings: Any,
) -> Finished:
    """Run or resume; a dry run asks nobody and returns an estimate. `llms` takes the place of the specs, by role."""
    config = BuildConfig.of(config, settings)
    records, rejects = read_records(config.input, skip_bad=config.skip_bad)
    records = records[: config.limit]
    if config.dry_run:
        if not llms:
            for role in ROLES.values():
                check_llm(config.spec_of(role))
        limits = gate_limits(config.gate)["input"]
        usable = [record for record in records if not record_gate(record, **limits)]
        return Finished(config.out, asdict(estimate_cost(config, usable)))
    given, llms = bool(llms), llms or make_llms(config)
    if any(config.masks(llm) for llm in llms.values()):
        records = [record.masked() for record in records]
    # a folder belongs to one input; all else may change, since replies are looked up by content
    identity = {"build": {"input": config.input}}
    with (
        RunFolder(config.out, identity, fresh=config.fresh),
        open_replies(config.out, progress, cache=config.cache) as replies,
    ):
        ledger = Ledger(config=config, llms=llms, replies=replies, given=given, progress=progress)
        return Finished(config.out, asdict(Pipeline(BuildContext(ledger), records, rejects).run()))


def check_failures(card: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of the requests failed."""
    failures, total = card["failures"], card["counts"]["requests"]
    refuse_failures([share_problem("requests", sum(failures.values()), total, failures, max_failed)], max_failed)


class Pipeline:
    """What is known so far, and the steps that add to it."""

    def __init__(self, context: BuildContext, records: list[UserRecord], rejects: list[Reject]) -> None:
        self.context, self.ledger, self.config = context, context.ledger, context.config
        self.total = len(records) + len(rejects)
        self.records, self.rejects = records, rejects
        self.rubrics: dict[str, Rubric] = {}
        self.verified: dict[str, AnswerPair] = {}
        self.blind: list[BlindResult] = []
        self.posts_left_out = 0
        self.stopped_after: Stage | None = None

    def run(self) -> Card:
        try:
            self._admit()
            self._write_rubrics()
            self._run_rounds(self._make_tasks())
        except StageReached:
            self.stopped_after = self.config.until
        return self._write()

    def _check(self, record: UserRecord, gate: str, reason: str | None) -> bool:
        """Check a record; one that fails is rejected."""
        passed = self.context.check(record.id, 0, "record", gate, reason)
        if not passed:
            self.rejects.append(Reject(record.id, gate, str(reason)))
        return passed

    def _fail(self, record: UserRecord, gate: str, failure: Failure) -> None:
        check = self.context.fail(record.id, 0, "record", gate, failure)
        self.rejects.append(Reject(record.id, check.gate, str(failure)))

    def _admit(self) -> None:
        limits = self.context.limits
        records = [r for r in self.records if self._check(r, "input", record_gate(r, **limits["input"]))]
        first: dict[int, int] = {}
        if "duplicate" in limits:
            first = find_duplicates(records, ENCODERS.make("static"), limits["duplicate"]["cosine"])
        self.records = [
            record
            for n, record in enumerate(records)
            if self._check(record, "duplicate", f"duplicate of {records[first[n]].id!r}" if n in first else None)
        ]

    def _write_rubrics(self) -> None:
        """Rubrics of the input are kept. Posts that repeat the hidden part word for word leave the profile."""
        todo = [record for record in self.records if not record.rubric]
        written = write_rubrics(self.ledger.llm("rubric"), todo, self.ledger.sampling("rubric"))
        rubrics = {record.id: rubric for record, rubric in zip(todo, written, strict=True)}
        kept = []
        for record in self.records:
            rubric = record.rubric or rubrics[record.id]
            if isinstance(rubric, Failure):
                self._fail(record, "rubric", rubric)
                continue
            self._check(record, "rubric", None)
            self.rubrics[record.id] = rubric
            leaks = leaking_posts(record, rubric)
            self.posts_left_out += len(leaks)
            clean = replace(record, posts=tuple(post for post in record.posts if post not in leaks))
            if not leaks or self._check(clean, "input", record_gate(clean, **self.context.limits["input"])):
                kept.append(clean)
        self.records = kept
        self.context.finish("rubric")

    def _make_tasks(self) -> list[PairTask]:
        """Confirmed couples first, then all other users on their own."""
        couples = self._couple() if self.config.mirror else []
        self.context.finish("couple")
        taken = {record.id for task in couples for record, _ in task.users}
        alone = self._oppose([record for record in self.records if record.id not in taken])
        self.context.finish("negative")
        return [*couples, *alone]

    def _couple(self) -> list[PairTask]:
        proposed = propose_couples(self.records, ENCODERS.make("static"), self.context.limits["couple"]["cosine"])
        couples = [(Partner(a, self.rubrics[a.id]), Partner(b, self.rubrics[b.id])) for a, b in proposed]
        verdicts = judge_couples(self.ledger.llm("couple"), couples, self.ledger.sampling("couple"))
        tasks = []
        for (first, second), verdict in zip(couples, verdicts, strict=True):
            if isinstance(verdict, Failure) and unanswered(verdict):  # alone they would cost, and be couples next time
                for record in (first.record, second.record):
                    self._fail(record, "couple", verdict)
                    self.records.remove(record)
                continue
            reason = None if verdict == "conflict" else str(verdict)
            if self.context.check(first.record.id, 0, f"with {second.record.id}", "couple", reason):
                tasks.append(
                    PairTask(record=first.record, rubric=first.rubric, against=wishes(second.rubric), partner=second)
                )
        return tasks

    def _oppose(self, records: Sequence[UserRecord]) -> list[PairTask]:
        """Tasks of users alone, against opposite wishes."""
        rubrics = [self.rubrics[record.id] for record in records]
        opposites: list[tuple[str, ...] | Failure] = [()] * len(records)
        if self.config.mode == "oppose":
            llm, sampling = self.ledger.llm("negative"), self.ledger.sampling("negative")
            opposites = write_opposites(llm, records, rubrics, sampling)
        tasks = []
        for record, rubric, against in zip(records, rubrics, opposites, strict=True):
            if isinstance(against, Failure):
                self._fail(record, "negative", against)
                continue
            if self.config.mode == "oppose":
                self._check(record, "negative", None)
            tasks.append(PairTask(record=record, rubric=rubric, against=against))
        return tasks

    def _run_rounds(self, tasks: Sequence[PairTask]) -> None:
        """Write and verify; up to `ROUNDS` times, rewrite what failed or what can be predicted without the user."""
        for round in range(1, ROUNDS + 1):
            results = run_round(self.context, tasks, round)
            self.verified |= {id_: result for id_, result in results.items() if isinstance(result, AnswerPair)}
            failed = [task for task in tasks if task.id not in self.verified]
            predictable = self._find_predictable(round)
            if round == ROUNDS:
                for task in failed:
                    reject = results[task.id]
                    assert isinstance(reject, Reject)
                    self.rejects += [reject._replace(record=record.id) for record, _ in task.users]
                while predictable:  # what remains is another set, so it is measured again
                    self.rejects += predictable.values()
                    for id_ in predictable:
                        del self.verified[id_]
                    predictable = self._find_predictable(round)
                return
            # a couple for whom no answers were found continues as two users
            alone = [task for task in failed if task.partner is None]
            separated = [record for task in failed if task.partner for record, _ in task.users]
            rewritten = [self.verified.pop(id_).task for id_ in predictable]
            tasks = [*alone, *self._oppose(separated), *rewritten]
            if not tasks:
                return

    def _find_predictable(self, round: int) -> dict[str, Reject]:
        """Pairs that must go for the set to be within the blind limit, and those that could not be judged."""
        pairs = list(self.verified.values())
        self.blind = measure_blind(self.context, pairs) if pairs else []
        rejects: dict[str, Reject] = {}
        for result in self.blind:
            worst = result.worst(pairs, **self.context.limits[result.name])
            reason = f"predicted without the user; accuracy on the set {result.accuracy(pairs) or 0:.1%}"
            for pair, credit in zip(pairs, result.credits, strict=True):
                id_ = pair.task.id
                if credit is None:
                    last = next(c for c in reversed(self.context.checks) if c.record == id_ and c.reason)
                    gate = "endpoint" if last.gate == "endpoint" else result.name
                    rejects.setdefault(id_, Reject(id_, gate, str(last.reason)))
                elif not self.context.check(id_, round, "pair", result.name, reason if id_ in worst else None):
                    rejects.setdefault(id_, Reject(id_, result.name, reason))
        return rejects

    def _write(self) -> Card:
        """The card, after writing everything; if the build stopped early, only the checks are written."""
        pairs, ledger = list(self.verified.values()), self.ledger
        rows = [row for pair in pairs for row in pair_rows(pair)]
        prompts = sorted({"material", "build_avoid", *PROMPTS.values()})
        blind_gates = [gate for gate in ("blind-judge", "blind-learner") if gate in self.context.limits]
        card = Card(
            prb=__version__,
            settings=self.config.saved(),
            llms={role: llm.fingerprint for role, llm in ledger.llms.items()},
            prompts={name: hashlib.sha256(load(name).encode()).hexdigest()[:16] for name in prompts},
            counts=Counts(
                records=self.total,
                rows=len(rows),
                people=len({row["user"] for row in rows}),
                mirror_rows=sum("mirror" in row for row in rows),
                rejected=len(self.rejects),
                rejected_by_gate=dict(sorted(Counter(reject.gate for reject in self.rejects).items())),
                posts_left_out=self.posts_left_out,
                requests=ledger.asked,
            ),
            failures=dict(sorted(ledger.failures.items())),
            gates=pass_rates(self.context.checks),
            user_blind_accuracy={
                **dict.fromkeys(blind_gates),
                **{result.name: result.accuracy(pairs) for result in self.blind},
            },
            cost={stage: ledger.usage[stage] for stage in STAGES if stage in ledger.usage},
            usd=ledger.usd,
            stopped_after=self.stopped_after,
        )
        out = self.config.out
        write_lines(out / CHECKS, [check._asdict() for check in self.context.checks])
        if self.stopped_after:  # the pairs of an earlier, complete build stay as they are
            return card
        convert(MemorySource(PAIRS, rows), out / PAIRS)
        write_lines(out / REJECTS, [reject._asdict() for reject in self.rejects])
        write_json(out / CARD, asdict(card))
        if rows:
            _write_hub(out / HUB, rows, card)
        else:
            rmtree(out / HUB, ignore_errors=True)
        return card


# --- what is written ---


@dataclass(frozen=True, kw_only=True)
class Counts:
    records: int
    rows: int
    people: int
    mirror_rows: int
    rejected: int
    rejected_by_gate: dict[str, int]
    posts_left_out: int
    requests: int


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a build found, took and cost: `card.json`."""

    prb: str
    settings: dict[str, Any]
    llms: dict[Role, str]
    prompts: dict[str, str]
    counts: Counts
    failures: dict[str, int]
    """Failed requests by reason."""
    gates: dict[str, dict[str, int]]
    user_blind_accuracy: dict[str, float | None]
    cost: dict[Stage, Usage]
    usd: float
    stopped_after: Stage | None


def pair_rows(pair: AnswerPair) -> Iterator[dict[str, Any]]:
    """One row, or the mirror rows of a couple: the same question and answers with swapped labels."""
    task, partner, answers = pair.task, pair.task.partner, (pair.chosen.text, pair.rejected.text)
    about: dict[str, Any] = {"round": pair.round}
    swapped = dict(about)
    if pair.quality:
        about["quality"] = dict(zip(SIDES, pair.quality, strict=True))
        swapped["quality"] = dict(zip(SIDES, reversed(pair.quality), strict=True))
    if pair.chosen.grades and pair.rejected.grades:
        about["grades"] = {"chosen": pair.chosen.grades.aspects, "rejected": pair.rejected.grades.aspects}

    def row(user: Partner, chosen: str, rejected: str) -> dict[str, Any]:
        return {
            **user.record.other,
            "id": user.record.id,
            "user": user.record.user,
            "question": task.record.question,
            "profile": [post._asdict() for post in user.record.posts],
            "rubric_aspects": [aspect.as_row() for aspect in user.rubric],
            "narrative": user.record.narrative,
            "category": user.record.category,
            "chosen": chosen,
            "rejected": rejected,
        }

    first = row(Partner(task.record, task.rubric), *answers)
    if partner is None:
        yield first | {"negative_rubric": list(task.against), "build": about}
        return
    yield first | {"mirror": partner.record.id, "build": about}
    twin = row(partner, *reversed(answers))
    yield twin | {"mirror": task.record.id, "own_question": partner.record.question, "build": swapped}


def pass_rates(checks: Sequence[Check]) -> dict[str, dict[str, int]]:
    """How often each gate was applied and passed, over all rounds."""
    applied = Counter(check.gate for check in checks)
    passed = Counter(check.gate for check in checks if check.reason is None)
    return {gate: {"applied": applied[gate], "passed": passed[gate]} for gate in GATES if applied[gate]}


def _write_hub(folder: Path, rows: Sequence[dict[str, Any]], card: Card) -> None:
    """A folder that `prb data push` publishes and `datasets.load_dataset` reads, with the card as its README."""
    from jinja2 import Environment, StrictUndefined

    template = (files("prb.building") / "card.md.jinja").read_text("utf-8")
    # Markdown, not HTML: names of models and gates are ours
    environment = Environment(undefined=StrictUndefined, trim_blocks=False, autoescape=False)  # noqa: S701
    text = environment.from_string(template).render(**asdict(card), known=GATES)
    write_folder(MemorySource(PAIRS, rows), folder, CardText(text))
