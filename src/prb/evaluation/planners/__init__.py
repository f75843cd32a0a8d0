"""Planners infer what a user probably wants from an answer, given question and history. One file each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

from prb.cache import Cache, Memo
from prb.registry import Registry
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
