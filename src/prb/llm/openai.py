"""Any endpoint that speaks the OpenAI chat protocol: vendors, vLLM, SGLang, llama.cpp, Ollama.

The SDK sends requests. Retries, concurrency and budget are ours (here and in `endpoint`): the SDK's own retries hold
their slot while they wait, are not counted, and continue when the budget is used up. Every request ends as a completion
or as a failure with its reason; a failed one never becomes an empty text.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from prb.config import NonNegative, Positive, Size
from prb.errors import BadSpec, MissingExtra
from prb.failures import Breaker
from prb.llm import LLM, LLMS, Completion, JsonObject, Request, options_suffix
from prb.llm.asking import answer_token
from prb.llm.endpoint import (
    BACKOFF,
    FATAL,
    Background,
    Backoff,
    Budget,
    Limiter,
    Prices,
    Retry,
    Spent,
    address_of,
    answer_all,
    check_url,
    cleaner,
    is_loopback,
    message_of,
    parse,
    persist,
    read_key,
    retry_status,
    tokens_of,
)
from prb.types import Failure, FailureKind

Concurrency = Annotated[int, Field(ge=1, le=1000)]
VENDOR = "https://api.openai.com/v1"
MOST_TOKENS = 10**9
"""No request has more; a larger count in a reply is nonsense."""
ADAPTABLE = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "top_logprobs")
"""Parameters that some models reject; the request is sent again without them, `max_tokens` under its newer name."""
REJECTION = re.compile(
    r"unsupported|n[o']t support|unrecogni[sz]ed|unknown|unexpected|not allowed|not permitted|only the default", re.I
)


@LLMS.register("openai")
def openai(
    model: str,
    base_url: str | None = None,
    key_env: str = "OPENAI_API_KEY",
    concurrency: Concurrency = 64,
    timeout: Positive = 120.0,
    retries: Size = 6,
    max_usd: NonNegative | None = None,
    max_tokens_total: Size | None = None,
    usd_in: NonNegative = 0.0,
    usd_out: NonNegative = 0.0,
    chat_template_kwargs: JsonObject | None = None,
    extra_body: JsonObject | None = None,
) -> LLM:
    """Chat endpoint of OpenAI or of anything compatible.

    `base_url` defaults to $OPENAI_BASE_URL, else OpenAI. The key comes only from the environment variable `key_env`; a
    server on this machine needs none. A server may be silent for `timeout` seconds, and take twice that in total.
    `usd_in` and `usd_out` are dollars per million tokens. Once `max_usd` or `max_tokens_total` is reached, nothing more
    is sent; up to `concurrency` requests in flight are still paid. Tokens are those of the reply's `usage`; where it
    has none, characters / 4. `chat_template_kwargs` (for vLLM and SGLang, e.g. `{"enable_thinking": false}`) and
    `extra_body` are JSON objects sent along with every request.
    """
    if max_usd is not None and not (usd_in or usd_out):
        raise BadSpec("openai: max_usd needs the prices usd_in and usd_out (dollars per million tokens)")
    budget = Budget(Prices(prompt=usd_in, completion=usd_out), max_usd, max_tokens_total)
    url = base_url or os.environ.get("OPENAI_BASE_URL") or VENDOR
    extra = {**(extra_body or {}), **({"chat_template_kwargs": chat_template_kwargs} if chat_template_kwargs else {})}
    if reserved := extra.keys() & request_body(model, Request(())).keys():
        raise BadSpec(f"openai: extra_body must not contain {', '.join(sorted(reserved))}, which prb sets itself")
    return Endpoint(
        model,
        url,
        key_env=key_env,
        concurrency=concurrency,
        timeout=timeout,
        retries=retries,
        budget=budget,
        extra=extra,
    )


@dataclass(frozen=True)
class Rejected:
    """A parameter the model rejects, and what to report if leaving it out does not help."""

    parameter: str
    failure: Failure


@dataclass(frozen=True)
class Line:
    """What lives on the event loop."""

    client: Any
    limiter: Limiter

    async def aclose(self) -> None:
        await self.client.close()


class Endpoint:
    """Requests run on an event loop in its own thread, so that connections outlive a call and `complete` works inside
    other event loops (notebooks, servers) and from several threads."""

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
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        address = check_url(url)
        self.remote = not is_loopback(str(address.hostname))
        self._extra = extra or {}
        self.fingerprint = f"openai-{model}@{address_of(address)}{options_suffix(self._extra)}"
        self._model, self._timeout, self._retries = model, timeout, retries
        self._budget = budget or Budget()
        self._backoff, self._rng = backoff, random.Random(0)  # noqa: S311
        self._most = concurrency
        self._rejected: frozenset[str] = frozenset()
        try:
            import openai as sdk
        except ImportError:
            raise MissingExtra("an API endpoint", "api") from None
        self._sdk: Any = sdk
        key = read_key(key_env, needed=self.remote)
        self._clean = cleaner(key)
        remote = self.remote

        def connect() -> Line:  # without a reference to self, so that the thread ends with its last user
            # to this machine without proxies or redirects, so that texts do not leave it that way
            http = None if remote else sdk.DefaultAsyncHttpxClient(trust_env=False, follow_redirects=False)
            client = sdk.AsyncOpenAI(
                api_key=key or "none", base_url=url, max_retries=0, timeout=timeout, http_client=http
            )
            return Line(client, Limiter(concurrency))

        self._background = Background(self.fingerprint, connect)

    def __repr__(self) -> str:
        return f"<{self.fingerprint}>"

    @property
    def spent(self) -> Spent:
        return self._budget.spent

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        breaker = Breaker()
        return self._background.run(
            answer_all(requests, lambda request: self._answer(request, breaker), self._most, breaker)
        )

    async def _answer(self, request: Request, breaker: Breaker) -> Completion | Failure:
        async def attempt(tries: int) -> Completion | Failure | Retry:
            limiter = self._background.made.limiter
            return await limiter.send(lambda: self._adapted(request, again=tries > 0), breaker)

        return await persist(
            attempt, reason="endpoint failed", retries=self._retries, rng=self._rng, backoff=self._backoff
        )

    async def _adapted(self, request: Request, again: bool) -> Completion | Failure | Retry:
        """Send; where the model rejects a parameter, send without it, and remember that if it helps."""
        rejected = self._rejected
        while True:
            if limit := self._budget.used_up():
                return Failure("budget used up", limit, kind="budget")
            self._budget.sent(again=again)
            reply = await self._send(request_body(self._model, request, rejected, self._extra))
            if not isinstance(reply, Rejected):
                break
            if reply.parameter in rejected:
                return reply.failure
            rejected, again = rejected | {reply.parameter}, True
        if isinstance(reply, Retry | Failure):
            return reply
        self._rejected |= rejected
        return self._read(request, reply)

    async def _send(self, body: dict[str, Any]) -> bytes | Retry | Failure | Rejected:
        try:
            async with asyncio.timeout(2 * self._timeout):  # the SDK's own timeout only limits silence
                return bytes(await self._background.made.client.post("/chat/completions", cast_to=bytes, body=body))
        except self._sdk.APITimeoutError:
            return Retry(f"no reply within {self._timeout:g} s", overloaded=True)
        except TimeoutError:
            return Retry(f"no whole reply within {2 * self._timeout:g} s", overloaded=True)
        except self._sdk.APIConnectionError as error:
            # by name: it is httpx's or httpx2's, depending on the release of the SDK
            refused = type(error.__cause__).__name__ == "ConnectError"
            why = self._clean(f"connection: {error.__cause__ or error}")
            return Retry(why, kind="fatal" if refused else "transient")
        except self._sdk.APIStatusError as error:
            return self._refused(error, body)
        except Exception as error:  # texts that cannot be sent, such as a lone surrogate
            return Failure("request cannot be sent", self._clean(f"{type(error).__name__}: {error}"))

    def _refused(self, error: Any, body: Mapping[str, Any]) -> Retry | Failure | Rejected:
        status = error.status_code
        kind: FailureKind = "fatal" if status in FATAL else "row"
        failure = Failure(f"HTTP {status}", self._clean(message_of(error.body)), kind=kind)
        if again := retry_status(status, str(failure), error.response.headers.get("retry-after"), time.time()):
            return again
        parameter = rejected_parameter(error.body, body) if status in (400, 422) else None
        return Rejected(parameter, failure) if parameter else failure

    def _read(self, request: Request, content: bytes) -> Completion | Failure | Retry:
        data = parse(content)
        choice = first_choice(data)
        if choice is None:
            if usage := usage_of(data):
                self._budget.charge(*usage)
            message = message_of(data) if data else content[:200].decode("utf-8", "replace")
            return Retry(self._clean(f"no completion in the reply: {message}"))
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
    """Log-probabilities of the answer's first token; a token spelled twice keeps the likelier one.

    Servers that take the thinking out of the text still list its tokens here.
    """
    match choice.get("logprobs"):
        case {"content": [_, *_] as tokens}:
            pass
        case _:
            return {}
    spelled = [str(token.get("token", "")) if isinstance(token, dict) else "" for token in tokens]
    at = answer_token(spelled)
    message = choice["message"]
    if message.get("reasoning_content") or message.get("reasoning"):  # the thinking, apart from the text
        answer = (message.get("content") or "").strip()
        places = range(len(spelled)) if answer else ()
        at = next((n for n in places if spelled[n].strip() and "".join(spelled[n:]).strip() == answer), None)
    match None if at is None else tokens[at]:
        case {"top_logprobs": [*top]} as chosen:
            first: dict[str, float] = {}
            for entry in (*top, chosen):
                match entry:
                    case {"token": str(token), "logprob": int() | float() as logprob} if not math.isnan(logprob):
                        first[token] = max(float(logprob), first.get(token, -math.inf))
            return first
    return {}


def usage_of(data: Any) -> tuple[int, int] | None:
    """Prompt and completion tokens; `None` if they are missing or cannot be true, so that no server sets our costs."""
    match data:
        case {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}:
            if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in (prompt, completion)):
                return prompt, completion
    return None


def rejected_parameter(body: Any, sent: Mapping[str, Any]) -> str | None:
    """Which of the parameters sent an error message says the model rejects."""
    text = body if isinstance(body, str) else json.dumps(body)
    if not REJECTION.search(text):
        return None
    named = body.get("param") if isinstance(body, dict) else None
    mentioned = [name for name in ADAPTABLE if name in sent and re.search(rf"\b{name}\b", text)]
    return named if named in mentioned else next(iter(mentioned), None)
