"""Planners infer what a user probably wants from an answer, from the user's posts and the question. One file each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from prb.cache import Cache, Memo
from prb.registry import Registry
from prb.types import Failure, Post

Plan = tuple[str, ...]


class Planner(Protocol):
    """Planners that send texts to another machine have `remote = True`. None of them ever sees a rubric."""

    fingerprint: str

    def plan(self, question: str, posts: Sequence[Post]) -> Plan | Failure: ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluation.planners", group="prb.planners")


class PlanAsk(NamedTuple):
    question: str
    posts: Sequence[Post]


class CachedPlanner:
    """A planner that infers many plans at once and keeps them by content; failures are never kept."""

    def __init__(
        self,
        infer: Callable[[Sequence[PlanAsk]], Sequence[Plan | Failure]],
        content: Callable[[PlanAsk], Sequence[str]],
        *,
        fingerprint: str,
        remote: bool,
        cache: Cache | None = None,
    ) -> None:
        self.fingerprint, self.remote = fingerprint, remote
        self._infer, self._content = infer, content
        self._memo: Memo[Plan] = Memo(cache=cache, model=fingerprint, unpack=tuple)

    def plan(self, question: str, posts: Sequence[Post]) -> Plan | Failure:
        return self.plans([PlanAsk(question, posts)])[0]

    def plans(self, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
        return self._memo.map(self._infer, asks, [self._key(ask) for ask in asks])

    def _key(self, ask: PlanAsk) -> bytes:
        texts = "\0".join([self.fingerprint, *self._content(ask)]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(texts, digest_size=16).digest()


def plan_all(planner: Planner, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
    """One plan per ask; planners that can infer many at once get all of them together."""
    if isinstance(planner, CachedPlanner):
        return planner.plans(asks)
    return [planner.plan(ask.question, ask.posts) for ask in asks]
