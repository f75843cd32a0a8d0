"""Answers against a person's rubric. Graders may see the rubric and the narrative; reward models may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from prb.data.pii import mask
from prb.registry import Registry
from prb.types import Aspect, Failure, Pair

TOP = 2
"""An aspect is graded 0 (not met), 1 (in part) or 2 (met)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer to be graded, with all that a grader may know of what this person wanted."""

    question: str
    answer: str
    rubric: tuple[Aspect, ...]
    narrative: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """One grade an aspect, 0 to 2, in the rubric's order."""

    aspects: tuple[float, ...]
    tokens: int = 0
    cost: float = 0.0
    text: tuple[str, ...] = ()
    """What a language model wrote, one entry a call."""

    @property
    def score(self) -> float:
        """Share of all that could be met, 0 to 1: Σ / 2n, as LaMP-QA has it; twice this is the mean grade."""
        return sum(self.aspects) / (TOP * len(self.aspects))


class Grader(Protocol):
    fingerprint: str
    remote: bool
    """Whether texts leave the machine."""

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]: ...


@runtime_checkable
class Reseedable(Protocol):
    """A grader that may say something else when asked again; those without are deterministic."""

    def reseeded(self, seed: int) -> Grader: ...


def ungradable(answered: Answered) -> Failure | None:
    """Why there cannot be a grade, whoever gives it."""
    if not answered.rubric:
        return Failure("no rubric", "there is nothing to grade against")
    return None if answered.answer.strip() else Failure("empty answer")


def validity_of(grader: Grader) -> str | None:
    """What a grader was measured to be worth, to be said wherever its grades are shown; most cannot tell."""
    return getattr(grader, "validity", None)


def answered(pair: Pair, answer: str, *, masked: bool = False) -> Answered:
    """What a grader is shown of a row. The person's words are masked where asked for; answers are not theirs."""
    if not masked:
        return Answered(question=pair.question, answer=answer, rubric=pair.rubric, narrative=pair.narrative)
    rubric = tuple([Aspect(*map(mask, aspect)) for aspect in pair.rubric])
    return Answered(question=mask(pair.question), answer=answer, rubric=rubric, narrative=mask(pair.narrative))


GRADERS: Registry[Grader] = Registry("grader", package="prb.grade", group="prb.graders")
