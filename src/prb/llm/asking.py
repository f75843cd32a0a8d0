"""Asking for a reply that can be read: one prompt, a strict reader, and one reminder if the reader finds nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from prb.llm import LLM, Completion, Message, Request, Sampling
from prb.types import Failure

T = TypeVar("T")
Reader = Callable[[Completion], T | Failure | None]
"""What a reply says; `None` if it cannot be read, a failure if asking again would not help."""

TAIL = 200
ASKED_AGAIN = "\n\n--- asked again ---\n\n"

_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)


@dataclass(frozen=True)
class Reply(Generic[T]):
    value: T
    text: str
    """All that was written, an unreadable first attempt included."""
    tokens: int = 0
    """Read and written, over both attempts."""
    cost: float = 0.0


def ask(
    llm: LLM,
    prompts: Sequence[str],
    read: Reader[T] | Sequence[Reader[T]],
    *,
    sampling: Sampling,
    reminder: str,
    missing: str,
) -> list[Reply[T] | Failure]:
    """One reply a prompt; what cannot be read is asked for once more, under another seed and with the reminder.

    `read` is one reader for all, or one a prompt. Unreadable again, it is a failure named `missing` with the end of the
    text. Failures of the back end are passed on: retrying those is its own business.
    """
    readers = [read] * len(prompts) if callable(read) else read
    attempts = [[_sound(said)] for said in llm.complete([_request(prompt, sampling) for prompt in prompts])]
    values = [_value(said, reader) for (said,), reader in zip(attempts, readers, strict=True)]
    again = [n for n, value in enumerate(values) if value is None]
    if again:
        other = replace(sampling, seed=sampling.seed + 1)
        second = llm.complete([_request(f"{prompts[n]}\n\n{reminder}", other) for n in again])
        for n, said in zip(again, second, strict=True):
            attempts[n].append(_sound(said))
            values[n] = _value(attempts[n][-1], readers[n])
    return [_settled(value, said, missing) for value, said in zip(values, attempts, strict=True)]


def without_reasoning(text: str) -> str:
    """What a model says after thinking: blocks go, an unclosed one to the end, and all before a stray closing tag."""
    said: list[str] = []
    since, thinking = 0, False
    for tag in _TAG.finditer(text):
        if tag[1]:
            if not thinking:
                said.clear()
            since, thinking = tag.end(), False
        elif not thinking:
            said.append(text[since : tag.start()])
            thinking = True
    return "".join(said if thinking else [*said, text[since:]])


def _request(prompt: str, sampling: Sampling) -> Request:
    return Request((Message("user", prompt),), sampling)


def _sound(said: Completion | Failure) -> Completion | Failure:
    """Half a character, as a token limit leaves it, cannot be written to a file."""
    if isinstance(said, Failure):
        return said
    return replace(said, text=said.text.encode("utf-8", "replace").decode())


def _value(said: Completion | Failure, read: Reader[T]) -> T | Failure | None:
    return said if isinstance(said, Failure) else read(said)


def _settled(value: T | Failure | None, attempts: Sequence[Completion | Failure], missing: str) -> Reply[T] | Failure:
    said = [attempt for attempt in attempts if isinstance(attempt, Completion)]
    read, written = (sum(getattr(a, f"{what}_tokens") for a in attempts) for what in ("prompt", "completion"))
    cost = sum(attempt.cost for attempt in attempts)
    if value is None:
        value = Failure(missing, said[-1].text.strip()[-TAIL:])
    if isinstance(value, Failure):  # what was charged was charged
        return replace(value, prompt_tokens=read, completion_tokens=written, cost=cost)
    return Reply(value, ASKED_AGAIN.join(c.text for c in said), read + written, cost)
