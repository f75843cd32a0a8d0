"""The checks a pair must pass: the gates, one round of writing and checking, and the user-blind check of the set.

Gates are pure: texts, grades and ratings in; a reason for failing, or `None`, out. In a round cheap gates come first,
so that LLMs are asked only about what may still pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from prb.building.calls import Ledger
from prb.building.config import GATES, Stage, gate_limits
from prb.building.stages import (
    SIDES,
    AnswerPair,
    Candidate,
    PairTask,
    Reject,
    UserRecord,
    rate_quality,
    write_answers,
)
from prb.failures import unanswered
from prb.grading import Answered
from prb.grading.llm import LLMGrader
from prb.models.judge import STYLES, PairwiseJudge
from prb.stats.blind import blind_margins, credits_of
from prb.stats.credit import CREDIT
from prb.stats.estimate import components
from prb.text.encoders import ENCODERS, Encoder, Matrix
from prb.text.words import BLOCK, LEAK_WORDS, SharedWording, hidden_texts, is_list, near_duplicates, style_rates
from prb.types import Aspect, Duel, Failure, Post, Query

QUALITY_TRIES = 2
"""Candidate pairs of a task that are rated in one round."""


class Check(NamedTuple):
    """One gate applied once, passed or not."""

    record: str
    round: int
    what: str
    gate: str
    reason: str | None
    """Why it was not passed."""


class StageReached(Exception):
    """The stage after which the build should stop is done."""


@dataclass
class BuildContext:
    """The calls, the gates that are applied, and the record of all checks."""

    ledger: Ledger
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = self.ledger.config
        self.limits = gate_limits(self.config.gate)
        """Of every gate that is applied."""

    def check(self, record: str, round: int, what: str, gate: str, reason: str | None) -> bool:
        """Record a check; whether it was passed. A gate that is off passes everything."""
        if gate not in self.limits:
            return True
        self.checks.append(Check(record, round, what, gate, reason))
        return reason is None

    def apply(
        self, record: str, round: int, what: str, gate: str, test: Callable[..., str | None], *arguments: Any
    ) -> bool:
        """As `check`, with the reason that a gate gives under its limits."""
        limits = self.limits.get(gate)
        return limits is None or self.check(record, round, what, gate, test(*arguments, **limits))

    def fail(self, record: str, round: int, what: str, gate: str, failure: Failure) -> Check:
        """Record that a gate could not be applied."""
        gate = "endpoint" if unanswered(failure) else gate
        self.checks.append(Check(record, round, what, gate, str(failure)))
        return self.checks[-1]

    def finish(self, stage: Stage) -> None:
        if self.config.until == stage:
            raise StageReached(stage)


# --- records ---


def record_gate(record: UserRecord, posts: float) -> str | None:
    if len(record.posts) < posts:
        return f"{len(record.posts)} posts, at least {posts:g} required"
    return None if record.narrative or record.rubric else "neither narrative nor rubric"


def find_duplicates(
    records: Sequence[UserRecord], encoder: Encoder, cosine: float, block: int = BLOCK
) -> dict[int, int]:
    """Position of a record → position of the first one with nearly the same question and narrative."""
    if not records:
        return {}
    rows = encoder.encode([f"{record.question}\n{record.narrative}" for record in records])
    first: dict[int, int] = {}
    for later, earlier in near_duplicates(rows, cosine, block):
        first.setdefault(later, earlier)
    return first


def leaking_posts(record: UserRecord, rubric: Sequence[Aspect]) -> tuple[Post, ...]:
    """Posts that repeat the narrative or the rubric word for word."""
    hidden = SharedWording(hidden_texts(record.narrative, rubric), LEAK_WORDS)
    return tuple(post for post in record.posts if hidden.first_in(post.text))


# --- answers ---

_REFUSAL = re.compile(
    r"^\W*(?:as\s+an\s+ai\b|(?:(?:(?:i\s+am|i['’]m)\s+(?:\w+\s+)?(?:sorry|afraid)|sorry|unfortunately|i\s+apologi[sz]e)\b"
    r"[\s,.;:]*(?:but\s+|that\s+)?)?(?:i\s+(?:can(?:no|['’])t|cannot|won['’]t|am\s+(?:unable|not\s+able)\s+to|must\s+decline))"
    r"\s+(?:to\s+)?(?:help|assist|provide|answer|comply|do\s+that|give|write|discuss|support|fulfil))",
    re.IGNORECASE,
)


def refusal_gate(answer: str) -> str | None:
    return f"begins like a refusal: {answer[:60]!r}" if _REFUSAL.match(answer) else None


def wording_gate(answer: str, record: UserRecord, rubric: Sequence[Aspect], words: float) -> str | None:
    """Wording of the question may be repeated."""
    hidden = SharedWording(hidden_texts(record.narrative, rubric), int(words), allowed=record.question)
    shared = hidden.first_in(answer)
    return f"shares {shared!r} with rubric or narrative" if shared else None


def aspects_gate(chosen: Sequence[float] = (), rejected: Sequence[float] = ()) -> str | None:
    """Grades of either side, or of both."""
    for n, grade in enumerate(chosen, 1):
        if grade < 1:
            return f"chosen does not meet aspect {n}"
    for n, grade in enumerate(rejected, 1):
        if grade > 0:
            return f"rejected meets aspect {n} (grade {grade:g})"
    return None


def length_gate(chosen: str, rejected: str, gap: float) -> str | None:
    """In characters, so that it means the same in every language."""
    found = length_gap(chosen, rejected)
    return f"{len(chosen)} and {len(rejected)} characters differ by {found:.0%}" if found > gap else None


def length_gap(chosen: str, rejected: str) -> float:
    return abs(len(chosen) - len(rejected)) / max(len(chosen), len(rejected), 1)


def form_gate(chosen: str, rejected: str) -> str | None:
    return "one answer is a list, the other is not" if is_list(chosen) != is_list(rejected) else None


def quality_gate(chosen: float, rejected: float, floor: float, margin: float) -> str | None:
    if min(chosen, rejected) < floor:
        return f"rated {chosen:.2f} and {rejected:.2f}, at least {floor:g} required for both"
    if abs(chosen - rejected) > margin + 1e-9:
        return f"rated {chosen:.2f} and {rejected:.2f}, must be within {margin:g} of each other"
    return None


# --- one round: write candidates, drop those that fail a gate, keep the best pair of each task ---


def run_round(context: BuildContext, tasks: Sequence[PairTask], round: int) -> dict[str, AnswerPair | Reject]:
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
    ledger, kept = context.ledger, []
    candidates = write_answers(ledger.llm("answer"), tasks, context.config, ledger.sampling("answer"), round)
    context.finish("answer")
    for candidate in candidates:
        at, text = (candidate.task.id, round, candidate.name), candidate.text
        if candidate.failure:
            context.fail(*at, "answer", candidate.failure)
        elif context.apply(*at, "refusal", refusal_gate, text) and all(
            context.apply(*at, "wording", wording_gate, text, record, rubric) for record, rubric in candidate.task.users
        ):
            kept.append(candidate)
    return kept


def _graded(context: BuildContext, candidates: Sequence[Candidate], round: int) -> list[Candidate]:
    """Graded blind: the grader is not told the side. Answers for a couple are graded against both rubrics."""
    if "aspects" not in context.limits:
        return list(candidates)
    grader = LLMGrader(context.ledger.llm("grade"), sampling=context.ledger.sampling("grade"))
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


def _matched(context: BuildContext, candidates: Sequence[Candidate], round: int) -> list[AnswerPair]:
    """Pairs of one length and form among the candidates of a task. First those whose chosen answer meets more, then
    those whose lengths are closer."""
    ranked: list[tuple[float, float, AnswerPair]] = []
    for chosen, rejected in product(*([c for c in candidates if c.side == side] for side in SIDES)):
        pair, texts = AnswerPair(chosen=chosen, rejected=rejected, round=round), (chosen.text, rejected.text)
        at = (pair.task.id, round, pair.name)
        if context.apply(*at, "length", length_gate, *texts) and context.apply(*at, "form", form_gate, *texts):
            met = sum(chosen.grades.aspects) if chosen.grades else 0.0
            ranked.append((-met, length_gap(*texts), pair))
    return [pair for *_, pair in sorted(ranked, key=lambda entry: entry[:2])]


def _rated(context: BuildContext, matched: Sequence[Sequence[AnswerPair]], round: int) -> dict[str, AnswerPair]:
    """For each task, the best pair whose answers are good and equally good."""
    if "quality" not in context.limits:
        return {pairs[0].task.id: pairs[0] for pairs in matched}
    llm, sampling = context.ledger.llm("quality"), context.ledger.sampling("quality")
    rated: dict[str, AnswerPair] = {}
    for n in range(QUALITY_TRIES):
        tried = [pairs[n] for pairs in matched if n < len(pairs) and pairs[0].task.id not in rated]
        for pair, quality in zip(tried, rate_quality(llm, tried, sampling) if tried else [], strict=True):
            at = (pair.task.id, round, pair.name, "quality")
            if isinstance(quality, Failure):
                context.fail(*at, quality)
            elif context.apply(*at, quality_gate, *quality):
                rated[pair.task.id] = replace(pair, quality=quality)
    return rated


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


# --- the set: can a judge or a learner that knows nothing of the users predict which answer is chosen? ---


@dataclass(frozen=True)
class BlindResult:
    """How a user-blind model did on the set. On the two rows of a couple it is right once and wrong once."""

    name: str
    credits: tuple[float | None, ...]
    """One per pair, `None` if it failed; for a couple, the credit on the first user's row."""
    margins: tuple[float, ...]
    """How confidently it was right."""

    def accuracy(self, pairs: Sequence[AnswerPair]) -> float | None:
        rows = self._row_credits(pairs)
        return sum(rows) / len(rows) if rows else None

    def worst(self, pairs: Sequence[AnswerPair], limit: float) -> list[str]:
        """Ids of the pairs to remove for the rest to be within the limit, the most confidently predicted first."""
        rows = self._row_credits(pairs)
        total, count = sum(rows), len(rows)
        predicted = [
            (margin, credit, pair.task.id)
            for pair, credit, margin in zip(pairs, self.credits, self.margins, strict=True)
            if pair.task.partner is None and credit is not None and credit > limit
        ]
        worst = []
        for _, credit, pair_id in sorted(predicted, key=lambda entry: -entry[0]):
            if total <= limit * count + 1e-9:
                break
            total, count = total - credit, count - 1
            worst.append(pair_id)
        return worst

    def _row_credits(self, pairs: Sequence[AnswerPair]) -> list[float]:
        rows: list[float] = []
        for pair, credit in zip(pairs, self.credits, strict=True):
            if credit is not None:
                rows += [credit] if pair.task.partner is None else [credit, 1 - credit]
        return rows


def measure_blind(context: BuildContext, pairs: Sequence[AnswerPair]) -> list[BlindResult]:
    results = []
    if "blind-judge" in context.limits:
        results.append(_blind_judge(context, pairs))
    if "blind-learner" in context.limits and (learner := _blind_learner(pairs)):
        results.append(learner)
    context.finish("blind")
    return results


def _blind_judge(context: BuildContext, pairs: Sequence[AnswerPair]) -> BlindResult:
    """Sees the question alone, in both orders. It is not asked about couples, where its accuracy is 50 % anyway."""
    judge = PairwiseJudge(context.ledger.llm("blind"), STYLES["pairwise"], sampling=context.ledger.sampling("blind"))
    asked = [n for n, pair in enumerate(pairs) if pair.task.partner is None]
    duels: list[Duel] = []
    for pair in (pairs[n] for n in asked):
        query = Query(question=pair.task.record.question)
        answers = (pair.chosen.text, pair.rejected.text)
        duels += [Duel(query, *answers), Duel(query, *reversed(answers))]
    verdicts = judge.prefer(duels)
    credits: list[float | None] = [0.5] * len(pairs)
    for n, forward, backward in zip(asked, verdicts[::2], verdicts[1::2], strict=True):
        for verdict in (forward, backward):
            if isinstance(verdict, Failure):
                context.fail(pairs[n].task.id, pairs[n].round, "pair", "blind-judge", verdict)
        if isinstance(forward, Failure) or isinstance(backward, Failure):
            credits[n] = None
        else:
            credits[n] = (CREDIT[forward.choice] + 1 - CREDIT[backward.choice]) / 2
    return BlindResult("blind-judge", tuple(credits), tuple(credit or 0.0 for credit in credits))


def _blind_learner(pairs: Sequence[AnswerPair]) -> BlindResult | None:
    """Static vectors and style features of both answers. A couple is one cluster and counts with both labels."""
    encoder = ENCODERS.make("static")

    def features(answers: list[str]) -> Matrix:
        style = [[len(text) / 1000, *style_rates(text)[:3]] for text in answers]
        return np.hstack([encoder.encode(answers), np.array(style)])

    chosen, rejected = (features([getattr(pair, side).text for pair in pairs]) for side in SIDES)
    rows = [
        (n, swapped) for n, pair in enumerate(pairs) for swapped in ((False, True) if pair.task.partner else (False,))
    ]
    index = [n for n, _ in rows]
    swap = np.array([swapped for _, swapped in rows])[:, None]
    users = [[record.user for record, _ in pair.task.users] for pair in pairs]
    cluster_of = components((linked[0], linked[-1]) for linked in users)
    clusters = [cluster_of[linked[0]] for linked in users]
    first = np.where(swap, rejected[index], chosen[index])
    second = np.where(swap, chosen[index], rejected[index])
    margins = blind_margins(first, second, [clusters[n] for n in index])
    if margins is None:
        return None
    unswapped = margins[~swap[:, 0]]
    return BlindResult("blind-learner", tuple(credits_of(unswapped)), tuple(map(float, unswapped)))
