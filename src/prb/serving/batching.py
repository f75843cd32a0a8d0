"""Concurrent requests become batches: one thread, one call of the model at a time.

Models are not thread-safe and are fastest on many answers at once. So everything that waits is taken together, answers
to the same query side by side (the engine then reads the query once), and the next batch gathers while the model is
busy. Each batch begins with the answer that has waited longest, so no request starves however popular a query is.
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

MODEL_ERROR = "model error"
"""Reason of a failure that was an exception, as opposed to a failure that the model reported."""
PATIENCE = 0.1
"""Share of a batch's own time that it may wait for more answers."""
CHARS_PER_TOKEN = 4
MAX_RETRY_SECONDS = 60


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
    """Seconds the first answer waits for others."""
    batch: int = 256
    tokens: int = 65_536
    queue: int = 1024


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One call of the model, for metrics."""

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
    def __init__(self, score: Score, limits: Limits, on_batch: Callable[[BatchReport], None] = lambda _: None) -> None:
        self._score, self._limits, self._on_batch = score, limits, on_batch
        self._condition = threading.Condition()
        self._waiting: dict[int, Waiting] = {}  # by arrival
        self._arrivals = 0
        self._busy = False
        self._closing = False
        self._pace = 0.0  # recent seconds per answer
        # a daemon: a model that hangs must not keep the process from ending
        threading.Thread(target=self._run, name="model", daemon=True).start()

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
        """One result per ask. Cancelling removes what still waits."""
        return list(await asyncio.gather(*map(asyncio.wrap_future, self.submit(asks))))

    def submit(self, asks: Sequence[Ask]) -> list[Future[float | Failure]]:
        """Accepts all of them or none."""
        with self._condition:
            self.check_room(len(asks))
            futures = [self._add(ask) for ask in asks]
            self._condition.notify()
        return futures

    def check_room(self, answers: int) -> None:
        """Raise why so many more answers cannot be accepted."""
        if self._closing:
            raise Closing
        if len(self._waiting) + answers > self._limits.queue:
            raise Overloaded(min(MAX_RETRY_SECONDS, max(1, math.ceil(self._pace * len(self._waiting)))))

    def close(self) -> None:
        """Accept nothing more; what was accepted is still answered."""
        with self._condition:
            self._closing = True
            self._condition.notify()

    def drain(self) -> bool:
        """Close, and say whether everything accepted has been answered."""
        self.close()
        return self.idle

    def _add(self, ask: Ask) -> Future[float | Failure]:
        number = self._arrivals = self._arrivals + 1
        future: Future[float | Failure] = Future()
        self._waiting[number] = Waiting(ask, time.monotonic(), future)

        def remove(_: object) -> None:
            with self._condition:
                self._waiting.pop(number, None)  # still there only if it was cancelled

        future.add_done_callback(remove)
        return future

    def _run(self) -> None:
        while batch := self._next_batch():
            started = time.perf_counter()
            unique = list(dict.fromkeys(waiting.ask for waiting in batch))
            results = dict(zip(unique, score_isolated(self._score, unique), strict=True))
            seconds = time.perf_counter() - started
            per_answer = seconds / len(batch)
            self._pace = 0.7 * (self._pace or per_answer) + 0.3 * per_answer
            failed = sum(isinstance(results[waiting.ask], Failure) for waiting in batch)
            # reported before results go out: a client that has its score finds it counted
            self._on_batch(BatchReport(len(batch), len({ask.query for ask in results}), failed, seconds))
            for waiting in batch:
                waiting.future.set_result(results[waiting.ask])
            with self._condition:
                self._busy = False

    def _next_batch(self) -> list[Waiting]:
        """The next batch; empty when closed and nothing waits."""
        with self._condition:
            while True:
                self._condition.wait_for(lambda: self._waiting or self._closing)
                self._gather()
                numbers = list(select_batch(self._waiting, self._limits))
                taken = [self._waiting.pop(number) for number in numbers]
                live = [waiting for waiting in taken if waiting.future.set_running_or_notify_cancel()]
                self._busy = bool(live)
                if live or (self._closing and not self._waiting):
                    return live

    def _gather(self) -> None:
        """Wait for more answers: the window of the oldest one, longer while more keep coming to a slow model.

        Clients whose answers have just gone out come back at once, all of them. A batch that does not wait for them
        splits them from the others for good, and their queries are read twice. A tenth of its time is worth that.
        """
        start = time.monotonic()
        while self._waiting and not self._closing and len(self._waiting) < self._limits.batch:
            oldest, newest = next(iter(self._waiting.values())), next(reversed(self._waiting.values()))
            patience = start + PATIENCE * self._pace * len(self._waiting)
            quiet = max(newest.arrived, start) + self._limits.window
            remaining = min(quiet, max(oldest.arrived + self._limits.window, patience)) - time.monotonic()
            if remaining <= 0:
                return
            self._condition.wait(remaining)


def select_batch(waiting: dict[int, Waiting], limits: Limits) -> Iterator[int]:
    """Which answers go next: query by query, the longest waiting first, within the limits but at least one."""
    by_query: dict[Query, list[int]] = {}
    for number, entry in waiting.items():
        by_query.setdefault(entry.ask.query, []).append(number)
    size = tokens = 0
    for query, numbers in by_query.items():
        tokens += query_length(query) // CHARS_PER_TOKEN
        for number in numbers:
            tokens += len(waiting[number].ask.answer) // CHARS_PER_TOKEN + 1
            if size and (size == limits.batch or tokens > limits.tokens):
                return
            size += 1
            yield number


def query_length(query: Query) -> int:
    """Characters of a whole query."""
    return len(query.question) + sum(len(post.text) for post in query.posts) + sum(map(len, query.plan))


def score_isolated(score: Score, asks: Sequence[Ask]) -> list[float | Failure]:
    """One result per ask. If the model raises, halves are retried until the ask that causes it is isolated."""
    try:
        results = [
            reward
            if isinstance(reward, Failure) or math.isfinite(reward)
            else Failure("not a finite number", str(float(reward)))
            for reward in score(asks)
        ]
        if len(results) != len(asks):
            raise RuntimeError(f"the model returned {len(results)} scores for {len(asks)} answers")
        return results
    except (Exception, SystemExit) as error:  # the thread must survive code that would end a program, too
        if len(asks) == 1:
            log.error("the model failed: %s", place_of(error))
            return [Failure(MODEL_ERROR, type(error).__name__)]
        middle = len(asks) // 2
        return score_isolated(score, asks[:middle]) + score_isolated(score, asks[middle:])


def place_of(error: BaseException) -> str:
    """Type and location of an exception, without its message: that may quote users' texts."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{place}"
