"""Planners infer what a person probably wants from an answer, from posts and question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from prb.registry import Registry
from prb.types import Failure, Post

Plan = tuple[str, ...]


class Planner(Protocol):
    """Those that send texts to another machine say so with `remote = True`. None of them ever sees a rubric."""

    fingerprint: str

    def plan(self, question: str, posts: Sequence[Post]) -> Plan | Failure: ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluate.planners", group="prb.planners")


class PlanAsk(NamedTuple):
    question: str
    posts: Sequence[Post]


class Remembering:
    """A planner that works on many at once and remembers by content what it found; failures it forgets."""

    def __init__(
        self,
        infer: Callable[[Sequence[PlanAsk]], Sequence[Plan | Failure]],
        content: Callable[[PlanAsk], Sequence[str]],
        *,
        fingerprint: str,
        remote: bool,
    ) -> None:
        self.fingerprint, self.remote = fingerprint, remote
        self._infer, self._content = infer, content
        self._known: dict[bytes, Plan] = {}

    def plan(self, question: str, posts: Sequence[Post]) -> Plan | Failure:
        return self.plans([PlanAsk(question, posts)])[0]

    def plans(self, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
        keys = [self._key(ask) for ask in asks]
        new = {key: ask for key, ask in zip(keys, asks, strict=True) if key not in self._known}
        found = dict(zip(new, self._infer(list(new.values())), strict=True)) if new else {}
        self._known.update({key: plan for key, plan in found.items() if not isinstance(plan, Failure)})
        return [found[key] if key in found else self._known[key] for key in keys]

    def _key(self, ask: PlanAsk) -> bytes:
        texts = "\0".join(self._content(ask)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(texts, digest_size=16).digest()


def plan_all(planner: Planner, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
    """One plan an ask; planners that can do many at once are asked for all of them together."""
    if isinstance(planner, Remembering):
        return planner.plans(asks)
    return [planner.plan(ask.question, ask.posts) for ask in asks]
