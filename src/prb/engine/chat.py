"""From a query and an answer to token ids: the template once, one BOS, and a place to cut when it is too long.

What does not fit loses the oldest posts first, then the middle of the question; the answer is never touched. All
answers to a query are cut alike, by the longest of them, so that they are judged on the same ground.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prb.engine.bundle import Tokens
from prb.prompts import render
from prb.types import Failure, Query

SEPARATOR = "\n\n"
"""Models without a chat template read the prompt, an empty line and the answer, with the tokenizer's special tokens."""


@dataclass(frozen=True)
class Text:
    """A prompt with its answer as token ids, and which of them are the answer's."""

    ids: Tokens
    start: int
    end: int
    types: Tokens | None = None
    """Which of two texts a token belongs to, where a tokenizer tells them apart."""


class TwoTexts:
    """Prompt and answer as the two texts of an encoder's pair input."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, prompt: str, answer: str) -> Text:
        made = self._tokenizer(prompt, answer)
        ids = list(made["input_ids"])
        return Text(ids, 0, len(ids), made.get("token_type_ids"))


class Chat:
    def __init__(self, tokenizer: Any, *, system: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._system = system
        self._templated = getattr(tokenizer, "chat_template", None) is not None
        bos: int | None = getattr(tokenizer, "bos_token_id", None)
        self._bos = [bos] if bos is not None and tokenizer("x")["input_ids"][:1] == [bos] else []

    def tokens(self, prompt: str, answer: str) -> Tokens:
        return self.text(prompt, answer).ids

    def text(self, prompt: str, answer: str) -> Text:
        if not self._templated:
            return self._encoded(f"{prompt}{SEPARATOR}{answer}", answer, special=True)
        whole = self._tokenizer.apply_chat_template(self._messages(prompt, answer), tokenize=False)
        return self._encoded(whole, answer, special=False)

    def _messages(self, prompt: str, answer: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    def _encoded(self, whole: str, answer: str, *, special: bool) -> Text:
        made = self._tokenizer(whole, add_special_tokens=special, return_offsets_mapping=True)
        ids, offsets = list(made["input_ids"]), made["offset_mapping"]
        start, end = _span(whole, answer, offsets)
        # a template writes its own special tokens; where it leaves out a BOS the tokenizer would add, it is put back
        missing = [] if special or ids[:1] == self._bos else self._bos
        return Text([*missing, *ids], start + len(missing), end + len(missing))


def _span(whole: str, answer: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First token of the answer and the one after its last; templates may trim the answer."""
    first = whole.rfind(answer)
    if first < 0:
        answer = answer.strip()
        first = whole.rfind(answer)
    inside = [i for i, (a, b) in enumerate(offsets) if b > first and a < first + len(answer) and b > a]
    return inside[0], inside[-1] + 1


def fit(
    query: Query, answers: Sequence[str], encode: Callable[[str, str], Tokens], limit: int
) -> tuple[Query, int] | Failure:
    """The largest part of the query with which every answer fits, and how much was cut."""
    longest = max(answers, key=len)

    def fits(candidate: Query) -> bool:
        prompt = render(candidate)
        return len(encode(prompt, longest)) <= limit and all(len(encode(prompt, a)) <= limit for a in answers)

    if fits(query):
        return query, 0
    without = replace(query, posts=())
    if fits(without):
        keep = _largest(lambda n: fits(replace(query, posts=query.posts[len(query.posts) - n :])), len(query.posts))
        return replace(query, posts=query.posts[len(query.posts) - keep :]), len(query.posts) - keep
    shorter = _shortened(without, fits)
    if shorter is None:
        return Failure("too long", "the answer alone does not fit the model")
    return shorter, len(query.posts) + 1


def _shortened(query: Query, fits: Callable[[Query], bool]) -> Query | None:
    """The question without its middle: beginnings set the scene, ends hold the request."""
    words = query.question.split()
    if not fits(_ends(query, words, 1)):
        return None
    return _ends(query, words, _largest(lambda n: fits(_ends(query, words, max(1, n))), len(words) - 1))


def _ends(query: Query, words: list[str], keep: int) -> Query:
    head = (keep + 1) // 2
    tail = words[len(words) - (keep - head) :] if keep > head else []
    return replace(query, question=" ".join([*words[:head], "[…]", *tail]))


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest n up to `most` for which it holds, given that it holds for 0 and never again once it fails."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
