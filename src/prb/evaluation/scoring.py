"""One batch of items through one model: queries in, the model's rewards or verdicts, outcomes out.

An outcome earns credit (1 if the model ranks a right answer first, 0.5 for a tie, else 0) and has a margin, such as the
reward of the chosen answer minus that of the rejected one; `stats/credit.py` defines both. A failure has neither.

A model is asked the same thing only once per run, so the twins of a mirror pair get exactly the same scores wherever
the model is not told who asks.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, ClassVar, Generic, TypeVar

from prb.cache import Memo
from prb.config import Condition
from prb.engine.executors import Later, begin, window
from prb.errors import BadInput
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import Plan
from prb.failures import Breaker, gravest
from prb.hashing import draw
from prb.stats.credit import credit_of_duels, credit_of_scores, duel_shares
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
    Reward,
    Scorer,
    Verdict,
)

A = TypeVar("A", Ask, Duel)
V = TypeVar("V", float, Verdict)
Earned = tuple[float | None, float | None, tuple[float | None, ...] | None, tuple[str | None, ...] | None]
"""Credit and margin, unless something failed; scores; verdicts."""

LARGEST_REWARD = 1e100
"""Beyond it sums and squares of margins overflow; no model means such a reward."""
SPENT = ("tokens", "cut", "cost", "text")
"""What is stored of an answer beside its value."""


@dataclass(frozen=True)
class Job:
    """One item under one condition, and the keys of what is asked about it."""

    item: Item
    condition: Condition
    built: Built | Failure
    keys: tuple[bytes, ...] = ()


class Scoring(ABC, Generic[A, V]):
    """From items to outcomes; subclasses say what a model is asked and what its answers are worth."""

    method: ClassVar[str]  # of the model

    def __init__(
        self,
        name: str,
        model: Scorer | Comparer,
        builder: QueryBuilder,
        breaker: Breaker | None = None,
        *,
        refuse_cuts: bool = False,
    ) -> None:
        self.name = name
        self.window = window(model)
        """How many batches may be started before the first is finished; they are finished in the same order."""
        self.paid: dict[bytes, V] = {}
        """Answers of a batch that stopped before its outcomes were written."""
        self._model, self._builder, self._breaker, self._refuse_cuts = model, builder, breaker or Breaker(), refuse_cuts
        self._memo: Memo[V] = Memo(strip=_without_cost)

    def batch(
        self,
        items: Sequence[Item],
        clusters: Sequence[str],
        conditions: Sequence[Condition],
        only: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """All items under all conditions, condition by condition, or `only` those at some positions of this list.

        If the model cannot be reached or the budget is used up, this raises, and `paid` holds what was answered.
        """
        return self.start(items, clusters, conditions, only)()

    def start(
        self,
        items: Sequence[Item],
        clusters: Sequence[str],
        conditions: Sequence[Condition],
        only: Sequence[int] | None = None,
    ) -> Callable[[], list[Outcome]]:
        """`batch` in two steps: submit whatever the model has not been asked yet, and return a function that waits for
        the answers and makes outcomes of them."""
        places = [(item, cluster, c) for c in conditions for item, cluster in zip(items, clusters, strict=True)]
        if only is not None:
            places = [places[n] for n in only]
        planned = [item for item, _, condition in places if condition == "plan"]
        plans = self._builder.plans(planned) if planned else {}
        if error := self._breaker.error(plans.values(), "planner"):
            raise error
        jobs, asks = self._prepare([(item, condition) for item, _, condition in places], plans)
        for key, answer in self.paid.items():
            if key not in self._memo:
                self._memo.put(key, answer)
        submitted: list[Later] = []

        def ask(missing: Sequence[A]) -> Callable[[], Sequence[V | Failure]]:
            submitted.append(later := begin(self._model, self.method, missing))
            return lambda: self._checked(later.result())

        wait = self._memo.start(ask, list(asks.values()), list(asks))
        for key, answer in self.paid.items():
            self._memo.put(key, _without_cost(answer))
        self.paid = {}

        def finish() -> list[Outcome]:
            answers = dict(zip(asks, wait(), strict=True))
            seconds = sum(later.seconds for later in submitted) / max(1, len(jobs))
            if error := self._breaker.error(answers.values(), self.name):
                self.paid = {key: answer for key, answer in answers.items() if not isinstance(answer, Failure)}
                raise error
            return [
                self._outcome(job, cluster, [answers[key] for key in job.keys], seconds)
                for job, (_, cluster, _) in zip(jobs, places, strict=True)
            ]

        return finish

    def _prepare(
        self, places: Sequence[tuple[Item, Condition]], plans: Mapping[str, Plan | Failure]
    ) -> tuple[list[Job], dict[bytes, A]]:
        jobs: list[Job] = []
        asks: dict[bytes, A] = {}
        for item, condition in places:
            built = self._builder.build(item, condition, plans.get(item.id))
            item_asks = [] if isinstance(built, Failure) else self._asks(item, built.query)
            asks.update(item_asks)
            jobs.append(Job(item, condition, built, tuple([key for key, _ in item_asks])))
        return jobs, asks

    def _checked(self, answers: Sequence[V | Failure]) -> Sequence[V | Failure]:
        cut = max([answer.cut for answer in answers if isinstance(answer, (Reward, Verdict))], default=0)
        if self._refuse_cuts and cut:
            raise BadInput(f"a query does not fit the model: {cut} posts or parts would be cut (--on-overflow error)")
        return answers

    def _outcome(self, job: Job, cluster: str, answers: list[V | Failure], seconds: float) -> Outcome:
        item, built = job.item, job.built if isinstance(job.built, Built) else Built(Query(question=""))
        credit, margin, scores, verdicts = self._earned(item, answers)
        paid = [answer for answer in answers if isinstance(answer, (Reward, Verdict))]
        failed = [answer for answer in answers if isinstance(answer, Failure)]
        failure = job.built if isinstance(job.built, Failure) else gravest(failed) if failed else None
        unscored = failure or (isinstance(item, Pair) and item.tier == NO_EVIDENCE)
        return Outcome(
            pair=item.id,
            user=item.user,
            cluster=cluster,
            model=self.name,
            condition=job.condition,
            scores=scores,
            verdicts=verdicts,
            credit=None if unscored else credit,
            margin=None if failure else margin,
            failure=str(failure) if failure else None,
            failure_kind=failure.kind if failure else None,
            post_ids=tuple([post.id for post in built.query.posts]),
            choices=built.choices,
            leaks=built.leaks,
            plan=built.query.plan if job.condition == "plan" else (),
            cut=built.cut + max([answer.cut for answer in paid], default=0),
            tokens=sum([p.tokens for p in paid]) + sum([f.prompt_tokens + f.completion_tokens for f in failed]),
            seconds=round(seconds, 6),
            cost=sum([p.cost for p in paid]) + sum([f.cost for f in failed]),
            text=tuple([answer.text for answer in paid if answer.text]),
            seen="row" if failure and failure.reason == TRAINED else built.seen,
        )

    @abstractmethod
    def _asks(self, item: Item, query: Query) -> list[tuple[bytes, A]]: ...

    @abstractmethod
    def _earned(self, item: Item, answers: list[V | Failure]) -> Earned: ...

    def remember(
        self, items: Sequence[Item], conditions: Sequence[Condition], lines: Sequence[Mapping[str, Any]]
    ) -> None:
        """Remember the answers that an interrupted process got; a plan that failed there is asked for again."""
        plans = {line["pair"]: tuple(line["plan"]) for line in lines if line.get("condition") == "plan"}
        places = [(item, condition) for condition in conditions for item in items]
        for job, line in zip(self._prepare(places, plans)[0], lines, strict=True):
            for key, value in zip(job.keys, self._stored_answers(job.item, line), strict=False):
                if value is not None:
                    self._memo.put(key, value)

    @abstractmethod
    def _stored_answers(self, item: Item, line: Mapping[str, Any]) -> Sequence[V | None]: ...

    def paid_lines(self) -> list[dict[str, Any]]:
        """`paid` as lines of a file, with what the answers cost."""
        return [{"model": self.name, "key": key.hex(), **self._packed(answer)} for key, answer in self.paid.items()]

    @abstractmethod
    def _packed(self, answer: V) -> dict[str, Any]: ...

    def restore(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """The opposite of `paid_lines`."""
        self.paid = {bytes.fromhex(line["key"]): self._unpacked(line) for line in lines if line["model"] == self.name}

    @abstractmethod
    def _unpacked(self, line: Mapping[str, Any]) -> V: ...


class ScorerOutcomes(Scoring[Ask, float]):
    """Outcomes of a scorer: one number per answer."""

    method = "score"

    def _asks(self, item: Item, query: Query) -> list[tuple[bytes, Ask]]:
        digest = query_digest(query)
        return [(_key(digest, answer), Ask(query, answer)) for answer in item.answers]

    def _checked(self, answers: Sequence[float | Failure]) -> Sequence[float | Failure]:
        return super()._checked([checked_reward(reward) for reward in answers])

    def _packed(self, answer: float) -> dict[str, Any]:
        spent = {name: getattr(answer, name) for name in SPENT} if isinstance(answer, Reward) else {}
        return {"score": float(answer), **spent}

    def _unpacked(self, line: Mapping[str, Any]) -> float:
        spent = {name: line[name] for name in SPENT if name in line}
        return Reward(line["score"], **spent) if spent else float(line["score"])

    def _stored_answers(self, item: Item, line: Mapping[str, Any]) -> Sequence[float | None]:  # noqa: ARG002
        return line["scores"] or ()

    def _earned(self, item: Item, answers: list[float | Failure]) -> Earned:
        scores = tuple([None if isinstance(answer, Failure) else float(answer) for answer in answers])
        credit = margin = None
        if isinstance(item, Pair) and scores and None not in scores:
            credit, margin = credit_of_scores(scores, item.n_best)  # type: ignore[arg-type]
        return credit, margin, scores or None, None


class ComparerOutcomes(Scoring[Duel, Verdict]):
    """Outcomes of a comparer: every right answer against every wrong one, in both orders or in one drawn by hash."""

    method = "prefer"

    def __init__(
        self,
        name: str,
        model: Comparer,
        builder: QueryBuilder,
        breaker: Breaker | None = None,
        *,
        both_orders: bool,
        seed: int,
        refuse_cuts: bool = False,
    ) -> None:
        super().__init__(name, model, builder, breaker, refuse_cuts=refuse_cuts)
        self._both, self._seed = both_orders, seed

    def _asks(self, item: Item, query: Query) -> list[tuple[bytes, Duel]]:
        assert isinstance(item, Pair)
        digest = query_digest(query)
        asks = []
        for n, (right, wrong) in enumerate(product(item.answers[: item.n_best], item.answers[item.n_best :])):
            orders = [(right, wrong), (wrong, right)]
            asked = orders if self._both else [orders[0 if self._right_first(item, n) else 1]]
            asks += [(_key(digest, *order), Duel(query, *order)) for order in asked]
        return asks

    def _right_first(self, item: Item, duel: int) -> bool:
        """If only one order is asked: which, fixed by the pair and the number of the duel."""
        return chosen_first(f"{item.id}#{duel}" if duel else item.id, self._seed)

    def _packed(self, answer: Verdict) -> dict[str, Any]:
        return asdict(answer)

    def _unpacked(self, line: Mapping[str, Any]) -> Verdict:
        return Verdict(choice=line["choice"], **{name: line[name] for name in SPENT})

    def _stored_answers(self, item: Item, line: Mapping[str, Any]) -> Sequence[Verdict | None]:
        stored = line["verdicts"] or ()
        if not self._both:
            stored = [stored[2 * n + (not self._right_first(item, n))] for n in range(len(stored) // 2)]
        return [None if choice is None else Verdict(choice=choice) for choice in stored]

    def _earned(self, item: Item, answers: list[Verdict | Failure]) -> Earned:
        choices = [None if isinstance(answer, Failure) else answer.choice for answer in answers]
        if not self._both:
            orders = [(c, None) if self._right_first(item, n) else (None, c) for n, c in enumerate(choices)]
            choices = [choice for order in orders for choice in order]
        shares = duel_shares(choices)
        credit = margin = None
        if isinstance(item, Pair) and shares and None not in shares:
            credit, margin = credit_of_duels(shares, item.n_best)  # type: ignore[arg-type]
        return credit, margin, None, tuple(choices)


@dataclass(frozen=True)
class RecordedOutcomes:
    """Outcomes of recorded scores. No query is built, so a row without a rubric can have a score under `oracle`."""

    name: str
    model: Recorded

    def batch(
        self, items: Sequence[Item], clusters: Sequence[str], conditions: Sequence[Condition]
    ) -> Iterator[Outcome]:
        for condition in conditions:
            for item, cluster in zip(items, clusters, strict=True):
                recalled = self.model.recall(item.id, condition)
                failure = recalled if isinstance(recalled, Failure) else _misfit(recalled, item)
                record = Record() if isinstance(recalled, Failure) else recalled
                credit = margin = None
                if failure is None and isinstance(item, Pair):
                    earned = credit_of_scores if record.scores else credit_of_duels
                    credit, margin = earned(record.scores or duel_shares(record.verdicts), item.n_best)  # type: ignore[arg-type]
                checked = [None if score is None else checked_reward(score) for score in record.scores]
                scores = [None if s is None or isinstance(s, Failure) else float(s) for s in checked]
                yield Outcome(
                    pair=item.id,
                    user=item.user,
                    cluster=cluster,
                    model=self.name,
                    condition=condition,
                    scores=tuple(scores) or None,
                    verdicts=record.verdicts or None,
                    credit=None if isinstance(item, Pair) and item.tier == NO_EVIDENCE else credit,
                    margin=margin,
                    failure=str(failure) if failure else None,
                    failure_kind=failure.kind if failure else None,
                    tokens=record.tokens,
                    cost=record.cost,
                    text=record.text,
                )

    def remember(self, *_: Any) -> None:
        """Nothing is remembered between rows."""


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


def query_digest(query: Query) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=16)
    parts = [query.user or "", query.question, *query.plan]
    for post in query.posts:
        parts += (post.id, post.text)
    for texts in (*query.choices, *query.context):
        parts += ("", *texts)
    digest.update("\0".join(parts).encode("utf-8", "surrogatepass"))
    return digest


def _key(digest: hashlib.blake2b, *answers: str) -> bytes:
    keyed = digest.copy()
    for answer in answers:
        keyed.update(b"\1" + answer.encode("utf-8", "surrogatepass"))
    return keyed.digest()


def chosen_first(pair_id: str, seed: int) -> bool:
    """Where the chosen answer stands if only one order is asked: fixed by the pair, so subsets and reruns agree."""
    return draw(seed, pair_id, bits=8) % 2 == 0


def checked_reward(reward: float | Failure) -> float | Failure:
    """A reward that can be computed with, or a failure."""
    if isinstance(reward, Failure) or abs(reward) <= LARGEST_REWARD:
        return reward
    return Failure("too large a number" if math.isfinite(reward) else "not a finite number", str(float(reward)))


def _without_cost(answer: V) -> V:
    """The cost of a call is recorded where the call was made; a resumed run knows only the answer itself."""
    return Verdict(choice=answer.choice) if isinstance(answer, Verdict) else float(answer)
