"""What the torch families share: answers grouped by query, cut to fit, tokenized, and scored unless known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from prb.cache import Cache, Memo
from prb.engine.chat import Text, fit
from prb.failures import halve_if_out_of_memory
from prb.hashing import digest
from prb.types import Ask, Failure, Query, Reward

Compute = Callable[[Sequence[Sequence[Text]]], list[list[float]]]
"""Groups of texts that share a query → a number for each."""


class Reader(Protocol):
    """How a query and an answer become tokens."""

    def text(self, query: Query, answer: str) -> Text: ...


@dataclass(frozen=True)
class Group:
    """The answers to one query as texts that fit the model, or why they do not."""

    positions: Sequence[int]
    """Where these answers stand among all asks."""
    texts: Sequence[Text] = ()
    cut: int = 0
    failure: Failure | None = None


def group_by_query(asks: Sequence[Ask], reader: Reader, limit: int) -> list[Group]:
    """The non-empty answers to each query, as texts of at most `limit` tokens; empty ones get a group that failed."""
    positions: dict[Query, list[int]] = {}
    empty = []
    for position, ask in enumerate(asks):
        if ask.answer.strip():
            positions.setdefault(ask.query, []).append(position)
        else:
            empty.append(position)
    groups = [group for query, where in positions.items() for group in _group(query, asks, where, reader, limit)]
    return [*groups, Group(empty, failure=Failure("empty answer"))]


def _group(query: Query, asks: Sequence[Ask], positions: list[int], reader: Reader, limit: int) -> list[Group]:
    """One group, and one that failed for answers of which the template shows nothing."""
    texts = {i: reader.text(query, asks[i].answer) for i in positions}
    hidden = [i for i, text in texts.items() if text.start >= text.end]
    failed = [Group(hidden, failure=Failure("empty answer", "the chat template shows nothing of it"))] if hidden else []
    positions = [i for i in positions if i not in hidden]
    if not positions:
        return failed
    cut = 0
    if max(len(texts[i].ids) for i in positions) > limit:
        answers = [asks[i].answer for i in positions]
        fitted = fit(query, answers, lambda shorter, answer: reader.text(shorter, answer).ids, limit)
        if isinstance(fitted, Failure):
            return [Group(positions, failure=fitted), *failed]
        shorter, cut = fitted
        texts = {i: reader.text(shorter, asks[i].answer) for i in positions}
    return [Group(positions, [texts[i] for i in positions], cut), *failed]


class AnswerScorer:
    """A scorer made from a reader and a function of grouped texts; known scores come from the cache."""

    def __init__(
        self,
        reader: Reader,
        compute: Compute,
        *,
        fingerprint: str,
        limit: int,
        cache: Cache | None = None,
        execution: str = "",
    ) -> None:
        self.fingerprint, self.execution = fingerprint, execution
        self._reader, self._compute, self._limit = reader, compute, limit
        self._memo = Memo[float](capacity=0, cache=cache, model=fingerprint)

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        groups = group_by_query(asks, self._reader, self._limit)
        texts = [(n, text) for n, group in enumerate(groups) for text in group.texts]
        keys = [digest(self.fingerprint, [text.start, text.end, *text.ids]) for _, text in texts]
        values = iter(self._memo.map(self._compute_groups, texts, keys))
        results: dict[int, float | Failure] = {}
        for group in groups:
            if group.failure:
                results.update(dict.fromkeys(group.positions, group.failure))
                continue
            for position, text in zip(group.positions, group.texts, strict=True):
                value = next(values)
                if not isinstance(value, Failure):
                    value = Reward(value, tokens=len(text.ids), spoken=text.end - text.start, cut=group.cut)
                results[position] = value
        return [results[position] for position in range(len(asks))]

    def _compute_groups(self, texts: Sequence[tuple[int, Text]]) -> list[float | Failure]:
        return halve_if_out_of_memory(self._compute_together, texts)

    def _compute_together(self, texts: Sequence[tuple[int, Text]]) -> list[float | Failure]:
        """Texts of one query come next to each other, so that they share its prefix."""
        groups = [[text for _, text in same] for _, same in groupby(texts, itemgetter(0))]
        values = [value for row in self._compute(groups) for value in row]
        return [v if math.isfinite(v) else Failure("not a finite number", str(v)) for v in values]
