"""`prb serve`: starts a reward server, and batches concurrent requests for one model.

Models are not thread-safe and are fastest on many answers at once. So waiting answers are scored together, those to the
same query side by side (the engine then reads the query once), and the next batch gathers while the model is busy. Each
batch begins with the answer that has waited longest, so no request starves, however popular a query is.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field

from prb.config import Count, MaskingConfig, Name, config
from prb.errors import BadInput, MissingExtra, PrbError
from prb.models import MODELS, PREFIXES_SHARED, check_scorer, execution_of
from prb.registry import Spec
from prb.text.pii import mask_query
from prb.types import Ask, Failure, Query, RewardModel, Scorer
from prb.work import OUT_OF_MEMORY, checked_reward, compute_in_halves, is_out_of_memory

log = logging.getLogger("prb.serving")

TOKEN_VARIABLE = "PRB_SERVE_TOKEN"  # noqa: S105 - the name of a variable
Port = Annotated[int, Field(ge=0, le=65_535)]
Score = Callable[[Sequence[Ask]], Sequence[float | Failure]]

MODEL_ERROR = "model error"
"""Reason of a failure where the model raised an exception."""
PATIENCE = 0.1
"""Share of its scoring time that a batch may wait for more answers."""


@config
class ServeConfig(MaskingConfig):
    """Serve a reward model over HTTP: POST /v1/score, OpenRLHF's /get_reward, GET /healthz and /metrics."""

    model: Name
    """Model spec such as `embedding` or `classifier?path=…`: any model that scores answers, not one that only
    compares them."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach requires a token."""
    port: Port = 8300
    """Port to listen on; 0 picks a free one."""
    token_file: Path | None = None
    """File with the bearer token that clients must send. Default: the environment variable PRB_SERVE_TOKEN."""
    batch: Count = 256
    """Maximum answers per call of the model."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one server takes. All but `batch` are fixed; more would be a mistake or an attack."""

    batch: int = 256
    """Answers per call of the model."""
    window: float = 0.01
    """Seconds the first answer waits for others."""
    queue: int = 1024
    """Answers that may wait; further requests get status 429."""
    answers: int = 1024
    """Answers per request; the queue must have room for all of them."""
    chars: int = 400_000
    """Characters of a whole query, and of each answer."""
    body: int = 8_000_000
    """Bytes per request."""


@dataclass(frozen=True)
class Ready:
    """Reported once the server listens."""

    url: str
    model: str
    fingerprint: str


def serve(
    config: ServeConfig,
    *,
    model: RewardModel | None = None,
    ready: Callable[[Ready], None],
    limits: Limits | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; `model`, if given, is served under the name `config.model`."""
    try:
        from prb.serving import http
        from prb.serving.app import Metrics, Service, make_app
    except ImportError:
        raise MissingExtra("the reward server", "serve") from None

    if model is None:
        MODELS.check(Spec.parse(config.model))
    token = read_token(config)
    with http.bind(config.host, config.port) as listener:
        if token is None and not ip_address(listener.getsockname()[0]).is_loopback:
            raise BadInput(
                f"--host {config.host} can be reached from other machines: set {TOKEN_VARIABLE} or --token-file"
            )
        scorer = check_scorer(config.model, model or MODELS.make(config.model), "a reward server needs")
        if execution_of(scorer) not in ("", PREFIXES_SHARED):
            log.warning("%s: %s", config.model, execution_of(scorer))
        metrics, limits = Metrics(), limits or Limits(batch=config.batch)
        batcher = Batcher(masked(scorer) if config.masks(scorer) else scorer.score, limits, metrics.count_batch)
        service = Service(config.model, scorer.fingerprint, batcher, metrics, limits)
        app = make_app(service, token=token, hosts=[config.host])
        started = Ready(http.url_of(listener), config.model, scorer.fingerprint)
        connections = limits.queue + limits.batch + 256  # spare ones: idle, or with a body still arriving
        server = http.Server(app, ready=lambda: ready(started), connections=connections)
        server.run(sockets=[listener])
        if server.force_exit:
            raise PrbError("stopped at once: accepted requests were not answered")


def read_token(config: ServeConfig) -> str | None:
    if config.token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = config.token_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--token-file {config.token_file} cannot be read: {type(error).__name__}") from None
    if not token or any(c.isspace() for c in token):
        raise BadInput(f"--token-file {config.token_file} must hold exactly one token")
    return token


def masked(model: Scorer) -> Score:
    """The model behind a mask for personal data; each query is masked once per batch."""

    def score(asks: Sequence[Ask]) -> Sequence[float | Failure]:
        queries = {query: mask_query(query) for query in {ask.query for ask in asks}}
        return model.score([Ask(queries[ask.query], ask.answer) for ask in asks])

    return score


class Overloaded(Exception):
    """Too many answers are waiting; `seconds` says when to try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many answers are waiting; try again in {seconds} s")
        self.seconds = seconds


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    ask: Ask
    arrived: float
    future: Future[float | Failure]


class Batcher:
    """`on_batch` is told of each call of the model: how many answers, how many of them failed, and the seconds."""

    def __init__(
        self, score: Score, limits: Limits, on_batch: Callable[[int, int, float], None] = lambda *_: None
    ) -> None:
        self._score, self._limits, self._on_batch = score, limits, on_batch
        self._condition = threading.Condition()
        self._waiting: dict[int, Waiting] = {}  # by arrival
        self._arrivals = 0
        self._pace = 0.0  # recent seconds per answer
        # a daemon: a model that hangs must not keep the process from ending
        threading.Thread(target=self._run, name="model", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def score(self, asks: Sequence[Ask], patience: float = 0.0) -> list[float | Failure]:
        """One result per ask. Waits up to `patience` seconds for room in the queue; some clients give up after a few
        retries. Cancelling removes what still waits."""
        end = time.monotonic() + patience
        while True:
            try:
                return list(await asyncio.gather(*map(asyncio.wrap_future, self.submit(asks))))
            except Overloaded:
                if time.monotonic() >= end:
                    raise
            await asyncio.sleep(0.05)

    def submit(self, asks: Sequence[Ask]) -> list[Future[float | Failure]]:
        """Accepts all of them or none."""
        futures = []
        with self._condition:
            if len(self._waiting) + len(asks) > self._limits.queue:
                raise Overloaded(min(60, max(1, math.ceil(self._pace * len(self._waiting)))))
            for ask in asks:
                self._arrivals += 1
                future: Future[float | Failure] = Future()
                self._waiting[self._arrivals] = Waiting(ask, time.monotonic(), future)
                future.add_done_callback(partial(self._remove, self._arrivals))
                futures.append(future)
            self._condition.notify()
        return futures

    def _remove(self, number: int, _: object) -> None:
        with self._condition:
            self._waiting.pop(number, None)  # still there only if it was cancelled

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting)
                # More answers may come: the window of the oldest one, longer while they keep coming to a slow model.
                # Clients that have just received their scores all come back at once. A batch that does not wait for
                # them splits them from the others for good, and their queries are read twice. A tenth of its time is
                # worth that.
                start = time.monotonic()
                while self._waiting and len(self._waiting) < self._limits.batch:
                    oldest, newest = next(iter(self._waiting.values())), next(reversed(self._waiting.values()))
                    patience = start + PATIENCE * self._pace * len(self._waiting)
                    quiet = max(newest.arrived, start) + self._limits.window
                    remaining = min(quiet, max(oldest.arrived + self._limits.window, patience)) - time.monotonic()
                    if remaining <= 0:
                        break
                    self._condition.wait(remaining)
                taken = [self._waiting.pop(number) for number in select_batch(self._waiting, self._limits.batch)]
                batch = [waiting for waiting in taken if waiting.future.set_running_or_notify_cancel()]
            if not batch:
                continue
            started = time.perf_counter()
            unique = list(dict.fromkeys(waiting.ask for waiting in batch))
            results = dict(zip(unique, score_isolated(self._score, unique), strict=True))
            seconds = time.perf_counter() - started
            self._pace = 0.7 * (self._pace or seconds / len(batch)) + 0.3 * seconds / len(batch)
            failed = sum(isinstance(results[waiting.ask], Failure) for waiting in batch)
            # reported before results go out: a client that has its score finds it counted
            self._on_batch(len(batch), failed, seconds)
            for waiting in batch:
                waiting.future.set_result(results[waiting.ask])


def select_batch(waiting: dict[int, Waiting], size: int) -> list[int]:
    """Which answers are scored next: query by query, the oldest first."""
    by_query: dict[Query, list[int]] = {}
    for number, entry in waiting.items():
        by_query.setdefault(entry.ask.query, []).append(number)
    return [number for numbers in by_query.values() for number in numbers][:size]


def query_length(query: Query) -> int:
    """Characters of a whole query."""
    parts = [*(post.text for post in query.posts), *(text for choice in query.choices for text in choice)]
    return sum(map(len, [query.question, *parts, *(turn.text for turn in query.context), *query.plan]))


def score_isolated(score: Score, asks: Sequence[Ask]) -> list[float | Failure]:
    """One result per ask. If the model raises, halves are retried until the ask that causes it is isolated."""

    def checked(asks: Sequence[Ask]) -> list[float | Failure]:
        results = [checked_reward(reward) for reward in score(asks)]
        if len(results) != len(asks):
            raise RuntimeError(f"the model returned {len(results)} scores for {len(asks)} answers")
        return results

    def failure(error: BaseException) -> Failure:
        log.error("the model failed: %s", place_of(error))
        return Failure(OUT_OF_MEMORY if is_out_of_memory(error) else MODEL_ERROR, type(error).__name__)

    # whatever it raises, SystemExit included: this thread must survive
    return compute_in_halves(checked, asks, retries=lambda _: True, failure=failure)


def place_of(error: BaseException) -> str:
    """Type and location of an exception, without its message: that may quote users' texts."""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ + (f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")
