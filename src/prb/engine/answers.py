"""What the torch families share: answers grouped by query, cut to fit, tokenized, and scored unless known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Protocol, TypeVar

from prb.cache import Cache, Memo
from prb.engine.chat import Text, Tokens, fit
from prb.failures import halve_if_out_of_memory
from prb.hashing import digest
from prb.types import Ask, Failure, Query, Reward

Compute = Callable[[Sequence[Sequence[Text]]], Sequence[Sequence[float | Failure]]]
"""Groups of texts that share a query → a number for each, or why there is none."""
T = TypeVar("T")
SLICE = 65_536
"""Tokens that are scored while the next ones are made: several forward passes, also of a GPU."""


class Reader(Protocol):
    """How a query and its answers become tokens."""

    def texts(self, query: Query, answers: Sequence[str]) -> Sequence[Text]: ...


@dataclass(frozen=True)
class Group:
    """The answers to one query as texts that fit the model, or why they do not."""

    positions: Sequence[int]
    """Where these answers stand among all asks."""
    texts: Sequence[Text] = ()
    cut: int = 0
    failure: Failure | None = None


def group_by_query(asks: Sequence[Ask], reader: Reader, limit: int) -> Iterator[Group]:
    """The non-empty answers to each query, as texts of at most `limit` tokens; empty ones get a group that failed."""
    positions: dict[Query, list[int]] = {}
    empty = []
    for position, ask in enumerate(asks):
        if ask.answer.strip():
            positions.setdefault(ask.query, []).append(position)
        else:
            empty.append(position)
    for query, where in positions.items():
        yield from _groups(query, asks, where, reader, limit)
    yield Group(empty, failure=Failure("empty answer"))


def _groups(query: Query, asks: Sequence[Ask], positions: list[int], reader: Reader, limit: int) -> Iterator[Group]:
    """One group, and one that failed for answers of which the template shows nothing."""
    read = dict(zip(positions, reader.texts(query, [asks[i].answer for i in positions]), strict=True))
    hidden = [i for i, text in read.items() if text.start >= text.end]
    if hidden:
        yield Group(hidden, failure=Failure("empty answer", "the chat template shows nothing of it"))
    positions = [i for i in positions if i not in hidden]
    if not positions:
        return
    texts, cut = [read[i] for i in positions], 0
    if max(len(text.ids) for text in texts) > limit:
        answers = [asks[i].answer for i in positions]

        @lru_cache(maxsize=1)
        def lengths(shorter: Query) -> dict[str, Tokens]:
            """All answers at once, so that what they share is tokenized once."""
            return {answer: text.ids for answer, text in zip(answers, reader.texts(shorter, answers), strict=True)}

        fitted = fit(query, answers, lambda shorter, answer: lengths(shorter)[answer], limit)
        if isinstance(fitted, Failure):
            yield Group(positions, failure=fitted)
            return
        shorter, cut = fitted
        texts = list(reader.texts(shorter, answers))
    yield Group(positions, texts, cut)


def in_slices(groups: Iterable[Group], tokens: int = SLICE) -> Iterator[list[Group]]:
    """Groups in lists of at least so many tokens, the last one excepted."""
    held: list[Group] = []
    size = 0
    for group in groups:
        held.append(group)
        size += sum(len(text.ids) for text in group.texts)
        if size >= tokens:
            yield held
            held, size = [], 0
    if held:
        yield held


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by another thread while its predecessor is used."""
    end = object()
    with ThreadPoolExecutor(1) as maker:
        coming: Future[T | object] = maker.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = maker.submit(next, items, end)
            yield item  # type: ignore[misc]


class AnswerScorer:
    """A scorer made from a reader and a function of grouped texts; known scores come from the cache."""

    remote = False
    """Whether texts leave the machine."""

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
        results: dict[int, float | Failure] = {}
        for groups in ahead(in_slices(group_by_query(asks, self._reader, self._limit))):
            results.update(self._score_groups(groups))
        return [results[position] for position in range(len(asks))]

    def _score_groups(self, groups: Sequence[Group]) -> Iterator[tuple[int, float | Failure]]:
        """Rewards with the positions of their asks."""
        texts = [(n, text) for n, group in enumerate(groups) for text in group.texts]
        keys = [digest(self.fingerprint, [text.start, text.end, *text.ids]) for _, text in texts]
        values = iter(self._memo.map(self._compute_groups, texts, keys))
        for group in groups:
            if group.failure:
                yield from ((position, group.failure) for position in group.positions)
                continue
            for position, text in zip(group.positions, group.texts, strict=True):
                value = next(values)
                if not isinstance(value, Failure):
                    value = Reward(value, tokens=len(text.ids), spoken=text.end - text.start, cut=group.cut)
                yield position, value

    def _compute_groups(self, texts: Sequence[tuple[int, Text]]) -> list[float | Failure]:
        return halve_if_out_of_memory(self._compute_together, texts)

    def _compute_together(self, texts: Sequence[tuple[int, Text]]) -> list[float | Failure]:
        """Texts of one query come next to each other, so that they share its prefix."""
        groups = [[text for _, text in same] for _, same in groupby(texts, itemgetter(0))]
        values = [value for row in self._compute(groups) for value in row]
        return [
            v if isinstance(v, Failure) or math.isfinite(v) else Failure("not a finite number", str(v)) for v in values
        ]
