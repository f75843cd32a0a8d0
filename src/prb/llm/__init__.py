"""LLMs that write text: an API endpoint, llama.cpp, transformers, a scripted fake.

A spec is `backend/model?key=value&key=value`, e.g. `openai/gpt-5`, `openai/qwen3?base_url=http://localhost:8000/v1`,
`llamacpp/smollm2`, `scripted/Result: A`. Inside a model spec, one with options stands in parentheses:
`judge?llm=(openai/gpt-5?concurrency=32)&style=pairwise`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pydantic import Json

from prb.errors import BadSpec
from prb.registry import Registry, Spec
from prb.types import Failure, Turn, writable
from prb.work import Reply, call_key

Chat = tuple[Turn, ...]
JsonObject = Json[dict[str, Any]]
"""An option written as JSON, e.g. `chat_template_kwargs={"enable_thinking": false}`."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    seed: int = 0
    top_logprobs: int = 0
    """Return this many log-probabilities of the answer's first token, where the backend can."""


class Request(NamedTuple):
    chat: Chat
    sampling: Sampling = Sampling()


@dataclass(frozen=True, kw_only=True)
class Completion:
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    first: Mapping[str, float] = field(default_factory=dict)
    """First token → log-probability; empty where the backend returns none, and where it belongs to the thinking."""
    truncated: bool = False
    """Whether `max_tokens` ended it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", writable(self.text))

    def as_reply(self) -> dict[str, Any]:
        """As `replies.jsonl` has it."""
        tokens = self.prompt_tokens + self.completion_tokens
        used = {"tokens": tokens, "spoken": self.completion_tokens, "cost": self.cost}
        return {"value": self.text, "truncated": self.truncated, **used}

    @classmethod
    def of(cls, reply: Reply) -> Completion | Failure:
        """From a reply, without log-probabilities."""
        if failure := reply.as_failure:
            return failure
        return cls(
            text=str(reply.value),
            prompt_tokens=reply.tokens - reply.spoken,
            completion_tokens=reply.spoken,
            cost=reply.cost,
            truncated=reply.truncated,
        )


def request_key(start: hashlib.blake2b, request: Request) -> bytes:
    """Of the texts and of the settings under which they are continued, the seed of a draw among them."""
    return call_key(start, *(part for turn in request.chat for part in turn), repr(request.sampling))


class LLM(Protocol):
    fingerprint: str
    remote: bool
    """Whether texts leave the machine."""

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        """One result per request, in order. A result depends on its own request alone."""
        ...


LLMS: Registry[LLM] = Registry("llm", package="prb.llm", group="prb.llms")


def make_llm(text: str) -> LLM:
    return LLMS.build(parse_llm(text))


def check_llm(text: str) -> None:
    LLMS.check(parse_llm(text))


def parse_llm(text: str) -> Spec:
    spec = Spec.parse(text)
    backend, slash, model = spec.name.partition("/")
    if not backend or not slash or not model:
        raise BadSpec(f"{text!r} is not an llm spec such as openai/gpt-5 or llamacpp/smollm2?threads=1")
    return Spec(backend, {"model": model, **spec.options})


def options_suffix(options: Mapping[str, Any]) -> str:
    """What a fingerprint adds for options that change replies; empty without any."""
    return f"-{hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]}" if options else ""


ScriptedReply = str | Completion | Failure


class ScriptedLLM:
    """A fake for tests and plumbing: prepared replies in order (the last one repeats), or a function of the request."""

    remote = False

    def __init__(self, replies: ScriptedReply | Iterable[ScriptedReply] | Callable[[Request], ScriptedReply]) -> None:
        self.fingerprint = "scripted"
        self.requests: list[Request] = []
        """All requests so far, for tests to inspect."""
        if callable(replies):
            self._reply = replies
        else:
            script = [replies] if isinstance(replies, str | Completion | Failure) else list(replies)
            self._reply = lambda _: script.pop(0) if len(script) > 1 else script[0]

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        self.requests += requests
        return [Completion(text=r) if isinstance(r, str) else r for r in map(self._reply, requests)]


@LLMS.register("scripted")
def scripted(model: str) -> LLM:
    """Fake: always replies with the text after the slash."""
    llm = ScriptedLLM(model)
    llm.fingerprint = f"scripted-{model}"
    return llm
