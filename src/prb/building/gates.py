"""The checks a pair must pass: where they are recorded, the gates themselves, and the user-blind check of the set.

Gates are pure: texts, grades and ratings in; a reason for failing, or `None`, out. The LLMs are asked elsewhere, except
for the user-blind check, which needs the whole set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from prb.building.config import ROLES, BuildConfig, Role, Stage
from prb.building.ledger import Ledger, LedgerLLM, prices_of
from prb.building.records import UserRecord
from prb.building.stages import VerifiedPair
from prb.failures import unanswered
from prb.llm import LLM, Sampling
from prb.models.judge import STYLES, PairwiseJudge
from prb.stats.blind import blind_margins, credits_of
from prb.stats.credit import CREDIT
from prb.stats.estimate import components
from prb.text.encoders import ENCODERS, Encoder, Matrix
from prb.text.words import BLOCK, LEAK_WORDS, SharedWording, hidden_texts, is_list, near_duplicates, style_rates
from prb.types import Aspect, Duel, Failure, Post, Query


class Check(NamedTuple):
    """One gate applied once, passed or not."""

    record: str
    round: int
    what: str
    gate: str
    reason: str | None
    """Why it was not passed."""


REDO_SEED_STEP = 1000
"""How much higher the seed is when a stage is asked again; a reminder raises it by one."""


class StageReached(Exception):
    """The stage after which the build should stop is done."""


@dataclass(kw_only=True)
class BuildContext:
    """Settings, the LLMs behind the ledger, and the record of all checks."""

    config: BuildConfig
    llms: Mapping[Role, LLM]
    ledger: Ledger
    redone: Mapping[Stage, int]
    """How often a stage was asked again."""
    checks: list[Check] = field(default_factory=list)

    def llm(self, stage: Stage) -> LLM:
        role = ROLES[stage]
        return LedgerLLM(self.llms[role], stage, prices_of(self.config.spec_of(role)), self.ledger)

    def sampling(self, stage: Stage) -> Sampling:
        """At temperature 0, except for answers and for a stage that is redone and must be able to reply differently."""
        redone = self.redone.get(stage, 0)
        return Sampling(
            temperature=self.config.temperature if stage == "answer" or redone else 0.0,
            max_tokens=self.config.max_tokens,
            seed=self.config.seed + REDO_SEED_STEP * redone,
        )

    def check(self, record: str, round: int, what: str, gate: str, reason: str | None) -> bool:
        """Record a check; whether it was passed. A skipped gate passes everything."""
        if gate in self.config.skip_gate:
            return True
        self.checks.append(Check(record, round, what, gate, reason))
        return reason is None

    def fail(self, record: str, round: int, what: str, gate: str, failure: Failure) -> Check:
        """Record that a gate could not be applied."""
        gate = "endpoint" if unanswered(failure) else gate
        self.checks.append(Check(record, round, what, gate, str(failure)))
        return self.checks[-1]

    def finish(self, stage: Stage) -> None:
        if self.config.until == stage:
            raise StageReached(stage)


# records


def record_gate(record: UserRecord, config: BuildConfig) -> str | None:
    if len(record.posts) < config.min_posts:
        return f"{len(record.posts)} posts, at least {config.min_posts} required"
    if not record.narrative and not record.rubric:
        return "neither narrative nor rubric"
    return None


def find_duplicates(
    records: Sequence[UserRecord], encoder: Encoder, limit: float, block: int = BLOCK
) -> dict[int, int]:
    """Position of a record → position of the first one with nearly the same question and narrative."""
    if not records:
        return {}
    rows = encoder.encode([f"{record.question}\n{record.narrative}" for record in records])
    first: dict[int, int] = {}
    for later, earlier in near_duplicates(rows, limit, block):
        first.setdefault(later, earlier)
    return first


def leaking_posts(record: UserRecord, rubric: Sequence[Aspect], run: int) -> tuple[Post, ...]:
    """Posts that repeat the narrative or the rubric word for word."""
    hidden = SharedWording(hidden_texts(record.narrative, rubric), max(run, LEAK_WORDS))
    return tuple(post for post in record.posts if hidden.first_in(post.text))


# answers

_REFUSAL = re.compile(
    r"^\W*(?:as\s+an\s+ai\b|(?:(?:(?:i\s+am|i['’]m)\s+(?:\w+\s+)?(?:sorry|afraid)|sorry|unfortunately|i\s+apologi[sz]e)\b"
    r"[\s,.;:]*(?:but\s+|that\s+)?)?(?:i\s+(?:can(?:no|['’])t|cannot|won['’]t|am\s+(?:unable|not\s+able)\s+to|must\s+decline))"
    r"\s+(?:to\s+)?(?:help|assist|provide|answer|comply|do\s+that|give|write|discuss|support|fulfil))",
    re.IGNORECASE,
)


def refusal_gate(answer: str) -> str | None:
    return f"begins like a refusal: {answer[:60]!r}" if _REFUSAL.match(answer) else None


def wording_gate(answer: str, record: UserRecord, rubric: Sequence[Aspect], run: int) -> str | None:
    """Wording of the question may be repeated."""
    hidden = SharedWording(hidden_texts(record.narrative, rubric), run, allowed=record.question)
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


def length_gate(chosen: str, rejected: str, most: float) -> str | None:
    """In characters, so that it means the same in every language."""
    gap = length_gap(chosen, rejected)
    return f"{len(chosen)} and {len(rejected)} characters differ by {gap:.0%}" if gap > most else None


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


# the set: can a judge or a learner that knows nothing of the users predict which answer is chosen?


@dataclass(frozen=True)
class BlindResult:
    """How a user-blind model did on the set. On the two rows of a couple it is right once and wrong once."""

    name: str
    credits: tuple[float | None, ...]
    """One per pair, `None` if it failed; for a couple, the credit on the first user's row."""
    margins: tuple[float, ...]
    """How confidently it was right."""

    def accuracy(self, pairs: Sequence[VerifiedPair]) -> float | None:
        rows = self._row_credits(pairs)
        return sum(rows) / len(rows) if rows else None

    def worst(self, pairs: Sequence[VerifiedPair], limit: float) -> list[str]:
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

    def _row_credits(self, pairs: Sequence[VerifiedPair]) -> list[float]:
        rows: list[float] = []
        for pair, credit in zip(pairs, self.credits, strict=True):
            if credit is not None:
                rows += [credit] if pair.task.partner is None else [credit, 1 - credit]
        return rows


def measure_blind(context: BuildContext, pairs: Sequence[VerifiedPair]) -> list[BlindResult]:
    results = []
    if "blind-judge" not in context.config.skip_gate:
        results.append(_blind_judge(context, pairs))
    if "blind-learner" not in context.config.skip_gate and (learner := _blind_learner(pairs)):
        results.append(learner)
    context.finish("blind")
    return results


def _blind_judge(context: BuildContext, pairs: Sequence[VerifiedPair]) -> BlindResult:
    """Sees the question alone, in both orders. It is not asked about couples, where its accuracy is 50 % anyway."""
    judge = PairwiseJudge(context.llm("blind"), STYLES["pairwise"], sampling=context.sampling("blind"))
    asked = [n for n, pair in enumerate(pairs) if pair.task.partner is None]
    duels: list[Duel] = []
    for pair in (pairs[n] for n in asked):
        query = Query(question=pair.task.record.question)
        duels += [Duel(query, pair.chosen, pair.rejected), Duel(query, pair.rejected, pair.chosen)]
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


def _blind_learner(pairs: Sequence[VerifiedPair]) -> BlindResult | None:
    """Static vectors and style features of both answers. A couple is one cluster and counts with both labels."""
    encoder = ENCODERS.make("static")

    def features(answers: list[str]) -> Matrix:
        style = [[len(text) / 1000, *style_rates(text)[:3]] for text in answers]
        return np.hstack([encoder.encode(answers), np.array(style)])

    chosen, rejected = features([pair.chosen for pair in pairs]), features([pair.rejected for pair in pairs])
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
