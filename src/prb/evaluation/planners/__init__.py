"""Planners infer what a user probably wants from an answer, given question and history. One file each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from prb.cache import Cache, Memo
from prb.config import Count
from prb.registry import Registry
from prb.text.encoders import ENCODERS
from prb.text.words import sentences
from prb.types import Failure, Query

Plan = tuple[str, ...]


class Planner(Protocol):
    """Planners that send texts to another machine have `remote = True`. None of them ever sees a rubric."""

    fingerprint: str

    def plan(self, query: Query) -> Plan | Failure:
        """`query` holds the whole history, not only what a reward model would be shown of it."""
        ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluation.planners", group="prb.planners")


class CachedPlanner:
    """A planner that infers many plans at once and keeps them by content; failures are never kept."""

    def __init__(
        self,
        infer: Callable[[Sequence[Query]], Sequence[Plan | Failure]],
        content: Callable[[Query], Sequence[str]],
        *,
        fingerprint: str,
        remote: bool,
        cache: Cache | None = None,
    ) -> None:
        self.fingerprint, self.remote = fingerprint, remote
        self._infer, self._content = infer, content
        self._memo: Memo[Plan] = Memo(cache=cache, model=fingerprint, unpack=tuple)

    def plan(self, query: Query) -> Plan | Failure:
        return self.plans([query])[0]

    def plans(self, queries: Sequence[Query]) -> list[Plan | Failure]:
        return self._memo.map(self._infer, queries, list(map(self._key, queries)))

    def _key(self, query: Query) -> bytes:
        texts = "\0".join([self.fingerprint, *self._content(query)]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(texts, digest_size=16).digest()


def plan_all(planner: Planner, queries: Sequence[Query]) -> list[Plan | Failure]:
    """One plan per query; planners that can infer many at once get all of them together."""
    if isinstance(planner, CachedPlanner):
        return planner.plans(queries)
    return [planner.plan(query) for query in queries]


TASTE = re.compile(
    r"\b(i (?:really |always |never |would rather |just |don't |can't |won't )*"
    r"(?:prefer|like|love|hate|want|need|enjoy|dislike|trust|avoid|loathe|learn best|work best)"
    r"|i'd rather|i can't stand|what i (?:want|need)|give me|spare me|drives me|makes me|for me|never again|no more)\b",
    re.IGNORECASE,
)


class Extractive:
    def __init__(self, aspects: int, encoder: str) -> None:
        self._aspects = aspects
        self._encoder = ENCODERS.make(encoder)
        self.fingerprint = f"extractive-{aspects}-{self._encoder.fingerprint}"

    def plan(self, query: Query) -> tuple[str, ...]:
        written = [s for post in query.posts for s in sentences(post.text) if not s.endswith("?")]
        preferred = [s for choice in query.choices for s in sentences(choice.chosen)]
        quotes = written + preferred
        if not quotes:
            return ()
        rows = self._encoder.encode([query.question, *quotes])
        taste = np.array([bool(TASTE.search(s)) for s in written] + [False] * len(preferred))
        near = rows[1:] @ rows[0] + taste
        return tuple(quotes[i] for i in np.argsort(-near, kind="stable")[: self._aspects])


@PLANNERS.register("extractive")
def extractive(aspects: Count = 3, encoder: str = "static") -> Planner:
    """Sentences on the user's own taste, or of answers they preferred; those near the question first."""
    return Extractive(aspects, encoder)
