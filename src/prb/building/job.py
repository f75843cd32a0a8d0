"""What is to be written, what was written, and what was found out about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from prb.building.records import Record
from prb.building.rubric import Rubric
from prb.grading import Grades


@dataclass(frozen=True, kw_only=True)
class Partner:
    """The other person of a mirror couple."""

    record: Record
    rubric: Rubric


@dataclass(frozen=True, kw_only=True)
class Job:
    """One question for which two answers are wanted: one that follows the rubric, one that goes against it."""

    record: Record
    rubric: Rubric
    against: tuple[str, ...]
    """What the rejected answer does instead: an opposite wish an aspect, or the partner's own wishes."""
    partner: Partner | None = None

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True, kw_only=True)
class Made:
    """A pair that passed its gates."""

    job: Job
    chosen: str
    rejected: str
    grades: tuple[Grades, Grades] | None
    """Of chosen and rejected, against the rubric; `None` if that gate was switched off."""
    quality: tuple[float, float] | None
    round: int


class Check(NamedTuple):
    """One gate applied once, passed or not."""

    record: str
    round: int
    what: str
    gate: str
    reason: str | None
    """Why it was not passed."""
