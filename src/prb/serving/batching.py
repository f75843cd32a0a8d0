"""Concurrent requests become batches: one thread, one call of the model at a time.

Models are not thread-safe and are fastest on many answers at once. So everything that waits is taken together, answers
to the same query side by side (the engine then reads the query once), and the next batch gathers while the model is
busy. Each batch begins with the answer that has waited longest, so nobody starves however popular a query is.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from prb.types import Ask, Failure, Query

log = logging.getLogger("prb.serving")

Score = Callable[[Sequence[Ask]], Sequence[float | Failure]]
Watch = Callable[["Batch"], None]

BROKEN = "model error"
"""The reason of a failure that was an exception, not something the model had to say."""
PATIENCE = 0.1
"""The part of a batch's own time that it may wait for company."""
TOKEN = 4
"""Characters a token, about."""


class Overloaded(Exception):
    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many answers are waiting; try again in {seconds} s")
        self.seconds = seconds


class Closing(Exception):
    def __init__(self) -> None:
        super().__init__("the server is stopping")


@dataclass(frozen=True, kw_only=True)
class Limits:
    window: float = 0.01
    """Seconds the first answer waits for company."""
    batch: int = 256
    tokens: int = 65_536
    queue: int = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call of the model was about, for those who keep count."""

    answers: int
    queries: int
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    ask: Ask
    arrived: float
    future: Future[float | Failure]


class Batcher:
    def __init__(self, score: Score, limits: Limits, watch: Watch = lambda _: None) -> None:
        self._score, self._limits, self._watch = score, limits, watch
        self._condition = threading.Condition()
        self._waiting: dict[int, Waiting] = {}  # by arrival
        self._arrivals = 0
        self._busy = False
        self._closing = False
        self._pace = 0.0  # seconds an answer, of late
        # a daemon: a model that hangs must not keep the process from ending
        threading.Thread(target=self._work, name="model", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def idle(self) -> bool:
        with self._condition:
            return not self._waiting and not self._busy

    async def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """One result an ask. Cancelling takes out what still waits."""
        return list(await asyncio.gather(*map(asyncio.wrap_future, self.submit(asks))))

    def submit(self, asks: Sequence[Ask]) -> list[Future[float | Failure]]:
        """All of them or none."""
        with self._condition:
            self.check(len(asks))
            futures = [self._enter(ask) for ask in asks]
            self._condition.notify()
        return futures

    def check(self, more: int) -> None:
        """Raise what keeps `more` answers from being accepted."""
        if self._closing:
            raise Closing
        if len(self._waiting) + more > self._limits.queue:
            raise Overloaded(min(60, max(1, math.ceil(self._pace * len(self._waiting)))))

    def close(self) -> None:
        """Accept nothing more; what was accepted is still answered."""
        with self._condition:
            self._closing = True
            self._condition.notify()

    def _enter(self, ask: Ask) -> Future[float | Failure]:
        number = self._arrivals = self._arrivals + 1
        future: Future[float | Failure] = Future()
        self._waiting[number] = Waiting(ask, time.monotonic(), future)
        future.add_done_callback(lambda _: self._leave(number))
        return future

    def _leave(self, number: int) -> None:
        with self._condition:
            self._waiting.pop(number, None)  # still there only if it was cancelled

    def _work(self) -> None:
        while batch := self._next():
            started = time.perf_counter()
            unique = list(dict.fromkeys(one.ask for one in batch))
            said = dict(zip(unique, scored(self._score, unique), strict=True))
            self._report(batch, said, time.perf_counter() - started)
            for one in batch:
                one.future.set_result(said[one.ask])
            with self._condition:
                self._busy = False

    def _report(self, batch: list[Waiting], said: dict[Ask, float | Failure], seconds: float) -> None:
        """Before anybody has the results: who has got a score finds it counted."""
        each = seconds / len(batch)
        self._pace = 0.7 * (self._pace or each) + 0.3 * each
        failed = sum(isinstance(said[one.ask], Failure) for one in batch)
        self._watch(Batch(len(batch), len({ask.query for ask in said}), failed, seconds))

    def _next(self) -> list[Waiting]:
        """The next batch; empty when closed and nothing waits."""
        with self._condition:
            while True:
                self._condition.wait_for(lambda: self._waiting or self._closing)
                self._gather()
                batch = list(chosen(self._waiting, self._limits))
                taken = [self._waiting.pop(number) for number in batch]
                live = [one for one in taken if one.future.set_running_or_notify_cancel()]
                self._busy = bool(live)
                if live or (self._closing and not self._waiting):
                    return live

    def _gather(self) -> None:
        """Wait for company: the window of the longest waiting one, longer while more keep coming to a slow model.

        Clients whose answers have just gone out come back at once, all of them. A batch that does not wait for them
        splits them from the others for good, and what they ask about is read twice. A tenth of its time is worth that.
        """
        free = time.monotonic()
        while self._waiting and not self._closing and len(self._waiting) < self._limits.batch:
            oldest, newest = next(iter(self._waiting.values())), next(reversed(self._waiting.values()))
            worth = free + PATIENCE * self._pace * len(self._waiting)
            quiet = max(newest.arrived, free) + self._limits.window
            left = min(quiet, max(oldest.arrived + self._limits.window, worth)) - time.monotonic()
            if left <= 0:
                return
            self._condition.wait(left)


def chosen(waiting: dict[int, Waiting], limits: Limits) -> Iterator[int]:
    """Who goes next: query by query, the longest waiting first, as long as size and tokens allow, at least one."""
    groups: dict[Query, list[int]] = {}
    for number, one in waiting.items():
        groups.setdefault(one.ask.query, []).append(number)
    size = tokens = 0
    for query, numbers in groups.items():
        tokens += length(query) // TOKEN
        for number in numbers:
            tokens += len(waiting[number].ask.answer) // TOKEN + 1
            if size and (size == limits.batch or tokens > limits.tokens):
                return
            size += 1
            yield number


def length(query: Query) -> int:
    """Characters of a whole query."""
    return len(query.question) + sum(len(post.text) for post in query.posts) + sum(map(len, query.plan))


def scored(score: Score, asks: Sequence[Ask]) -> list[float | Failure]:
    """A result each. An exception is one ask's fault and not its neighbours': halves are tried until it is found."""
    try:
        said = [finite(reward) for reward in score(asks)]
        if len(said) != len(asks):
            raise RuntimeError(f"the model gave {len(said)} answers to {len(asks)} questions")
        return said
    except (Exception, SystemExit) as error:  # the thread must live on, also after code that would end a program
        if len(asks) == 1:
            log.error("the model failed: %s", where(error))
            return [Failure(BROKEN, type(error).__name__)]
        middle = len(asks) // 2
        return scored(score, asks[:middle]) + scored(score, asks[middle:])


def finite(reward: float | Failure) -> float | Failure:
    if isinstance(reward, Failure) or math.isfinite(reward):
        return reward
    return Failure("not a finite number", str(float(reward)))


def where(error: BaseException) -> str:
    """Kind and place of an exception, without its message: that may quote people's texts."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{place}"
