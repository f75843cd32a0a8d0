"""One round for many jobs: write candidates, drop what fails a gate, keep the best couple of each job.

Cheap gates come first, so that models are asked only about what may still pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from prb.building.answer import Candidate, Order, write
from prb.building.config import BuildConfig, Stage
from prb.building.gates import (
    GATES,
    aspects_gate,
    form_gate,
    length_gap,
    length_gate,
    quality_gate,
    refusal_gate,
    wording_gate,
)
from prb.building.job import Check, Job, Made
from prb.building.ledger import is_down
from prb.building.quality import Both, rate
from prb.building.records import Record, Reject
from prb.building.rubric import Rubric
from prb.grading import Answered, Grades
from prb.grading.llm import LLMGrader
from prb.llm import LLM, Sampling
from prb.types import Failure

QUALITY_TRIES = 2
"""Couples of a job whose quality is asked for in one round."""


class Until(Exception):
    """The stage to stop after is done."""


@dataclass(kw_only=True)
class Desk:
    """What every stage works with, and where every check is written down."""

    config: BuildConfig
    voice: Callable[[Stage], LLM]
    again: Mapping[Stage, int] = field(default_factory=dict)
    """How often a stage was asked for anew."""
    checks: list[Check] = field(default_factory=list)

    def sampling(self, stage: Stage) -> Sampling:
        """At 0 where one answer is wanted; a stage that is done anew must be free to say something else."""
        again = self.again.get(stage, 0)
        warm = stage == "answer" or again > 0
        return Sampling(
            temperature=self.config.temperature if warm else 0.0,
            max_tokens=self.config.max_tokens,
            seed=self.config.seed + 1000 * again,
        )

    def passes(self, record: str, round: int, what: str, gate: str, reason: str | None) -> bool:
        """Write a check down; gates that are switched off pass everything."""
        if gate in self.config.skip_gate:
            return True
        self.checks.append(Check(record, round, what, gate, reason))
        return reason is None

    def fails(self, record: str, round: int, what: str, gate: str, failure: Failure) -> None:
        gate = "endpoint" if is_down(failure) else gate
        self.checks.append(Check(record, round, what, gate, str(failure)))

    def done(self, stage: Stage) -> None:
        if self.config.until == stage:
            raise Until(stage)


@dataclass(frozen=True)
class Graded:
    candidate: Candidate
    grades: Grades | None


@dataclass(frozen=True)
class Option:
    """A couple of answers that passed everything but quality."""

    chosen: Graded
    rejected: Graded

    @property
    def rank(self) -> tuple[float, float]:
        met = sum(self.chosen.grades.aspects) if self.chosen.grades else 0.0
        return -met, length_gap(self.chosen.candidate.text, self.rejected.candidate.text)

    @property
    def what(self) -> str:
        return f"{self.chosen.candidate.what}, {self.rejected.candidate.what}"


def one_round(desk: Desk, jobs: Sequence[Job], round: int) -> dict[str, Made | Reject]:
    """A verified pair for each job, or why there is none."""
    begun = len(desk.checks)
    graded = _graded(desk, _written(desk, jobs, round), round)
    desk.done("grade")
    made = _rated(desk, {job.id: _options(desk, job, graded[job.id], round) for job in jobs}, round)
    desk.done("quality")
    failed = _reasons(desk.checks[begun:])
    return {job.id: made.get(job.id) or failed[job.id] for job in jobs}


def _written(desk: Desk, jobs: Sequence[Job], round: int) -> list[Candidate]:
    config = desk.config
    order = Order(
        mode=config.mode,
        words=config.words,
        candidates=config.candidates,
        sampling=desk.sampling("answer"),
        round=round,
    )
    found = write(desk.voice("answer"), jobs, order)
    desk.done("answer")
    kept = []
    for job, side, n, candidate in found:
        if isinstance(candidate, Failure):
            desk.fails(job.id, round, f"{side} {n}", "answer", candidate)
        elif all(desk.passes(job.id, round, candidate.what, *gate) for gate in _text_gates(candidate, config)):
            kept.append(candidate)
    return kept


def _text_gates(candidate: Candidate, config: BuildConfig) -> Iterator[tuple[str, str | None]]:
    job = candidate.job
    yield "refusal", refusal_gate(candidate.text)
    for record, rubric in _people(job):
        yield "wording", wording_gate(candidate.text, record, rubric, config.shared_words)


def _people(job: Job) -> Iterator[tuple[Record, Rubric]]:
    yield job.record, job.rubric
    if job.partner:
        yield job.partner.record, job.partner.rubric


def _graded(desk: Desk, candidates: Sequence[Candidate], round: int) -> dict[str, list[Graded]]:
    """Blind: the grader is not told which side an answer is meant for. A couple's answers face both rubrics."""
    if "aspects" in desk.config.skip_gate:
        return _by_job(Graded(candidate, None) for candidate in candidates)
    asks = [(c, role, a) for c in candidates for role, a in _answered(c)]
    grader = LLMGrader(desk.voice("grade"), sampling=desk.sampling("grade"))
    grades = grader.grade([answered for _, _, answered in asks])
    bad: set[tuple[str, str]] = set()
    own: list[tuple[Candidate, Grades]] = []
    for (candidate, role, _), grade in zip(asks, grades, strict=True):
        key = (candidate.job.id, candidate.what)
        if isinstance(grade, Failure):
            desk.fails(*_at(candidate, round), "aspects", grade)
            bad.add(key)
            continue
        follows = (candidate.side == "chosen") == (role == "own")
        reason = aspects_gate(grade.aspects, None) if follows else aspects_gate(None, grade.aspects)
        if not desk.passes(*_at(candidate, round), "aspects", reason and f"{reason} of {role}"):
            bad.add(key)
        if role == "own":
            own.append((candidate, grade))
    return _by_job(Graded(c, grade) for c, grade in own if (c.job.id, c.what) not in bad)


def _by_job(graded: Iterable[Graded]) -> dict[str, list[Graded]]:
    found: dict[str, list[Graded]] = defaultdict(list)
    for one in graded:
        found[one.candidate.job.id].append(one)
    return found


def _answered(candidate: Candidate) -> Iterator[tuple[str, Answered]]:
    job = candidate.job
    question = job.record.question
    yield "own", Answered(question=question, answer=candidate.text, rubric=job.rubric, narrative=job.record.narrative)
    if job.partner:
        other = job.partner
        yield (
            "partner",
            Answered(question=question, answer=candidate.text, rubric=other.rubric, narrative=other.record.narrative),
        )


def _at(candidate: Candidate, round: int) -> tuple[str, int, str]:
    return candidate.job.id, round, candidate.what


def _options(desk: Desk, job: Job, graded: Sequence[Graded], round: int) -> list[Option]:
    """Couples of answers of one length and form, the one that meets most first."""
    sides = [[g for g in graded if g.candidate.side == side] for side in ("chosen", "rejected")]
    kept = []
    for option in (Option(*both) for both in product(*sides)):
        chosen, rejected = option.chosen.candidate.text, option.rejected.candidate.text
        gates = (
            ("length", length_gate(chosen, rejected, desk.config.max_gap)),
            ("form", form_gate(chosen, rejected)),
        )
        if all(desk.passes(job.id, round, option.what, *gate) for gate in gates):
            kept.append(option)
    return sorted(kept, key=lambda option: option.rank)


def _rated(desk: Desk, options: Mapping[str, Sequence[Option]], round: int) -> dict[str, Made]:
    """The best couple that is good and even; the next one where it is not."""
    if "quality" in desk.config.skip_gate:
        return {job: _made(own[0], None, round) for job, own in options.items() if own}
    made: dict[str, Made] = {}
    for n in range(QUALITY_TRIES):
        left = [own[n] for job, own in options.items() if job not in made and n < len(own)]
        for option, ratings in zip(left, _ratings(desk, left), strict=True):
            job = option.chosen.candidate.job
            if isinstance(ratings, Failure):
                desk.fails(job.id, round, option.what, "quality", ratings)
                continue
            reason = quality_gate(*ratings, desk.config.quality_floor, desk.config.quality_margin)
            if desk.passes(job.id, round, option.what, "quality", reason):
                made[job.id] = _made(option, ratings, round)
    return made


def _made(option: Option, ratings: tuple[float, float] | None, round: int) -> Made:
    chosen, rejected = option.chosen, option.rejected
    return Made(
        job=chosen.candidate.job,
        chosen=chosen.candidate.text,
        rejected=rejected.candidate.text,
        grades=(chosen.grades, rejected.grades) if chosen.grades and rejected.grades else None,
        quality=ratings,
        round=round,
    )


def _ratings(desk: Desk, options: Sequence[Option]) -> list[tuple[float, float] | Failure]:
    both = [
        Both(o.chosen.candidate.job.record.question, o.chosen.candidate.text, o.rejected.candidate.text)
        for o in options
    ]
    return rate(desk.voice("quality"), both, desk.sampling("quality")) if both else []


def _reasons(checks: Iterable[Check]) -> dict[str, Reject]:
    """For each record the failed check that came furthest."""
    order = list(GATES)
    furthest: dict[str, Check] = {}
    for check in checks:
        if check.reason is None:
            continue
        best = furthest.get(check.record)
        if best is None or order.index(check.gate) >= order.index(best.gate):
            furthest[check.record] = check
    return {record: Reject(record, check.gate, f"{check.what}: {check.reason}") for record, check in furthest.items()}
