"""Files people hand in: answers to be graded, and grades that people gave. Every wrong line is reported at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prb.data.load import Dataset
from prb.data.schema import Problem
from prb.data.source import file_source
from prb.errors import BadInput
from prb.grading import TOP, Grades
from prb.types import Pair

T = TypeVar("T")
SHOWN = 20
"""Problems told at once."""


class Given(NamedTuple):
    """An answer to a row, by its id."""

    pair: str
    answer: str


class Human(NamedTuple):
    """A person's grades of an answer."""

    given: Given
    grades: Grades


class Rows:
    """The rows of a split by id, without their posts: no grader sees those."""

    def __init__(self, dataset: Dataset) -> None:
        self.name = dataset.name + (f", split {dataset.split}" if dataset.split else "")
        self.pairs = {pair.id: replace(pair, profile=()) for pair in dataset if isinstance(pair, Pair)}
        self.clusters = dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))
        if not any(pair.rubric for pair in self.pairs.values()):
            raise BadInput(f"no row of {self.name} has a rubric (`rubric_aspects`): there is nothing to grade against")
        self._asking: dict[str, list[Pair]] = defaultdict(list)
        for pair in self.pairs.values():
            self._asking[pair.question].append(pair)

    def find(self, line: Mapping[str, Any]) -> Pair | str:
        """The row that a line means, by its id or by its question; or what is wrong."""
        if "pair" in line:
            return self.pairs.get(str(line["pair"]), f"no row of {self.name} has the id {line['pair']!r}")
        if "question" not in line:
            return "names no row: it wants `pair`, the id of one, or its `question`"
        asking = self._asking.get(str(line["question"]), [])
        return (
            asking[0] if len(asking) == 1 else f"{len(asking)} rows of {self.name} have this `question`: name a `pair`"
        )


def read_answers(path: Path, rows: Rows) -> list[Given]:
    return _read(path, lambda line: _given(line, rows))


def read_human(path: Path, rows: Rows) -> list[Human]:
    return _read(path, lambda line: _human(line, rows))


def _read(path: Path, build: Callable[[Mapping[str, Any]], T | str]) -> list[T]:
    """One thing a line; a text instead of one says what is wrong with the line."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    built: list[T] = []
    problems = []
    for row in file_source(path).rows():
        one = row.problem or (build(row.data) if isinstance(row.data, dict) else "a line is an object")
        if isinstance(one, str):
            problems.append(Problem(row.place, row.line, one))
        else:
            built.append(one)
    if problems:
        more = [f"… and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise BadInput("\n  ".join([f"{path}: not every line can be used", *map(str, problems[:SHOWN]), *more]))
    if not built:
        raise BadInput(f"{path} holds no lines")
    return built


def _given(line: Mapping[str, Any], rows: Rows) -> Given | str:
    pair = rows.find(line)
    if isinstance(pair, str):
        return pair
    answer = line.get("answer")
    return Given(pair.id, answer) if isinstance(answer, str) else "`answer` is missing or is no text"


def _human(line: Mapping[str, Any], rows: Rows) -> Human | str:
    given = _given(line, rows)
    if isinstance(given, str):
        return given
    grades, wanted = line.get("grades"), len(rows.pairs[given.pair].rubric)
    if not wanted:
        return f"row {given.pair!r} has no rubric"
    if not isinstance(grades, list) or len(grades) != wanted:
        return f"`grades` wants a list of {wanted}, one an aspect of row {given.pair!r}"
    if not all(isinstance(g, int) and not isinstance(g, bool) and 0 <= g <= TOP for g in grades):
        return f"`grades` holds {grades!r}; a grade is 0, 1 or 2"
    return Human(given, Grades(aspects=tuple(map(float, grades))))
