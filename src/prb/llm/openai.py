"""Any endpoint that speaks the OpenAI chat protocol: vendors, vLLM, SGLang, llama.cpp, Ollama.

The SDK speaks HTTP; when to ask again, how much at once and when to stop is decided here and in `pacing`. Every
request ends as a completion or as a failure with its reason; one that failed never becomes an empty text.
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
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from prb.errors import BadInput, BadSpec, MissingExtra
from prb.llm import LLM, LLMS, Completion, Request
from prb.llm.pacing import BACKOFF, Again, Backoff, Budget, Limiter, Prices, Spent, again_after, tokens_of
from prb.types import Failure

VENDOR = "https://api.openai.com/v1"
ADAPTABLE = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "top_logprobs")
"""Parameters that some models do not take; a request is sent again without them, `max_tokens` under its newer name."""
NOT_TAKEN = re.compile(
    r"unsupported|n[o']t support|unrecogni[sz]ed|unknown|unexpected|not allowed|not permitted|only the default", re.I
)


@LLMS.register("openai")
def openai(
    model: str,
    base_url: str | None = None,
    key_env: str = "OPENAI_API_KEY",
    concurrency: int = 64,
    timeout: float = 120.0,
    retries: int = 6,
    max_usd: float | None = None,
    max_tokens_total: int | None = None,
    usd_in: float = 0.0,
    usd_out: float = 0.0,
) -> LLM:
    """Chat endpoint of OpenAI or of anything compatible.

    Without `base_url` it is $OPENAI_BASE_URL, else OpenAI. The key comes from the environment variable `key_env` alone;
    a server on this machine needs none. A server may be silent for `timeout` seconds, and take twice that in all.
    `usd_in` and `usd_out` are dollars for a million tokens. Once `max_usd` or `max_tokens_total` is reached nothing
    more is sent; up to `concurrency` requests under way are still paid. Tokens are those of the reply's `usage`; where
    it has none, characters / 4.
    """
    if max_usd is not None and not (usd_in or usd_out):
        raise BadSpec("openai: max_usd needs the prices usd_in and usd_out (dollars for a million tokens)")
    budget = Budget(Prices(prompt=usd_in, completion=usd_out), max_usd, max_tokens_total)
    url = base_url or os.environ.get("OPENAI_BASE_URL") or VENDOR
    return Endpoint(
        model, url, key_env=key_env, concurrency=concurrency, timeout=timeout, retries=retries, budget=budget
    )


@dataclass(frozen=True)
class NotTaken:
    """The parameter a model does not take, and what to report if there is no way around it."""

    parameter: str
    failure: Failure


class Endpoint:
    """Requests run on an event loop in a thread of its own, so connections last from call to call and `complete` works
    inside other event loops (notebooks, servers) and from several threads."""

    def __init__(
        self,
        model: str,
        url: str,
        *,
        key_env: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout: float = 120.0,
        retries: int = 6,
        budget: Budget | None = None,
        backoff: Backoff = BACKOFF,
    ) -> None:
        if not (1 <= concurrency <= 1000 and timeout > 0 and retries >= 0):
            raise BadSpec("openai: concurrency is 1 to 1000, timeout above 0, retries not below 0")
        host = host_of(url)
        self.remote = not is_loopback(host)
        self.fingerprint = f"openai-{model}@{host}"
        self._model, self._timeout, self._retries = model, timeout, retries
        self._budget = budget or Budget()
        self._backoff, self._rng = backoff, random.Random(0)  # noqa: S311
        self._most = concurrency
        self._not_taken: frozenset[str] = frozenset()
        self._sdk = _import_sdk()
        key = read_key(key_env, needed=self.remote)
        self._clean = cleaner(key)
        self._connect = _connector(self._sdk, url, key, timeout, local=not self.remote)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<{self.fingerprint}>"

    @property
    def spent(self) -> Spent:
        return self._budget.spent

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        self._start()
        future = asyncio.run_coroutine_threadsafe(self._complete(requests), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt does not wait for replies
            raise

    def _start(self) -> None:
        with self._lock:
            if self._thread and self._thread.is_alive():  # it is not in a forked child
                return
            self._loop, self._client, self._limiter = asyncio.new_event_loop(), self._connect(), Limiter(self._most)
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop, self._client), name=self.fingerprint, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _stop_loop, self._loop)

    async def _complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        """Twice as many workers as slots, since one that waits to try again leaves its slot to another."""
        results: dict[int, Completion | Failure] = {}
        queue = enumerate(requests)

        async def work() -> None:
            for n, request in queue:
                results[n] = await self._answer(request)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(requests), 2 * self._most)):
                group.create_task(work())
        return [results[n] for n in range(len(requests))]

    async def _answer(self, request: Request) -> Completion | Failure:
        tries = 0
        while isinstance(reply := await self._try(request, again=tries > 0), Again):
            tries += 1
            if reply.too_long or tries > self._retries:
                return Failure("endpoint failed", reply.too_long or f"after {tries} tries: {reply.why}")
            await asyncio.sleep(self._backoff.wait(tries, self._rng, reply.asked))
        return reply

    async def _try(self, request: Request, again: bool) -> Completion | Failure | Again:
        ticket = await self._limiter.enter()
        reply: Completion | Failure | Again | None = None
        try:
            reply = await self._adapted(request, again)
        finally:
            overloaded = isinstance(reply, Again) and reply.overloaded
            self._limiter.leave(ticket, ok=isinstance(reply, Completion), overloaded=overloaded)
        return reply

    async def _adapted(self, request: Request, again: bool) -> Completion | Failure | Again:
        """Send; where the model does not take a parameter, send without it, and remember that if it helps."""
        not_taken = self._not_taken
        while True:
            if limit := self._budget.used_up():
                return Failure("budget used up", limit)
            self._budget.sent(again=again)
            body = wire(self._model, request, not_taken)
            reply = await self._send(body)
            if not isinstance(reply, NotTaken):
                break
            if reply.parameter in not_taken:
                return reply.failure
            not_taken, again = not_taken | {reply.parameter}, True
        if isinstance(reply, Again | Failure):
            return reply
        self._not_taken |= not_taken
        return self._read(request, reply)

    async def _send(self, body: dict[str, Any]) -> bytes | Again | Failure | NotTaken:
        try:
            async with asyncio.timeout(2 * self._timeout):  # the SDK's own is about silence alone
                return bytes(await self._client.post("/chat/completions", cast_to=bytes, body=body))
        except self._sdk.APITimeoutError:
            return Again(f"no reply within {self._timeout:g} s", overloaded=True)
        except TimeoutError:
            return Again(f"no whole reply within {2 * self._timeout:g} s", overloaded=True)
        except self._sdk.APIConnectionError as error:
            return Again(self._clean(f"connection: {error.__cause__ or error}"))
        except self._sdk.APIStatusError as error:
            return self._refused(error, body)
        except Exception as error:  # texts that cannot be sent, such as half a surrogate pair
            return Failure("request cannot be sent", self._clean(f"{type(error).__name__}: {error}"))

    def _refused(self, error: Any, body: Mapping[str, Any]) -> Again | Failure | NotTaken:
        status, failure = error.status_code, Failure(f"HTTP {error.status_code}", self._clean(message_of(error.body)))
        if again := again_after(status, str(failure), error.response.headers.get("retry-after"), time.time()):
            return again
        parameter = parameter_not_taken(error.body, body) if status in (400, 422) else None
        return NotTaken(parameter, failure) if parameter else failure

    def _read(self, request: Request, content: bytes) -> Completion | Failure | Again:
        data = parse(content)
        choice = first_choice(data)
        if choice is None:
            if usage := usage_of(data):
                self._budget.charge(*usage)
            said = message_of(data) if data else content[:200].decode("utf-8", "replace")
            return Again(self._clean(f"no completion in the reply: {said}"))
        text, why_empty = text_of(choice)
        usage = usage_of(data)
        prompt, completion = usage or (tokens_of(*(m.text for m in request.chat)), tokens_of(text))
        cost = self._budget.charge(prompt, completion, estimated=usage is None)
        first = first_token(choice)
        if why_empty and not (first and why_empty.reason == "empty reply"):
            return Failure(why_empty.reason, self._clean(why_empty.detail), prompt, completion, cost)
        return Completion(
            text=text,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost=cost,
            first=first,
            truncated=choice.get("finish_reason") == "length",
        )


def wire(model: str, request: Request, not_taken: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The body of a request, without the parameters the model does not take."""
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
    if sampling.top_logprobs > 0 and not not_taken & {"logprobs", "top_logprobs"}:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    if "max_tokens" in not_taken:
        body["max_completion_tokens"] = sampling.max_tokens
    return {key: value for key, value in body.items() if key not in not_taken}


def parse(content: bytes) -> Any:
    """JSON, with the NaN and Infinity that some servers write as log-probabilities; `None` where it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def first_choice(data: Any) -> Mapping[str, Any] | None:
    match data:
        case {"choices": [{"message": {"content": str() | None} | {"refusal": str()}} as choice, *_]}:
            return dict(choice)
    return None


def text_of(choice: Mapping[str, Any]) -> tuple[str, Failure | None]:
    """The text, and what is wrong with it if it is not an answer."""
    message, reason = choice["message"], choice.get("finish_reason")
    text = message.get("content") or ""
    if message.get("refusal"):
        return text, Failure("refused", str(message["refusal"]))
    if reason == "content_filter":
        return text, Failure("stopped by the endpoint's content filter")
    return text, None if text else Failure("empty reply", f"finish_reason {reason}")


def first_token(choice: Mapping[str, Any]) -> dict[str, float]:
    """Log-probabilities of the first token; a token spelled twice keeps the likelier one."""
    match choice.get("logprobs"):
        case {"content": [{"top_logprobs": [*top]} as chosen, *_]}:
            found: dict[str, float] = {}
            for entry in (*top, chosen):
                match entry:
                    case {"token": str(token), "logprob": int() | float() as logprob} if not math.isnan(logprob):
                        found[token] = max(float(logprob), found.get(token, -math.inf))
            return found
    return {}


def usage_of(data: Any) -> tuple[int, int] | None:
    match data:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion)}}:
            return prompt, completion
    return None


def message_of(body: Any) -> str:
    """What a server says is wrong, in whichever of the usual shapes."""
    match body:
        case {"error": {"message": str(text)}} | {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return text
        case None:
            return ""
    return body if isinstance(body, str) else json.dumps(body)


def parameter_not_taken(body: Any, sent: Mapping[str, Any]) -> str | None:
    """Which of the parameters sent a refusal says the model does not take."""
    text = body if isinstance(body, str) else json.dumps(body)
    if not NOT_TAKEN.search(text):
        return None
    named = body.get("param") if isinstance(body, dict) else None
    mentioned = [name for name in ADAPTABLE if name in sent and re.search(rf"\b{name}\b", text)]
    return named if named in mentioned else next(iter(mentioned), None)


def host_of(url: str) -> str:
    """The host of a base_url; the URL itself is never repeated in an error, since it may hold a password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # each raises on nonsense
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise BadSpec("openai: base_url must be like http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise BadSpec("openai: base_url may not hold a user, a password or a query; a key goes into key_env")
    return host


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(name: str, *, needed: bool) -> str:
    key = os.environ.get(name, "").strip()
    if needed and not key:
        raise BadInput(f"openai: the environment variable {name} holds no key (any text will do if none is checked)")
    if not re.fullmatch(r"[!-~]*", key):
        raise BadInput(f"openai: the key in {name} has characters that no key has; copy it again")
    return key


def cleaner(key: str) -> Callable[[str], str]:
    """One line of at most 200 characters without the key, whole or shortened; its first characters give it away."""
    secret = re.compile(re.escape(key[:8]) + r"\S*" if len(key) > 8 else re.escape(key)) if key else None

    def clean(text: str) -> str:
        text = secret.sub("[key]", text) if secret else text
        return " ".join(text.split())[:200]

    return clean


def _import_sdk() -> Any:
    try:
        import openai as sdk
    except ImportError:
        raise MissingExtra("an API endpoint", "api") from None
    return sdk


def _connector(sdk: Any, url: str, key: str, timeout: float, *, local: bool) -> Callable[[], Any]:
    """Makes a client. To this machine without proxies or redirects, so that texts do not leave it that way."""

    def connect() -> Any:
        http = sdk.DefaultAsyncHttpxClient(trust_env=False, follow_redirects=False) if local else None
        return sdk.AsyncOpenAI(api_key=key or "none", base_url=url, max_retries=0, timeout=timeout, http_client=http)

    return connect


def _run_loop(loop: asyncio.AbstractEventLoop, client: Any) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(client.close())
    loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(loop.stop)
