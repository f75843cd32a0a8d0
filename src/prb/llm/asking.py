"""Asking an LLM for a reply that can be parsed: one prompt, a strict reader, and one reminder if it reads nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from prb.llm import LLM, Chat, Completion, Request, Sampling
from prb.types import Failure, Turn

T = TypeVar("T")
Reader = Callable[[Completion], T | Failure | None]
"""The value of a reply; `None` if it cannot be read, a failure if asking again would not help."""

TAIL = 200
"""Characters of an unreadable reply that its failure quotes."""
ASKED_AGAIN = "\n\n--- asked again ---\n\n"


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
    failure named `missing` with the end of the text. Failures of the backend are passed on: it has its own retries.
    """
    readers = [read] * len(prompts) if callable(read) else read
    attempts = [[reply] for reply in _complete(llm, prompts, sampling)]
    values = [_value(reply, reader) for (reply,), reader in zip(attempts, readers, strict=True)]
    again = [n for n, value in enumerate(values) if value is None]
    if again:
        reminded = [_reminded(prompts[n], reminder) for n in again]
        second = _complete(llm, reminded, replace(sampling, seed=sampling.seed + 1))
        for n, reply in zip(again, second, strict=True):
            attempts[n].append(reply)
            values[n] = _value(reply, readers[n])
    return [_result(value, replies, missing) for value, replies in zip(values, attempts, strict=True)]


def _complete(llm: LLM, prompts: Sequence[str | Chat], sampling: Sampling) -> list[Completion | Failure]:
    return llm.complete([Request(_chat(prompt), sampling) for prompt in prompts])


def _chat(prompt: str | Chat) -> Chat:
    return (Turn("user", prompt),) if isinstance(prompt, str) else prompt


def _reminded(prompt: str | Chat, reminder: str) -> Chat:
    *before, (role, text) = _chat(prompt)
    return *before, Turn(role, f"{text}\n\n{reminder}")


def _value(reply: Completion | Failure, read: Reader[T]) -> T | Failure | None:
    return reply if isinstance(reply, Failure) else read(reply)


def _result(value: T | Failure | None, attempts: Sequence[Completion | Failure], missing: str) -> Reply[T] | Failure:
    texts = [attempt.text for attempt in attempts if isinstance(attempt, Completion)]
    prompt_tokens = sum(attempt.prompt_tokens for attempt in attempts)
    completion_tokens = sum(attempt.completion_tokens for attempt in attempts)
    cost = sum(attempt.cost for attempt in attempts)
    if value is None:
        value = Failure(missing, texts[-1].strip()[-TAIL:])
    if isinstance(value, Failure):  # failed calls are charged too
        return replace(value, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost=cost)
    return Reply(value, ASKED_AGAIN.join(texts), prompt_tokens + completion_tokens, cost)
