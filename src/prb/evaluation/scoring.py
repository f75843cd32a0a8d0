"""Rows through one model: which calls a row makes under a condition, and the outcome that follows from the replies.

An outcome earns credit (1 if the model ranks a right answer first, 0.5 for a tie, else 0) and has a margin, such as the
reward of the chosen answer minus that of the rejected one; `stats/credit.py` defines both. A failure has neither.

What is asked twice has one key and one reply. So the twins of a mirror pair get exactly the same scores wherever the
model is not told who asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple

from prb.config import Condition
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import Plan
from prb.failures import Breaker, gravest
from prb.hashing import draw
from prb.stats.credit import Credit, credit_of_scores, credit_of_verdicts, duel_shares
from prb.summary import TRAINED
from prb.types import (
    NO_EVIDENCE,
    Ask,
    Comparer,
    Duel,
    Failure,
    Item,
    Outcome,
    Pair,
    Query,
    Record,
    Recorded,
    Scorer,
)
from prb.work import Asked, Call, Replies, Reply, calls_of, checked_reward


class Said(NamedTuple):
    """What a model said of the answers of a row, in the form an `Outcome` has it."""

    scores: tuple[float | None, ...] | None = None
    verdicts: tuple[str | None, ...] | None = None
    log_odds: tuple[float | None, ...] | None = None

    def earned(self, item: Item) -> Credit | None:
        if isinstance(item, Pair) and self.scores and None not in self.scores:
            return credit_of_scores(self.scores, item.n_best)  # type: ignore[arg-type]
        if isinstance(item, Pair) and self.verdicts:
            return credit_of_verdicts(self.verdicts, self.log_odds, item.n_best)
        return None


@dataclass(frozen=True)
class RowUnder:
    """A row under a condition, and what is asked about it."""

    item: Item
    cluster: str
    condition: Condition
    built: Built | Failure
    calls: tuple[Call, ...] = ()


class Scoring(ABC):
    """From rows to calls, and from replies to outcomes; subclasses say what a model is asked and what that is worth."""

    method: ClassVar[str]  # of the model

    def __init__(
        self,
        name: str,
        model: Scorer | Comparer,
        builder: QueryBuilder,
        *,
        given: bool = False,
    ) -> None:
        self.name, self.asked = name, Asked.of(name, model, self.method, given=given)
        self._builder = builder
        self._start = self.asked.key_start()

    def under(self, item: Item, cluster: str, condition: Condition, plans: Mapping[str, Plan | Failure]) -> RowUnder:
        """`plans` holds what was inferred about the user of each row, for condition `plan`."""
        built = self._builder.build(item, condition, plans.get(item.id))
        asks = () if isinstance(built, Failure) else self._asks(item, built.query)
        return RowUnder(item, cluster, condition, built, tuple(calls_of(self._start, asks)))

    def plans(self, items: Sequence[Item], replies: Replies, breaker: Breaker) -> dict[str, Plan | Failure]:
        return self._builder.plans(items, replies, breaker)

    def outcome(self, row: RowUnder, replies: Replies) -> Outcome:
        item, built = row.item, row.built if isinstance(row.built, Built) else Built(Query(question=""))
        replied = [replies.take(call.key) for call in row.calls]
        said = self._said(item, replied)
        earned = said.earned(item)
        failed = [failure for reply in replied if (failure := reply.answer_failed)]
        failure = row.built if isinstance(row.built, Failure) else gravest(failed) if failed else None
        unscored = failure or (isinstance(item, Pair) and item.tier == NO_EVIDENCE)
        return Outcome(
            pair=item.id,
            user=item.user,
            cluster=row.cluster,
            model=self.name,
            condition=row.condition,
            **said._asdict(),
            credit=earned.credit if earned and not unscored else None,
            margin=earned.margin if earned and not failure else None,
            failure=str(failure) if failure else None,
            failure_kind=failure.kind if failure else None,
            post_ids=tuple([post.id for post in built.query.posts]),
            choices=built.choices,
            leaks=built.leaks,
            plan=built.query.plan if row.condition == "plan" else (),
            cut=built.cut + max([reply.cut for reply in replied], default=0),
            tokens=sum([reply.tokens for reply in replied]),
            seconds=round(sum([reply.seconds for reply in replied]), 6),
            cost=sum([reply.cost for reply in replied]),
            text=tuple([text for reply in replied for text in reply.text]),
            seen="row" if failure and failure.reason == TRAINED else built.seen,
        )

    @abstractmethod
    def _asks(self, item: Item, query: Query) -> Sequence[Ask | Duel]: ...

    @abstractmethod
    def _said(self, item: Item, replied: Sequence[Reply]) -> Said: ...


class ScorerOutcomes(Scoring):
    """Outcomes of a scorer: one number per answer."""

    method = "score"

    def _asks(self, item: Item, query: Query) -> Sequence[Ask]:
        return [Ask(query, answer) for answer in item.answers]

    def _said(self, item: Item, replied: Sequence[Reply]) -> Said:  # noqa: ARG002
        scores = tuple([reply.value if isinstance(reply.value, float) else None for reply in replied])
        return Said(scores=scores or None)


class ComparerOutcomes(Scoring):
    """Outcomes of a comparer: every right answer against every wrong one, in both orders or in one drawn by hash."""

    method = "prefer"

    def __init__(
        self,
        name: str,
        model: Comparer,
        builder: QueryBuilder,
        *,
        both_orders: bool,
        seed: int,
        given: bool = False,
    ) -> None:
        super().__init__(name, model, builder, given=given)
        self._both, self._seed = both_orders, seed

    def _asks(self, item: Item, query: Query) -> Sequence[Duel]:
        assert isinstance(item, Pair)
        asks: list[Duel] = []
        for n, (right, wrong) in enumerate(product(item.answers[: item.n_best], item.answers[item.n_best :])):
            orders = [Duel(query, right, wrong), Duel(query, wrong, right)]
            asks += orders if self._both else [orders[0 if self._right_first(item, n) else 1]]
        return asks

    def _right_first(self, item: Item, duel: int) -> bool:
        """If only one order is asked: which, fixed by the pair and the number of the duel."""
        return chosen_first(f"{item.id}#{duel}" if duel else item.id, self._seed)

    def _said(self, item: Item, replied: Sequence[Reply]) -> Said:
        orders: list[Reply | None] = list(replied)
        if not self._both:
            pairs = [(a, None) if self._right_first(item, n) else (None, a) for n, a in enumerate(replied)]
            orders = [answer for pair in pairs for answer in pair]
        choices = [answer.value if answer and isinstance(answer.value, str) else None for answer in orders]
        log_odds = [answer.log_odds if answer else None for answer in orders]
        weighed = any(odds is not None for odds in log_odds)
        return Said(verdicts=tuple(choices), log_odds=tuple(log_odds) if weighed else None)


class RecordedOutcomes:
    """Outcomes of recorded scores. No query is built, so a row without a rubric can have a score under `oracle`."""

    asked: None = None

    def __init__(self, name: str, model: Recorded) -> None:
        self.name, self._model = name, model

    def under(self, item: Item, cluster: str, condition: Condition, plans: Mapping[str, Plan | Failure]) -> RowUnder:  # noqa: ARG002
        return RowUnder(item, cluster, condition, Built(Query(question="")))

    def outcome(self, row: RowUnder, replies: Replies) -> Outcome:  # noqa: ARG002
        item = row.item
        recalled = self._model.recall(item.id, row.condition)
        failure = recalled if isinstance(recalled, Failure) else _misfit(recalled, item)
        record = Record() if isinstance(recalled, Failure) else recalled
        said = Said(record.scores or None, record.verdicts or None, record.log_odds or None)
        earned = said.earned(item) if failure is None else None
        checked = [None if score is None else checked_reward(score) for score in record.scores]
        scores = [None if s is None or isinstance(s, Failure) else float(s) for s in checked]
        return Outcome(
            pair=item.id,
            user=item.user,
            cluster=row.cluster,
            model=self.name,
            condition=row.condition,
            **said._replace(scores=tuple(scores) or None)._asdict(),
            credit=None if earned is None or (isinstance(item, Pair) and item.tier == NO_EVIDENCE) else earned.credit,
            margin=earned.margin if earned else None,
            failure=str(failure) if failure else None,
            failure_kind=failure.kind if failure else None,
            tokens=record.tokens,
            cost=record.cost,
            text=record.text,
        )


def _misfit(record: Record, item: Item) -> Failure | None:
    """Why a record is not about the answers of its row, or not usable."""
    if record.scores:
        present = [score for score in record.scores if score is not None]
        if len(present) != len(record.scores) or len(present) != len(item.answers):
            return Failure("the recorded scores do not fit the answers", f"{len(present)} for {len(item.answers)}")
        return next((score for score in map(checked_reward, present) if isinstance(score, Failure)), None)
    duels = item.n_best * (len(item.answers) - item.n_best) if isinstance(item, Pair) else 0
    if not duels or len(record.verdicts) != 2 * duels or None in duel_shares(record.verdicts):
        return Failure("the recorded verdicts do not fit the answers", f"{len(item.answers)} answers")
    return None


def chosen_first(pair_id: str, seed: int) -> bool:
    """Where the chosen answer stands if only one order is asked: fixed by the pair, so subsets and reruns agree."""
    return draw(seed, pair_id, bits=8) % 2 == 0
