"""Grades that were given elsewhere, looked up by row and answer: by human annotators, or by an LLM once and for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from itertools import chain
from pathlib import Path
from typing import Any

from prb.data.schema import read_items
from prb.errors import BadInput
from prb.grading import GRADERS, Answered, Grader, Grades, fits_rubric
from prb.hashing import digest
from prb.types import Failure

Key = tuple[str, str]
"""Id of the row, answer."""
NOT_GRADED = Failure("not graded", "no grade was recorded for this answer")


class RecordedGrades:
    remote = False

    def __init__(self, grades: Mapping[Key, tuple[float, ...]]) -> None:
        self._grades = grades
        self.fingerprint = f"recorded-{digest(*([*key, *values] for key, values in sorted(grades.items()))).hex()[:16]}"

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        recorded = [self._grades.get((answered.pair, answered.answer)) for answered in answers]
        return [NOT_GRADED if grades is None else Grades(aspects=grades) for grades in recorded]


@GRADERS.register("recorded")
def recorded(path: Path | None = None) -> Grader:
    """Grades from a file (path=FILE); by default those of the answers that `prb bon --candidates mirror` uses.

    One {"pair": id of a row, "answer": text, "grades": [0, 2, 1]} per line, a grade per aspect of the row's rubric.
    """
    if path:
        lines = read_items(path, _read_line)
    else:
        with as_file(files("prb.data") / "mirror" / "pool.jsonl") as pool:
            lines = read_items(pool, _read_line)
    grades: dict[Key, tuple[float, ...]] = {}
    for key, values in chain.from_iterable(lines):
        if grades.setdefault(key, values) != values:
            raise BadInput(f"{path or 'mirror'}: two different grades of the same answer to row {key[0]!r}")
    return RecordedGrades(grades)


def _read_line(line: Mapping[str, Any]) -> list[tuple[Key, tuple[float, ...]]]:
    """The grades of one answer, or of several: `answers` with `grades` by row, a list per answer."""
    grades, answers = line.get("grades"), line.get("answers")
    if isinstance(grades, dict) and isinstance(answers, list):
        entries: list[tuple[Key, tuple[float, ...]]] = []
        for pair, by_answer in grades.items():
            if not isinstance(by_answer, list) or len(by_answer) != len(answers):
                raise ValueError(f"`grades` of {pair!r} must have a list per answer")
            entries += [((str(pair), str(a)), _checked(g)) for a, g in zip(answers, by_answer, strict=True)]
        return entries
    if "pair" in line and isinstance(line.get("answer"), str):
        return [((str(line["pair"]), line["answer"]), _checked(grades))]
    raise ValueError("`pair`, `answer` and `grades` are needed")


def _checked(values: Any) -> tuple[float, ...]:
    numbers = isinstance(values, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers or not fits_rubric(values, len(values)):
        raise ValueError(f"`grades` must be a list of numbers from 0 to 2, not {values!r:.80}")
    return tuple(map(float, values))
