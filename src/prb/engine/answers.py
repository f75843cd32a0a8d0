"""What the torch families share: answers grouped by query, cut to fit, tokenized, and scored unless known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Protocol, TypeVar

from prb.cache import Cache, Memo
from prb.engine.chat import Text, fit
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
    """The positions of these answers among all asks."""
    texts: Sequence[Text] = ()
    cut: int = 0
    failure: Failure | None = None


def group_by_query(asks: Sequence[Ask], reader: Reader, limit: int) -> Iterator[Group]:
    """The answers to each query, as texts of at most `limit` tokens; those that are empty, or of which the template
    shows nothing, get a group that failed."""
    positions: dict[Query, list[int]] = {}
    empty = []
    for position, ask in enumerate(asks):
        if ask.answer.strip():
            positions.setdefault(ask.query, []).append(position)
        else:
            empty.append(position)
    for query, places in positions.items():
        texts = dict(zip(places, reader.texts(query, [asks[i].answer for i in places]), strict=True))
        hidden = [i for i, text in texts.items() if text.start >= text.end]
        if hidden:
            yield Group(hidden, failure=Failure("empty answer", "the chat template shows nothing of it"))
        shown = [i for i in places if i not in hidden]
        if shown and max(len(texts[i].ids) for i in shown) > limit:
            yield _cut_group(query, shown, [asks[i].answer for i in shown], reader, limit)
        elif shown:
            yield Group(shown, [texts[i] for i in shown])
    yield Group(empty, failure=Failure("empty answer"))


def _cut_group(query: Query, positions: list[int], answers: list[str], reader: Reader, limit: int) -> Group:
    @lru_cache(maxsize=1)
    def texts(shorter: Query) -> dict[str, Text]:
        """All answers at once, so that what they share is tokenized once."""
        return dict(zip(answers, reader.texts(shorter, answers), strict=True))

    fitted = fit(query, answers, lambda shorter, answer: texts(shorter)[answer].ids, limit)
    if isinstance(fitted, Failure):
        return Group(positions, failure=fitted)
    shorter, cut = fitted
    return Group(positions, [texts(shorter)[answer] for answer in answers], cut)


def in_slices(groups: Iterable[Group], tokens: int = SLICE) -> Iterator[list[Group]]:
    """Groups in lists of at least this many tokens, except for the last."""
    part: list[Group] = []
    size = 0
    for group in groups:
        part.append(group)
        size += sum(len(text.ids) for text in group.texts)
        if size >= tokens:
            yield part
            part, size = [], 0
    if part:
        yield part


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by another thread while its predecessor is used."""
    end = object()
    with ThreadPoolExecutor(1) as maker:
        following: Future[T | object] = maker.submit(next, items, end)
        while (item := following.result()) is not end:
            following = maker.submit(next, items, end)
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
        for groups in prefetch(in_slices(group_by_query(asks, self._reader, self._limit))):
            results.update(self._score_groups(groups))
        return [results[position] for position in range(len(asks))]

    def _score_groups(self, groups: Sequence[Group]) -> Iterator[tuple[int, float | Failure]]:
        """Rewards with the positions of their asks."""
        texts = [(n, text) for n, group in enumerate(groups) for text in group.texts]
        keys = [digest(self.fingerprint, [text.start, text.end, *text.ids]) for _, text in texts]
        compute = partial(halve_if_out_of_memory, self._compute_texts)
        values = iter(self._memo.map(compute, texts, keys))
        for group in groups:
            if group.failure:
                yield from ((position, group.failure) for position in group.positions)
                continue
            for position, text in zip(group.positions, group.texts, strict=True):
                value = next(values)
                if not isinstance(value, Failure):
                    value = Reward(value, tokens=len(text.ids), spoken=text.end - text.start, cut=group.cut)
                yield position, value

    def _compute_texts(self, texts: Sequence[tuple[int, Text]]) -> list[float | Failure]:
        """Texts of one query come next to each other, so that they share its prefix."""
        groups = [[text for _, text in same] for _, same in groupby(texts, itemgetter(0))]
        values = [value for row in self._compute(groups) for value in row]
        return [
            v if isinstance(v, Failure) or math.isfinite(v) else Failure("not a finite number", str(v)) for v in values
        ]
