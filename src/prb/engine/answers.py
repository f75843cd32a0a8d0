"""What the torch families share: asks grouped by query, fitted, tokenized, looked up, computed, remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prb.cache import Cache
from prb.engine.bundle import Tokens
from prb.engine.chat import Text, fit
from prb.hashing import digest
from prb.prompts import render
from prb.types import Ask, Failure, Query, Reward

Compute = Callable[[Sequence[Sequence[Text]]], list[list[float]]]
"""Groups of texts that share a query → a number for each."""

EMPTY = Failure("empty answer")


class Reader(Protocol):
    """How a prompt and an answer become tokens."""

    def text(self, prompt: str, answer: str) -> Text: ...


@dataclass(frozen=True)
class Group:
    """The answers to one query, or why there is no score for them."""

    positions: tuple[int, ...]
    texts: tuple[Text, ...] = ()
    cut: int = 0
    failure: Failure | None = None


class Answers:
    def __init__(self, reader: Reader, compute: Compute, *, fingerprint: str, limit: int, cache: Cache | None) -> None:
        self.fingerprint = fingerprint
        self._reader, self._compute, self._limit, self._cache = reader, compute, limit, cache

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        groups = [self._group(query, positions, asks) for query, positions in by_query(asks).items()]
        values = self._values([text for group in groups for text in group.texts], groups)
        results: list[float | Failure] = [EMPTY] * len(asks)
        for group in groups:
            for n, position in enumerate(group.positions):
                results[position] = group.failure or self._reward(group.texts[n], group.cut, values)
        return results

    def _group(self, query: Query, positions: list[int], asks: Sequence[Ask]) -> Group:
        answers = [asks[i].answer for i in positions]
        texts, cut = [self._reader.text(render(query), a) for a in answers], 0
        if max(len(text.ids) for text in texts) > self._limit:
            fitted = fit(query, answers, lambda p, a: self._reader.text(p, a).ids, self._limit)
            if isinstance(fitted, Failure):
                return Group(tuple(positions), failure=fitted)
            shorter, cut = fitted
            texts = [self._reader.text(render(shorter), a) for a in answers]
        return Group(tuple(positions), tuple(texts), cut)

    def _values(self, texts: Sequence[Text], groups: Sequence[Group]) -> dict[bytes, float]:
        """Key to number, computing only what is in no cache."""
        keys = [self._key(text.ids) for text in texts]
        known: dict[bytes, float] = self._cache.get(keys) if self._cache else {}
        wanted: list[list[Text]] = []
        for group in groups:
            missing = {self._key(text.ids): text for text in group.texts if self._key(text.ids) not in known}
            if missing:
                wanted.append(list(missing.values()))
        computed = self._compute(wanted) if wanted else []
        fresh = {
            self._key(text.ids): value
            for group, values in zip(wanted, computed, strict=True)
            for text, value in zip(group, values, strict=True)
        }
        if self._cache and fresh:
            self._cache.put(self.fingerprint, fresh)
        return {**known, **fresh}

    def _reward(self, text: Text, cut: int, values: dict[bytes, float]) -> Reward:
        value = values[self._key(text.ids)]
        return Reward(value, tokens=len(text.ids), spoken=text.end - text.start, cut=cut)

    def _key(self, ids: Tokens) -> bytes:
        return digest(self.fingerprint, list(ids))


def by_query(asks: Sequence[Ask]) -> dict[Query, list[int]]:
    """Places of the answers to each query; where nothing is said there is nothing to read."""
    groups: dict[Query, list[int]] = {}
    for position, ask in enumerate(asks):
        if ask.answer.strip():
            groups.setdefault(ask.query, []).append(position)
    return groups
