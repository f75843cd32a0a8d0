"""The one client for everything that is asked over HTTP, and the OpenAI chat protocol on top of it.

Chat endpoints (`openai/…`: vendors, vLLM, SGLang, llama.cpp, Ollama) and served reward models use the same `Client`. It
runs on an event loop in a thread, retries what may pass, finds out how many requests a server takes at once, and
reads at most `MAX_REPLY` bytes of a reply, decompressed. Every request ends as a value or as a failure with its reason.
The `openai` SDK is not used: it reads replies of any size, and its retries keep their slot while they wait, are not
counted, and continue when the budget is used up.
"""

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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import orjson
from pydantic import Field

from prb.config import NonNegative, Positive, Size
from prb.errors import BadInput, BadSpec, MissingExtra, redact, remember_secret
from prb.llm import LLMS, Completion, JsonObject, Request, options_suffix
from prb.llm.asking import top_logprobs
from prb.types import Failure, FailureKind
from prb.work import Breaker, planned_calls

A = TypeVar("A")
T = TypeVar("T")

Concurrency = Annotated[int, Field(ge=1, le=1000)]
MAX_REPLY = 32 * 2**20
"""Bytes of a reply, decompressed; no sensible one is longer."""
RETRIED = {408, 409, 429}
"""HTTP statuses that are retried, besides all from 500 on."""
FATAL = {401, 402, 403, 404, 405}
"""Statuses that every further request would get too: key, payment, permission, unknown model or route."""
LONGEST_WAIT = 300.0
"""Seconds; if a server asks for more (a daily quota, say), the request fails instead."""


def read_address(url: str, use: str) -> tuple[str, bool]:
    """Scheme, host, port and path, since another port or path may be another server with other weights; and whether it
    is another machine. Errors never repeat the URL itself, since it may hold a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port  # both raise on nonsense
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        raise BadSpec(f"{use}: its URL must be like http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise BadSpec(f"{use}: its URL must not contain a user, password or query; key_env names the key's variable")
    remote = host != "localhost"
    with contextlib.suppress(ValueError):  # a name
        remote = not ipaddress.ip_address(host).is_loopback
    shown = f"[{host}]" if ":" in host else host
    shown += "" if port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{shown}{parts.path.rstrip('/')}", remote


def clean(text: str) -> str:
    """One line of at most 200 characters without secrets."""
    return " ".join(redact(text).split())[:200]


def parse(content: bytes) -> Any:
    """JSON, including the NaN and Infinity that some servers write as log-probabilities; `None` if it is not JSON."""
    try:  # an absurdly long integer is read as a float, which makes it infinite instead of an error
        return json.loads(content, parse_int=lambda digits: int(digits) if len(digits) <= 40 else float(digits))
    except (ValueError, RecursionError):
        return None


def message_of(content: bytes) -> str:
    """A server's error message, in whichever of the usual shapes; else the beginning of the reply."""
    match parse(content):
        case {"error": {"message": str(text)}} | {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return clean(text)
    return clean(content[:1000].decode("utf-8", "replace"))


class Response(NamedTuple):
    status: int
    content: bytes
    retry_after: str | None = None


@dataclass(frozen=True)
class Retry:
    """Why a request failed that is worth repeating."""

    why: str
    asked: float = 0.0
    """Seconds the server asked to wait."""
    overloaded: bool = False
    kind: FailureKind = "transient"
    """Of the failure if no repetition helps."""


def retry_pause(tries: int, asked: float) -> float:
    """Seconds to wait after this many failed tries: what the server asked for, and a random time below a bound that
    doubles, so that retries spread out."""
    return asked + random.uniform(0, min(30.0, 0.5 * 2.0 ** min(tries - 1, 10)))  # noqa: S311


def refusal(response: Response) -> Retry | Failure:
    """What a status that is not 200 means: worth another try, or the failure of this row or of the endpoint."""
    status = response.status
    failure = Failure(f"HTTP {status}", message_of(response.content), kind="row")
    if status in RETRIED or status >= 500:
        return Retry(str(failure), retry_after(response.retry_after), overloaded=status in (429, 503, 529))
    return replace(failure, kind="fatal") if status in FATAL or status < 400 else failure


def retry_after(header: str | None) -> float:
    """Seconds to wait by a Retry-After header; 0 if it is no number."""
    with contextlib.suppress(ValueError):
        seconds = float(header or 0)
        return min(max(0.0, seconds), 1e9) if math.isfinite(seconds) else 0.0
    return 0.0


class Limiter:
    """How many requests may be in flight, from 1 to `most`: one more after each success, half as many on overload.

    It is halved at most once per round: requests sent before the halving, and the first ones after it, say nothing
    about the new limit. Where overload keeps coming back it grows more slowly, so that a busy server is not hammered.
    """

    def __init__(self, most: int, start: int = 16) -> None:
        self._most, self._limit = most, float(min(start, most))
        self._overloads = 0.0
        """Share of overload among the last 64 or so requests."""
        self._slots, self._places = asyncio.Semaphore(self.limit), self.limit
        """Free slots, and all slots; while there are too many, those that are left are not used again."""
        self._sent = 0
        self._cut = 0
        """The last request that says nothing about the limit since it was halved: one round after the halving."""

    @property
    def limit(self) -> int:
        return int(self._limit)

    async def enter(self) -> int:
        """Wait for a slot, first come first served; the ticket is for `leave`."""
        await self._slots.acquire()
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
        self._places -= 1
        while self._places < self.limit:
            self._places += 1
            self._slots.release()


class Client:
    """Asks one server, from any thread or notebook."""

    def __init__(
        self,
        url: str,
        *,
        use: str,
        key_env: str | None = None,
        key_needed: bool = True,
        concurrency: int = 64,
        timeout: float = 120.0,
        retries: int = 6,
    ) -> None:
        self.address, self.remote = read_address(url, use)
        self.timeout = timeout
        try:
            import httpx2 as httpx
        except ImportError:
            raise MissingExtra("an endpoint", "api") from None
        self._httpx: Any = httpx
        key = os.environ.get(key_env, "").strip() if key_env else ""
        if key_env and not key and (key_needed or self.remote) and planned_calls.get() is None:  # a dry run needs none
            raise BadInput(f"{use}: {key_env} is not set; it must hold the key (any text if the server checks none)")
        if not re.fullmatch(r"[!-~]*", key):
            raise BadInput(f"{use}: the key in {key_env} contains invalid characters; copy it again")
        remember_secret(key)
        self._concurrency, self._retries, self._limiter = concurrency, retries, Limiter(concurrency)
        self._http: Any = httpx.AsyncClient(
            base_url=self.address,
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
            # to this machine without proxies, and nowhere along redirects, so that texts do not leave it
            trust_env=self.remote,
            verify=self.address.startswith("https:"),  # certificates take a while to load
        )

    def ask(self, asks: Sequence[A], attempt: Callable[[A], Awaitable[T | Failure | Retry]]) -> list[T | Failure]:
        """One result per ask, sent in this order.

        After a few fatal failures in a row the remaining asks share the last one.
        """

        async def ask_all() -> list[T | Failure]:
            """Twice as many workers as slots, since one that waits to retry leaves its slot to another."""
            results: dict[int, T | Failure] = {}
            queue, breaker = enumerate(asks), Breaker()

            async def work() -> None:
                for n, ask in queue:
                    results[n] = await self._persist(ask, attempt, breaker)
                    breaker.add(results[n])

            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(asks), 2 * self._concurrency)):
                    group.create_task(work())
            return [results[n] for n in range(len(asks))]

        return self.run(ask_all())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the client's own loop, whichever thread or loop this one is."""
        future = asyncio.run_coroutine_threadsafe(work, _event_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt must not wait for replies
            raise

    async def _persist(
        self, ask: A, attempt: Callable[[A], Awaitable[T | Failure | Retry]], breaker: Breaker
    ) -> T | Failure:
        """Try until there is an answer, a refusal, or no point in trying again; the reply moves the limit."""
        for tries in count(1):
            ticket = await self._limiter.enter()
            reply: T | Failure | Retry | None = None
            try:
                reply = breaker.tripped or await attempt(ask)
            finally:
                overloaded = isinstance(reply, Retry) and reply.overloaded
                self._limiter.leave(ticket, ok=not isinstance(reply, Retry | Failure | None), overloaded=overloaded)
            if not isinstance(reply, Retry):
                return reply
            if reply.asked > LONGEST_WAIT or tries > self._retries:
                asked = f"asks to wait {reply.asked:.0f} s" if reply.asked > LONGEST_WAIT else f"after {tries} tries"
                return Failure("endpoint failed", f"{asked}: {reply.why}", kind=reply.kind)
            await asyncio.sleep(retry_pause(tries, reply.asked))
        raise AssertionError

    async def exchange(self, method: str, path: str, body: Any = None) -> Response | Retry | Failure:
        """One request and its reply, whatever its status."""
        try:
            content = None if body is None else orjson.dumps(body)
        except TypeError as error:  # such as a lone surrogate
            return Failure("request cannot be sent", clean(str(error)))
        received = bytearray()
        try:
            async with (
                asyncio.timeout(2 * self.timeout),  # the library's own timeout only limits silence
                self._http.stream(method, path, content=content) as response,
            ):
                async for part in response.aiter_bytes():
                    received += part
                    if len(received) > MAX_REPLY:
                        return Failure("reply too long", f"more than {MAX_REPLY // 2**20} MB")
            return Response(response.status_code, bytes(received), response.headers.get("retry-after"))
        except self._httpx.ConnectTimeout:
            return Retry("no connection in time", kind="fatal")
        except (self._httpx.TimeoutException, TimeoutError):
            return Retry(f"no whole reply, or none, within {self.timeout:g} s", overloaded=True)
        except self._httpx.HTTPError as error:
            refused = isinstance(error, self._httpx.ConnectError)
            why = clean(f"connection: {str(error) or type(error).__name__}")
            return Retry(why, kind="fatal" if refused else "transient")


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop of all clients, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="prb-http", daemon=True).start()
    return loop


@dataclass
class Budget:
    """What replies have cost, in US dollars, and how much they may."""

    usd_in: float = 0.0
    """Per million tokens that are read."""
    usd_out: float = 0.0
    """Per million tokens that are written."""
    max_usd: float | None = None
    spent: float = 0.0

    def charge(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Count one reply; returns what it cost."""
        cost = (prompt_tokens * self.usd_in + completion_tokens * self.usd_out) / 1e6
        self.spent += cost
        return cost


def tokens_of(*texts: str) -> int:
    """An estimate for endpoints that return no counts: one token per four characters."""
    return math.ceil(sum(map(len, texts)) / 4)


ADAPTABLE = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "top_logprobs")
"""Parameters that some models reject; the request is sent again without them, `max_tokens` under its newer name."""
REJECTION = re.compile(
    r"unsupported|n[o']t support|unrecogni[sz]ed|unknown|unexpected|not allowed|not permitted|only the default", re.I
)


@LLMS.register("openai")
class Endpoint:
    """Chat endpoint of OpenAI or of anything compatible.

    `base_url` defaults to $OPENAI_BASE_URL, else OpenAI. The key comes only from the environment variable `key_env`; a
    server on this machine needs none. A server may be silent for `timeout` seconds, and take twice that in total.
    `usd_in` and `usd_out` are dollars per million tokens. Once `max_usd` is reached, nothing more is sent; up to
    `concurrency` requests in flight are still paid. Tokens are those of the reply's `usage`; where it has none,
    characters / 4. `chat_template_kwargs` (for vLLM and SGLang, e.g. `{"enable_thinking": false}`) and
    `extra_body` are JSON objects sent along with every request.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        key_env: str = "OPENAI_API_KEY",
        concurrency: Concurrency = 64,
        timeout: Positive = 120.0,
        retries: Size = 6,
        max_usd: NonNegative | None = None,
        usd_in: NonNegative = 0.0,
        usd_out: NonNegative = 0.0,
        chat_template_kwargs: JsonObject | None = None,
        extra_body: JsonObject | None = None,
    ) -> None:
        if max_usd is not None and not (usd_in or usd_out):
            raise BadSpec("openai: max_usd needs the prices usd_in and usd_out (dollars per million tokens)")
        template = {"chat_template_kwargs": chat_template_kwargs} if chat_template_kwargs else {}
        self._model, self._extra = model, {**(extra_body or {}), **template}
        self._budget = Budget(usd_in, usd_out, max_usd)
        self._rejected: frozenset[str] = frozenset()
        if reserved := self._extra.keys() & request_body(model, Request(())).keys():
            raise BadSpec(f"openai: extra_body must not contain {', '.join(sorted(reserved))}, which prb sets itself")
        self._client = Client(
            base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1",
            use="openai",
            key_env=key_env,
            key_needed=False,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
        )
        self.remote = self._client.remote
        self.fingerprint = f"openai-{model}@{self._client.address}{options_suffix(self._extra)}"

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        return self._client.ask(requests, self._attempt)

    async def _attempt(self, request: Request) -> Completion | Failure | Retry:
        """Send; where the model rejects a parameter, send without it, from now on."""
        while True:
            spent, most = self._budget.spent, self._budget.max_usd
            if most is not None and spent >= most:
                return Failure("budget used up", f"${spent:.4f} of ${most:.4f}", kind="budget")
            body = request_body(self._model, request, self._rejected, self._extra)
            response = await self._client.exchange("POST", "/chat/completions", body)
            if not isinstance(response, Response):
                return response
            if response.status == 200:
                return self._read(request, response.content)
            named: list[str] = []
            message = response.content[:10_000].decode("utf-8", "replace")
            if response.status in (400, 422) and REJECTION.search(message):
                named = [name for name in ADAPTABLE if name in body and re.search(rf"\b{name}\b", message)]
            if not named:
                return refusal(response)
            self._rejected |= {named[0]}

    def _read(self, request: Request, content: bytes) -> Completion | Failure | Retry:
        data, usage = parse(content), None
        match data:  # counts that are missing or cannot be true are estimated, so that no server sets our costs
            case {"usage": {"prompt_tokens": read, "completion_tokens": written}}:
                if all(type(tokens) is int and 0 <= tokens <= 10**9 for tokens in (read, written)):
                    usage = read, written
        match data:
            case {"choices": [{"message": {"content": str() | None} | {"refusal": str()} as message} as choice, *_]}:
                pass
            case _:
                if usage:
                    self._budget.charge(*usage)
                return Retry(f"no completion in the reply, expected choices[0].message.content: {message_of(content)}")
        text, reason = message.get("content") or "", choice.get("finish_reason")
        prompt, completion = usage or (tokens_of(*(m.text for m in request.chat)), tokens_of(text))
        cost = self._budget.charge(prompt, completion)
        first: dict[str, float] = {}
        match choice.get("logprobs"):
            # unless the first token belongs to thinking that the server returns apart
            case {"content": [token, *_]} if not (message.get("reasoning_content") or message.get("reasoning")):
                first = top_logprobs(token)
        if message.get("refusal"):
            return Failure("refused", clean(str(message["refusal"])), prompt, completion, cost)
        if reason == "content_filter":
            return Failure("stopped by the endpoint's content filter", "", prompt, completion, cost)
        if not text and not first:
            return Failure("empty reply", clean(f"finish_reason {reason}"), prompt, completion, cost)
        return Completion(
            text=redact(text),
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=cost,
            first=first,
            truncated=reason == "length",
        )


def request_body(
    model: str,
    request: Request,
    rejected: frozenset[str] = frozenset(),
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Without the parameters that the model rejects, and with the extra ones of this endpoint."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.text} for message in request.chat],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
    }
    if sampling.top_p != 1.0:
        body["top_p"] = sampling.top_p
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.top_logprobs > 0 and not rejected & {"logprobs", "top_logprobs"}:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    if "max_tokens" in rejected:
        body["max_completion_tokens"] = sampling.max_tokens
    return {**extra, **{key: value for key, value in body.items() if key not in rejected}}
