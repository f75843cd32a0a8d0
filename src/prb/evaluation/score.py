"""One batch of items through one model: queries, the model's numbers or verdicts, outcomes.

Identical questions to a model are asked once a run and the answer is remembered, so the twins of a mirror
pair get the very same scores wherever the model is not told who asks.
"""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prb.errors import BadInput
from prb.evaluation.conditions import Asked, Asker
from prb.evaluation.config import Condition
from prb.evaluation.plan import Plan
from prb.types import Ask, Comparer, Duel, Failure, Item, Outcome, Query, Reward, Scorer, Verdict

A = TypeVar("A", Ask, Duel)
V = TypeVar("V", float, Verdict)
Plans = Mapping[str, Plan | Failure]
"""By item."""

REMEMBERED = 1 << 18
LARGEST = 1e100
"""Beyond it sums and squares of margins overflow; no model means such a reward."""


class Memo(Generic[V]):
    """What the model said to a prompt, by content; the oldest go when it is full, failures never enter."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._known: OrderedDict[bytes, V] = OrderedDict()

    def answer(
        self, asks: Mapping[bytes, A], model: Callable[[Sequence[A]], Sequence[V | Failure]]
    ) -> Callable[[bytes], V | Failure]:
        """Ask what is not known yet, in one call; the result finds the answer to each key."""
        new = [key for key in asks if key not in self._known]
        said = model([asks[key] for key in new]) if new else []
        if len(said) != len(new):
            raise RuntimeError(f"the model gave {len(said)} answers to {len(new)} questions")
        fresh: dict[bytes, V | Failure] = dict(zip(new, said, strict=True))
        old = {key: self._known[key] for key in asks if key in self._known}
        for key, value in fresh.items():
            if not isinstance(value, Failure):
                self.put(key, _bare(value))
        return lambda key: fresh[key] if key in fresh else old[key]

    def put(self, key: bytes, value: V) -> None:
        self._known[key] = value
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)


@dataclass(frozen=True)
class Job:
    """One item under one condition."""

    item: Item
    condition: Condition
    asked: Asked | Failure
    keys: tuple[bytes, ...] = ()


def query_digest(query: Query) -> Any:
    digest = hashlib.blake2b(digest_size=16)
    parts = [query.user or "", query.question, *query.plan]
    for post in query.posts:
        parts += (post.id, post.text)
    digest.update("\0".join(parts).encode("utf-8", "surrogatepass"))
    return digest


def _key(digest: Any, *answers: str) -> bytes:
    own = digest.copy()
    for answer in answers:
        own.update(b"\1" + answer.encode("utf-8", "surrogatepass"))
    key: bytes = own.digest()
    return key


class Outcomes(ABC, Generic[A, V]):
    """From items to outcomes; what is asked of a model and what its answers are worth is the subclass's."""

    def __init__(self, name: str, asker: Asker, *, refuse_cuts: bool) -> None:
        self.name = name
        self._asker = asker
        self._refuse_cuts = refuse_cuts
        self._memo: Memo[V] = Memo()

    def batch(
        self, items: Sequence[Item], clusters: Sequence[str], conditions: Sequence[Condition]
    ) -> Iterator[Outcome]:
        jobs, asks = self._prepare(items, conditions, _plans(self._asker, items, conditions))
        started = time.perf_counter()
        said = self._memo.answer(asks, self._call)
        seconds = (time.perf_counter() - started) / max(1, len(jobs))
        for n, job in enumerate(jobs):
            yield self._outcome(job, clusters[n % len(items)], [said(key) for key in job.keys], seconds)

    def recall(
        self, items: Sequence[Item], conditions: Sequence[Condition], lines: Sequence[Mapping[str, Any]]
    ) -> None:
        """Remember what an earlier, interrupted process was told."""
        for job, line in zip(self._prepare(items, conditions, _told_plans(lines))[0], lines, strict=True):
            for key, value in zip(job.keys, self._told(line), strict=False):
                if value is not None:
                    self._memo.put(key, value)

    def _prepare(
        self, items: Sequence[Item], conditions: Sequence[Condition], plans: Plans
    ) -> tuple[list[Job], dict[bytes, A]]:
        jobs: list[Job] = []
        asks: dict[bytes, A] = {}
        for condition in conditions:
            for item in items:
                asked = self._asker.ask(item, condition, plans.get(item.id))
                if isinstance(asked, Failure):
                    jobs.append(Job(item, condition, asked))
                    continue
                own = self._asks(item, asked.query)
                asks.update(own)
                jobs.append(Job(item, condition, asked, tuple(own)))
        return jobs, asks

    def _call(self, asks: Sequence[A]) -> Sequence[V | Failure]:
        said = self._ask_model(asks)
        if self._refuse_cuts:
            _refuse_cuts(said)
        return said

    @abstractmethod
    def _asks(self, item: Item, query: Query) -> dict[bytes, A]: ...

    @abstractmethod
    def _ask_model(self, asks: Sequence[A]) -> Sequence[V | Failure]: ...

    @abstractmethod
    def _told(self, line: Mapping[str, Any]) -> Sequence[V | None]: ...

    @abstractmethod
    def _outcome(self, job: Job, cluster: str, said: list[V | Failure], seconds: float) -> Outcome: ...


class Scoring(Outcomes[Ask, float]):
    """Outcomes of a scorer: one number an answer."""

    def __init__(self, name: str, model: Scorer, asker: Asker, *, refuse_cuts: bool = False) -> None:
        super().__init__(name, asker, refuse_cuts=refuse_cuts)
        self._model = model

    def _asks(self, item: Item, query: Query) -> dict[bytes, Ask]:
        digest = query_digest(query)
        return {_key(digest, answer): Ask(query, answer) for answer in item.answers}

    def _ask_model(self, asks: Sequence[Ask]) -> Sequence[float | Failure]:
        return [_checked(reward) for reward in self._model.score(asks)]

    def _told(self, line: Mapping[str, Any]) -> Sequence[float | None]:
        return line["scores"] or ()

    def _outcome(self, job: Job, cluster: str, said: list[float | Failure], seconds: float) -> Outcome:
        scores = tuple([None if isinstance(s, Failure) else float(s) for s in said])
        failure = _first_failure(job.asked, said)
        credit = margin = None
        if failure is None and len(scores) == 2:
            margin = scores[0] - scores[1]  # type: ignore[operator]
            credit = 0.5 if margin == 0 else float(margin > 0)
        return _line(self.name, job, cluster, said, seconds, failure, credit, margin, scores=scores or None)


class Comparing(Outcomes[Duel, Verdict]):
    """Outcomes of a comparer: asked with chosen first and with rejected first, or in one order drawn by hash."""

    def __init__(
        self, name: str, model: Comparer, asker: Asker, *, both_orders: bool, seed: int, refuse_cuts: bool = False
    ) -> None:
        super().__init__(name, asker, refuse_cuts=refuse_cuts)
        self._model = model
        self._both, self._seed = both_orders, seed

    def _asks(self, item: Item, query: Query) -> dict[bytes, Duel]:
        digest = query_digest(query)
        chosen, rejected = item.answers  # type: ignore[misc]
        orders = [(chosen, rejected), (rejected, chosen)]
        used = orders if self._both else [orders[0] if chosen_first(item.id, self._seed) else orders[1]]
        return {_key(digest, *order): Duel(query, *order) for order in used}

    def _ask_model(self, asks: Sequence[Duel]) -> Sequence[Verdict | Failure]:
        return self._model.prefer(asks)

    def _told(self, line: Mapping[str, Any]) -> Sequence[Verdict | None]:
        stored = line["verdicts"] or ()
        said = stored if self._both else [choice for choice in stored if choice is not None]
        return [None if choice is None else Verdict(choice=choice) for choice in said]

    def _outcome(self, job: Job, cluster: str, said: list[Verdict | Failure], seconds: float) -> Outcome:
        flipped = not self._both and not chosen_first(job.item.id, self._seed)
        choices = [None if isinstance(v, Failure) else v.choice for v in said]
        verdicts = tuple([None, *choices] if flipped else choices if self._both else [*choices, None])
        failure = _first_failure(job.asked, said)
        credit = margin = None
        if failure is None:
            worth = [CREDIT[v] for v in verdicts[:1] if v] + [1 - CREDIT[v] for v in verdicts[1:] if v]
            credit = sum(worth) / len(worth)
            margin = credit - 0.5
        return _line(self.name, job, cluster, said, seconds, failure, credit, margin, verdicts=verdicts)


def _plans(asker: Asker, items: Sequence[Item], conditions: Sequence[Condition]) -> Plans:
    return asker.plans(items) if "plan" in conditions else {}


def _told_plans(lines: Sequence[Mapping[str, Any]]) -> Plans:
    """Plans of an earlier process, so that no planner is asked twice; where it failed there is nothing to recall."""
    return {line["pair"]: tuple(line.get("plan", ())) for line in lines if line.get("condition") == "plan"}


def _refuse_cuts(said: Sequence[float | Verdict | Failure]) -> None:
    """Under `--on-overflow error` a query that does not fit stops the run instead of losing posts."""
    cut = max([s.cut for s in said if isinstance(s, (Reward, Verdict))], default=0)
    if cut:
        raise BadInput(f"a query does not fit the model: {cut} posts or parts would be cut (--on-overflow error)")


CREDIT = {"first": 1.0, "tie": 0.5, "second": 0.0}


def chosen_first(pair_id: str, seed: int) -> bool:
    """Where the chosen answer stands if only one order is asked: fixed by the pair, so subsets and reruns agree."""
    return hashlib.sha256(f"{seed}:{pair_id}".encode()).digest()[0] % 2 == 0


def _bare(said: V) -> V:
    """Without what it cost: that is booked where the call was made, and a resumed run knows no more than this."""
    return Verdict(choice=said.choice) if isinstance(said, Verdict) else float(said)


def _checked(reward: float | Failure) -> float | Failure:
    if isinstance(reward, Failure) or abs(reward) <= LARGEST:
        return reward
    return Failure("too large a number" if math.isfinite(reward) else "not a finite number", str(float(reward)))


def _first_failure(asked: Asked | Failure, said: Sequence[object]) -> str | None:
    found = next((x for x in (asked, *said) if isinstance(x, Failure)), None)
    return None if found is None else str(found)


NOTHING = Query(question="")


def _line(
    model: str,
    job: Job,
    cluster: str,
    said: Sequence[float | Verdict | Failure],
    seconds: float,
    failure: str | None,
    credit: float | None,
    margin: float | None,
    scores: tuple[float | None, ...] | None = None,
    verdicts: tuple[str | None, ...] | None = None,
) -> Outcome:
    booked = [s for s in said if isinstance(s, (Reward, Verdict))]
    failed = [s for s in said if isinstance(s, Failure)]
    asked = job.asked
    shown = asked.query if isinstance(asked, Asked) else NOTHING
    return Outcome(
        pair=job.item.id,
        user=job.item.user,
        cluster=cluster,
        model=model,
        condition=job.condition,
        scores=scores,
        verdicts=verdicts,
        credit=credit,
        margin=margin,
        failure=failure,
        post_ids=tuple([post.id for post in shown.posts]),
        plan=shown.plan if job.condition == "plan" else (),
        cut=(asked.cut if isinstance(asked, Asked) else 0) + max([b.cut for b in booked], default=0),
        tokens=sum([b.tokens for b in booked]) + sum([f.prompt_tokens + f.completion_tokens for f in failed]),
        seconds=round(seconds, 6),
        cost=sum([b.cost for b in (*booked, *failed)]),
        text=tuple([b.text for b in booked if b.text]),
    )
