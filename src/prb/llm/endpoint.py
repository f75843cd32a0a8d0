"""What every HTTP endpoint needs: address, key, an event loop in its own thread, retries, concurrency and budget."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import random
import re
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from prb.errors import BadInput, BadSpec
from prb.failures import Breaker
from prb.types import Failure, FailureKind

A = TypeVar("A")
T = TypeVar("T")


def check_url(url: str, option: str = "openai: base_url", example: str = "http://localhost:8000/v1") -> SplitResult:
    """The parts of a URL. Errors never repeat the URL itself, since it may hold a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # both raise on nonsense
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise BadSpec(f"{option} must be like {example}")
    if parts.username or parts.password or parts.query:
        raise BadSpec(f"{option} must not contain a user, a password or a query; key_env names the key's variable")
    return parts


def address_of(parts: SplitResult) -> str:
    """Scheme, host, port and path: another port or path may be another server with other weights."""
    usual = {"http": 80, "https": 443}[parts.scheme]
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(name: str, *, needed: bool, use: str = "openai") -> str:
    key = os.environ.get(name, "").strip()
    if needed and not key:
        raise BadInput(f"{use}: {name} is not set; it must hold the key (any text if the server checks none)")
    if not re.fullmatch(r"[!-~]*", key):
        raise BadInput(f"{use}: the key in {name} contains invalid characters; copy it again")
    return key


def cleaner(key: str) -> Callable[[str], str]:
    """One line of at most 200 characters without the key, whole or truncated; its first characters give it away."""
    secret = re.compile(re.escape(key[:8]) + r"\S*" if len(key) > 8 else re.escape(key)) if key else None

    def clean(text: str) -> str:
        text = secret.sub("[key]", text) if secret else text
        return " ".join(text.split())[:200]

    return clean


def parse(content: bytes) -> Any:
    """JSON, including the NaN and Infinity that some servers write as log-probabilities; `None` if it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def message_of(body: Any) -> str:
    """A server's error message, in whichever of the usual shapes."""
    match body:
        case {"error": {"message": str(text)}} | {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return text
        case None:
            return ""
    return body if isinstance(body, str) else json.dumps(body)


class Closable(Protocol):
    """What lives on the loop, such as an HTTP client."""

    def aclose(self) -> Awaitable[Any]: ...


C = TypeVar("C", bound=Closable)


class Background(Generic[C]):
    """Runs coroutines from any thread, notebook or server on one loop, which ends with its owner.

    `make` is called when the thread starts, and again in a forked child, where threads do not survive; it must hold no
    reference to the owner. Coroutines find what it returned in `made`.
    """

    made: C

    def __init__(self, name: str, make: Callable[[], C]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if not (self._thread and self._thread.is_alive()):  # it is dead in a forked child
                self._loop, self.made = asyncio.new_event_loop(), self._make()
                loop = (self._loop, self.made)
                self._thread = threading.Thread(target=_run_loop, args=loop, name=self._name, daemon=True)
                self._thread.start()
                weakref.finalize(self, _stop_loop, self._loop)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt must not wait for replies
            raise


def _run_loop(loop: asyncio.AbstractEventLoop, made: Closable) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(made.aclose())
    loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(loop.stop)


RETRIED = {408, 409, 429}
"""HTTP statuses that are retried, besides all from 500 on."""
OVERLOADED = {429, 503, 529}
FATAL = {401, 402, 403, 404, 405}
"""Statuses that every further request would get too: key, payment, permission, unknown model or route."""
LONGEST_WAIT = 300.0
"""Seconds; if a server asks for more (a daily quota, say), the request fails instead."""


@dataclass(frozen=True)
class Retry:
    """Why a request failed that is worth repeating."""

    why: str
    asked: float = 0.0
    """Seconds the server asked to wait."""
    overloaded: bool = False
    kind: FailureKind = "transient"
    """Of the failure if no repetition helps."""

    @property
    def too_long(self) -> str:
        """The error message if the server asks for a longer wait than we allow; else empty."""
        return f"asks to wait {self.asked:.0f} s: {self.why}" if self.asked > LONGEST_WAIT else ""


@dataclass(frozen=True)
class Backoff:
    """Exponential with full jitter: a random wait below a bound that doubles, so that retries spread out."""

    first: float = 0.5
    longest: float = 30.0

    def wait(self, tries: int, rng: random.Random, asked: float = 0.0) -> float:
        """Seconds to wait after this many failed tries; never less than the server asked for."""
        return asked + rng.uniform(0, min(self.longest, self.first * 2.0 ** min(tries - 1, 60)))


BACKOFF = Backoff()


def retry_status(status: int, why: str, header: str | None, now: float) -> Retry | None:
    """Whether an HTTP status is retried; `header` is its Retry-After."""
    if status in RETRIED or status >= 500:
        return Retry(why, retry_after(header, now), overloaded=status in OVERLOADED)
    return None


def retry_after(header: str | None, now: float) -> float:
    """Seconds to wait by a Retry-After header, a number or a date; 0 if it cannot be read."""
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return 0.0
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


class Limiter:
    """How many requests may be in flight: one more after each success, half as many on overload, from 1 to `most`.

    It is halved at most once per round: requests sent before the halving, and the first ones after it, say nothing
    about the new limit. Where overload keeps coming back, growth is slower, so that a busy server is not hammered.
    """

    def __init__(self, most: int, start: int = 16) -> None:
        self.active = 0
        self._most = most
        self._limit = float(min(start, most))
        self._overloads = 0.0
        """Share of overload among the last 64 or so requests."""
        self._sent = 0
        self._cut = 0
        """The last request that says nothing about the limit since it was halved: one round after the halving."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._admitting = False

    @property
    def limit(self) -> int:
        return int(self._limit)

    async def enter(self) -> int:
        """Wait for a slot, first come first served; the ticket is for `leave`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free()
            raise
        self._sent += 1
        return self._sent

    def leave(self, ticket: int, *, ok: bool = False, overloaded: bool = False) -> None:
        if ok or overloaded:
            self._overloads += (overloaded - self._overloads) / 64
        if overloaded and ticket > self._cut:
            self._limit = max(1.0, self._limit / 2)
            self._cut = self._sent + self.limit
        elif ok:
            self._limit = min(self._most, self._limit + max(0.1, 1 - 4 * self._overloads))
        self._free()

    async def send(
        self, request: Callable[[], Awaitable[T | Failure | Retry]], breaker: Breaker
    ) -> T | Failure | Retry:
        """Send when there is a slot, unless the breaker has tripped by then; the reply moves the limit."""
        ticket = await self.enter()
        reply: T | Failure | Retry | None = None
        try:
            reply = breaker.tripped or await request()
        finally:
            overloaded = isinstance(reply, Retry) and reply.overloaded
            self.leave(ticket, ok=not isinstance(reply, Retry | Failure | None), overloaded=overloaded)
        return reply

    def _free(self) -> None:
        self.active -= 1
        self._admit()

    def _admit(self) -> None:
        """One request per turn of the event loop, so that the first of many is sent before the last is prepared."""
        if self._waiting and self.active < self.limit and not self._admitting:
            self._admitting = True
            asyncio.get_running_loop().call_soon(self._let_in)

    def _let_in(self) -> None:
        self._admitting = False
        while self._waiting and self.active < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.active += 1
                turn.set_result(None)
                break
        self._admit()


async def persist(
    attempt: Callable[[int], Awaitable[T | Failure | Retry]],
    *,
    reason: str,
    retries: int,
    rng: random.Random,
    backoff: Backoff = BACKOFF,
    hopeless: Callable[[Retry], bool] = lambda _: False,
) -> T | Failure:
    """Try until there is an answer, a refusal, or no point in trying again; `attempt` gets the tries so far."""
    tries = 0
    while isinstance(reply := await attempt(tries), Retry):
        tries += 1
        if hopeless(reply) or reply.too_long or tries > retries:
            return Failure(reason, reply.too_long or f"after {tries} tries: {reply.why}", kind=reply.kind)
        await asyncio.sleep(backoff.wait(tries, rng, reply.asked))
    return reply


async def answer_all(
    asks: Sequence[A], answer: Callable[[A], Awaitable[T | Failure]], slots: int, breaker: Breaker
) -> list[T | Failure]:
    """One answer per ask, sent in this order. Where the breaker trips, the remaining asks share its failure.

    Twice as many workers as slots, since one that waits to retry leaves its slot to another.
    """
    results: dict[int, T | Failure] = {}
    queue = enumerate(asks)

    async def work() -> None:
        for n, ask in queue:
            results[n] = breaker.tripped or await answer(ask)
            breaker.add(results[n])

    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(asks), 2 * slots)):
            group.create_task(work())
    return [results[n] for n in range(len(asks))]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Requests sent to an endpoint and what they cost."""

    requests: int = 0
    """Sent at least once."""
    retries: int = 0
    """Sent again, for whatever reason."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    """Replies without token counts, counted as one token per four characters."""
    cost: float = 0.0
    """US dollars."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """US dollars per million tokens."""

    prompt: float = 0.0
    completion: float = 0.0

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


class Budget:
    """Counts spending against limits. Cost is computed from total tokens, so that no rounding adds up."""

    def __init__(
        self, prices: Prices | None = None, max_usd: float | None = None, max_tokens: int | None = None
    ) -> None:
        self.spent = Spent()
        self._prices = prices or Prices()
        self._max_usd = max_usd
        self._max_tokens = max_tokens

    def used_up(self) -> str:
        """Which limit has been reached, in words; empty while none has."""
        tokens = self.spent.prompt_tokens + self.spent.completion_tokens
        if self._max_tokens is not None and tokens >= self._max_tokens:
            return f"{tokens:,} of {self._max_tokens:,} tokens"
        if self._max_usd is not None and self.spent.cost >= self._max_usd:
            return f"${self.spent.cost:.4f} of ${self._max_usd:.4f}"
        return ""

    def sent(self, *, again: bool) -> None:
        now = self.spent
        self.spent = replace(now, retries=now.retries + 1) if again else replace(now, requests=now.requests + 1)

    def charge(self, prompt_tokens: int, completion_tokens: int, *, estimated: bool = False) -> float:
        """Count one reply; returns what it cost."""
        now = self.spent
        prompt, completion = now.prompt_tokens + prompt_tokens, now.completion_tokens + completion_tokens
        self.spent = replace(
            now,
            prompt_tokens=prompt,
            completion_tokens=completion,
            estimated=now.estimated + estimated,
            cost=self._prices.cost(prompt, completion),
        )
        return self._prices.cost(prompt_tokens, completion_tokens)


def tokens_of(*texts: str) -> int:
    """An estimate for endpoints that return no counts: one token per four characters."""
    return math.ceil(sum(map(len, texts)) / 4)
