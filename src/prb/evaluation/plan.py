"""Planners infer what a person probably wants from an answer, from posts and question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from prb.cache import Cache
from prb.registry import Registry
from prb.types import Failure, Post

Plan = tuple[str, ...]


class Planner(Protocol):
    """Those that send texts to another machine say so with `remote = True`. None of them ever sees a rubric."""

    fingerprint: str

    def plan(self, question: str, posts: Sequence[Post]) -> Plan | Failure: ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluation.planners", group="prb.planners")


class PlanAsk(NamedTuple):
    question: str
    posts: Sequence[Post]


class Remembering:
    """A planner that works on many at once and remembers by content what it found, with a cache across runs too;
    failures it forgets."""

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
        self._infer, self._content, self._cache = infer, content, cache
        self._known: dict[bytes, Plan] = {}

    def plan(self, question: str, posts: Sequence[Post]) -> Plan | Failure:
        return self.plans([PlanAsk(question, posts)])[0]

    def plans(self, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
        keys = [self._key(ask) for ask in asks]
        if self._cache:
            kept = self._cache.get([key for key in dict.fromkeys(keys) if key not in self._known])
            self._known.update({key: tuple(plan) for key, plan in kept.items()})
        new = {key: ask for key, ask in zip(keys, asks, strict=True) if key not in self._known}
        found = dict(zip(new, self._infer(list(new.values())), strict=True)) if new else {}
        sound = {key: plan for key, plan in found.items() if not isinstance(plan, Failure)}
        self._known.update(sound)
        if self._cache and sound:
            self._cache.put(self.fingerprint, sound)
        return [found[key] if key in found else self._known[key] for key in keys]

    def _key(self, ask: PlanAsk) -> bytes:
        texts = "\0".join([self.fingerprint, *self._content(ask)]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(texts, digest_size=16).digest()


def plan_all(planner: Planner, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
    """One plan an ask; planners that can do many at once are asked for all of them together."""
    if isinstance(planner, Remembering):
        return planner.plans(asks)
    return [planner.plan(ask.question, ask.posts) for ask in asks]
