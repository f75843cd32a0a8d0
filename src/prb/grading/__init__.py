"""Answers against a person's rubric. Graders may see the rubric and the narrative; reward models may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from prb.registry import Registry
from prb.text.pii import mask
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


def grade_all(grader: Grader, answers: Sequence[Answered]) -> list[Grades | Failure]:
    """What a grader says, checked: one from elsewhere may return anything."""
    said = grader.grade(answers)
    if len(said) != len(answers):
        raise RuntimeError(f"the grader gave {len(said)} results for {len(answers)} answers")
    return [_checked(graded, len(one.rubric)) for graded, one in zip(said, answers, strict=True)]


def _checked(graded: Grades | Failure, wanted: int) -> Grades | Failure:
    """What is not one grade an aspect on the scale is a failure."""
    if isinstance(graded, Failure):
        return graded
    if not graded.aspects or len(graded.aspects) != wanted or not all(0 <= grade <= TOP for grade in graded.aspects):
        return Failure("no grades", f"the grader returned {graded.aspects!r:.100} for {wanted} aspects")
    return graded


def as_line(graded: Grades | Failure) -> dict[str, Any]:
    """As it stands in a file; what a failure was charged is booked too."""
    if isinstance(graded, Failure):
        spent = {"tokens": graded.prompt_tokens + graded.completion_tokens, "cost": graded.cost}
        return {"score": None, "aspects": None, "failure": str(graded), **spent, "text": ()}
    told = {"tokens": graded.tokens, "cost": graded.cost, "text": graded.text}
    return {"score": graded.score, "aspects": graded.aspects, "failure": None, **told}


def about_grader(spec: str | None, grader: Grader) -> dict[str, str | None]:
    """Whose grades these are and what it was measured to be worth, said wherever they are shown; most cannot tell."""
    return {"spec": spec, "fingerprint": grader.fingerprint, "validity": getattr(grader, "validity", None)}


def answered(pair: Pair, answer: str, *, masked: bool = False) -> Answered:
    """What a grader is shown of a row. The person's words are masked where asked for; answers are not theirs."""
    if not masked:
        return Answered(question=pair.question, answer=answer, rubric=pair.rubric, narrative=pair.narrative)
    rubric = tuple([Aspect(*map(mask, aspect)) for aspect in pair.rubric])
    return Answered(question=mask(pair.question), answer=answer, rubric=rubric, narrative=mask(pair.narrative))


GRADERS: Registry[Grader] = Registry("grader", package="prb.grading", group="prb.graders")
