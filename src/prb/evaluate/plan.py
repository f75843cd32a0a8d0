"""Planners infer what a person probably wants from an answer, from posts and question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prb.registry import Registry
from prb.types import Post


class Planner(Protocol):
    fingerprint: str

    def plan(self, question: str, posts: Sequence[Post]) -> tuple[str, ...]: ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluate.planners", group="prb.planners")
