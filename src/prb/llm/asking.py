"""Asking an LLM for a reply that can be parsed: one prompt, a strict reader, and one reminder if it reads nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from prb.llm import LLM, Chat, Completion, Request, Sampling
from prb.types import Failure, Turn

_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)
_OPENED = re.compile(r"(?:<(?:think|thinking|reasoning)>\s*)?\Z", re.IGNORECASE)


def without_thinking(text: str) -> str:
    """The reply without its thinking: tagged blocks, an unclosed one to the end, all before a stray closing tag."""
    kept: list[str] = []
    since, thinking = 0, False
    for tag in _TAG.finditer(text):
        if tag[1]:
            if not thinking:
                kept.clear()
            since, thinking = tag.end(), False
        elif not thinking:
            kept.append(text[since : tag.start()])
            thinking = True
    return "".join(kept if thinking else [*kept, text[since:]])


def opened_by(prompt: str) -> str:
    """The opening tag at the end of a prompt, for templates that write it themselves."""
    match = _OPENED.search(prompt)
    return match[0] if match else ""


def top_logprobs(token: Any) -> dict[str, float]:
    """Log-probabilities of a token and its alternatives, as the OpenAI protocol lists them; of a token that is spelled
    twice the likelier one."""
    first: dict[str, float] = {}
    match token:
        case {"top_logprobs": [*top]}:
            for entry in (*top, token):
                match entry:
                    case {"token": str(text), "logprob": int() | float() as logprob} if not math.isnan(logprob):
                        first[text] = max(float(logprob), first.get(text, -math.inf))
    return first


T = TypeVar("T")
Reader = Callable[[Completion], T | Failure | None]
"""The value of a reply; `None` if it cannot be read, a failure if asking again would not help."""


@dataclass(frozen=True)
class Reply(Generic[T]):
    value: T
    text: str
    """All that was written, including an unreadable first attempt."""
    tokens: int = 0
    """Read and written, over both attempts."""
    cost: float = 0.0


def ask(
    llm: LLM,
    prompts: Sequence[str | Chat],
    read: Reader[T] | Sequence[Reader[T]],
    *,
    sampling: Sampling,
    reminder: str,
    missing: str,
) -> list[Reply[T] | Failure]:
    """One reply per prompt, which is a user message or a whole chat; what cannot be read is asked for once more, with
    another seed and the reminder.

    `read` is one reader for all prompts, or one per prompt. If the second reply is unreadable too, the result is a
    failure named `missing` with the end of the first reply and the form that was asked for. Failures of the backend are
    passed on: it has its own retries.
    """
    readers = [read] * len(prompts) if callable(read) else read
    chats = [(Turn("user", prompt),) if isinstance(prompt, str) else prompt for prompt in prompts]
    attempts: list[list[Completion | Failure]] = [[] for _ in prompts]
    values: list[T | Failure | None] = [None] * len(prompts)
    for seed, ending in ((sampling.seed, ""), (sampling.seed + 1, f"\n\n{reminder}")):
        unread = [n for n, value in enumerate(values) if value is None]
        requests = []
        for *before, last in (chats[n] for n in unread):
            requests.append(Request((*before, Turn(last.role, last.text + ending)), replace(sampling, seed=seed)))
        for n, reply in zip(unread, llm.complete(requests) if requests else (), strict=True):
            attempts[n].append(reply)
            values[n] = reply if isinstance(reply, Failure) else readers[n](reply)
    results: list[Reply[T] | Failure] = []
    for value, replies in zip(values, attempts, strict=True):
        texts = [reply.text for reply in replies if isinstance(reply, Completion)]
        read_tokens, written = sum(r.prompt_tokens for r in replies), sum(r.completion_tokens for r in replies)
        cost = sum(reply.cost for reply in replies)
        if value is None or isinstance(value, Failure):
            failure = value or Failure(missing, f'"{texts[0].strip()[-200:]}" (asked for: {reminder})')
            # failed calls are charged too
            results.append(replace(failure, prompt_tokens=read_tokens, completion_tokens=written, cost=cost))
        else:
            results.append(Reply(value, "\n\n--- asked again ---\n\n".join(texts), read_tokens + written, cost))
    return results
