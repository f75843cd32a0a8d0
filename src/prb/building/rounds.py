"""One round for many tasks: write candidates, drop those that fail a gate, keep the best pair of each task.

Cheap gates come first, so that LLMs are asked only about what may still pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from prb.building.config import GATES
from prb.building.gates import (
    BuildContext,
    Check,
    aspects_gate,
    form_gate,
    length_gap,
    length_gate,
    quality_gate,
    refusal_gate,
    wording_gate,
)
from prb.building.records import Reject
from prb.building.stages import SIDES, Candidate, PairTask, QualityAsk, VerifiedPair, rate_quality, write_answers
from prb.grading import Answered
from prb.grading.llm import LLMGrader
from prb.types import Failure

QUALITY_TRIES = 2
"""Candidate pairs of a task that are rated in one round."""


@dataclass(frozen=True)
class CandidatePair:
    """Two answers that passed everything but quality."""

    chosen: Candidate
    rejected: Candidate

    @property
    def rank(self) -> tuple[float, float]:
        """The lower the better: the chosen answer meets more, and the lengths are closer."""
        met = sum(self.chosen.grades.aspects) if self.chosen.grades else 0.0
        return -met, length_gap(self.chosen.text, self.rejected.text)

    @property
    def name(self) -> str:
        return f"{self.chosen.name}, {self.rejected.name}"

    def verified(self, quality: tuple[float, float] | None, round: int) -> VerifiedPair:
        chosen, rejected = self.chosen, self.rejected
        return VerifiedPair(
            task=chosen.task,
            chosen=chosen.text,
            rejected=rejected.text,
            grades=(chosen.grades, rejected.grades) if chosen.grades and rejected.grades else None,
            quality=quality,
            round=round,
        )


def run_round(context: BuildContext, tasks: Sequence[PairTask], round: int) -> dict[str, VerifiedPair | Reject]:
    """A verified pair for each task, or why there is none."""
    first_check = len(context.checks)
    candidates: dict[str, list[Candidate]] = {task.id: [] for task in tasks}
    for candidate in _graded(context, _written(context, tasks, round), round):
        candidates[candidate.task.id].append(candidate)
    context.finish("grade")
    matched = [_matched(context, of_task, round) for of_task in candidates.values()]
    verified = _rated(context, [pairs for pairs in matched if pairs], round)
    context.finish("quality")
    failed = _furthest_failures(context.checks[first_check:])
    return {task.id: verified.get(task.id) or failed[task.id] for task in tasks}


def _written(context: BuildContext, tasks: Sequence[PairTask], round: int) -> list[Candidate]:
    """Candidates that are not refusals and leak nothing of either user."""
    config = context.config
    candidates = write_answers(context.llm("answer"), tasks, config, context.sampling("answer"), round)
    context.finish("answer")
    kept = []
    for candidate in candidates:
        task, text = candidate.task, candidate.text
        if candidate.failure:
            context.fail(task.id, round, candidate.name, "answer", candidate.failure)
        elif context.check(task.id, round, candidate.name, "refusal", refusal_gate(text)) and all(
            context.check(task.id, round, candidate.name, "wording", wording_gate(text, *user, config.shared_words))
            for user in task.users
        ):
            kept.append(candidate)
    return kept


def _graded(context: BuildContext, candidates: Sequence[Candidate], round: int) -> list[Candidate]:
    """Graded blind: the grader is not told the side. Answers for a couple are graded against both rubrics."""
    if "aspects" in context.config.skip_gate:
        return list(candidates)
    grader = LLMGrader(context.llm("grade"), sampling=context.sampling("grade"))
    grades = iter(
        grader.grade(
            [
                Answered(
                    question=candidate.task.record.question,
                    answer=candidate.text,
                    rubric=rubric,
                    narrative=record.narrative,
                )
                for candidate in candidates
                for record, rubric in candidate.task.users
            ]
        )
    )
    kept = []
    for candidate in candidates:
        passed, users_grades = [], None
        for whose in ("user", "partner")[: len(candidate.task.users)]:
            graded = next(grades)
            at = (candidate.task.id, round, candidate.name, "aspects")
            if isinstance(graded, Failure):
                context.fail(*at, graded)
                passed.append(False)
                continue
            follows = (candidate.side == "chosen") == (whose == "user")
            reason = aspects_gate(chosen=graded.aspects) if follows else aspects_gate(rejected=graded.aspects)
            passed.append(context.check(*at, reason and f"{reason} of the {whose}'s rubric"))
            if whose == "user":
                users_grades = graded
        if all(passed):
            kept.append(replace(candidate, grades=users_grades))
    return kept


def _matched(context: BuildContext, candidates: Sequence[Candidate], round: int) -> list[CandidatePair]:
    """Pairs of one length and form among the candidates of a task, best first."""
    kept = []
    for chosen, rejected in product(*([c for c in candidates if c.side == side] for side in SIDES)):
        pair, at = CandidatePair(chosen, rejected), (chosen.task.id, round)
        length = length_gate(chosen.text, rejected.text, context.config.max_gap)
        form = form_gate(chosen.text, rejected.text)
        if context.check(*at, pair.name, "length", length) and context.check(*at, pair.name, "form", form):
            kept.append(pair)
    return sorted(kept, key=lambda pair: pair.rank)


def _rated(context: BuildContext, matched: Sequence[Sequence[CandidatePair]], round: int) -> dict[str, VerifiedPair]:
    """For each task, the best pair whose answers are good and equally good."""
    config = context.config
    if "quality" in config.skip_gate:
        return {pairs[0].chosen.task.id: pairs[0].verified(None, round) for pairs in matched}
    verified: dict[str, VerifiedPair] = {}
    for n in range(QUALITY_TRIES):
        tried = [pairs[n] for pairs in matched if n < len(pairs) and pairs[0].chosen.task.id not in verified]
        asks = [QualityAsk(pair.chosen.task.record.question, pair.chosen.text, pair.rejected.text) for pair in tried]
        ratings = rate_quality(context.llm("quality"), asks, context.sampling("quality")) if asks else []
        for pair, quality in zip(tried, ratings, strict=True):
            at = (pair.chosen.task.id, round, pair.name, "quality")
            if isinstance(quality, Failure):
                context.fail(*at, quality)
            elif context.check(*at, quality_gate(*quality, config.quality_floor, config.quality_margin)):
                verified[pair.chosen.task.id] = pair.verified(quality, round)
    return verified


def _furthest_failures(checks: Iterable[Check]) -> dict[str, Reject]:
    """For each record, the failed check of the latest gate."""
    order = list(GATES)
    furthest: dict[str, Check] = {}
    for check in checks:
        if check.reason is not None:
            best = furthest.setdefault(check.record, check)
            if order.index(check.gate) >= order.index(best.gate):
                furthest[check.record] = check
    return {record: Reject(record, check.gate, f"{check.what}: {check.reason}") for record, check in furthest.items()}
