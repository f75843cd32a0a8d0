"""Grades that were given elsewhere: looked up by row and answer, and refused where a file is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.grading import GRADERS, Answered, Grades, checked_grades
from prb.types import Aspect, Failure

Write = Callable[..., Path]
RUBRIC = (Aspect("short", "", ""), Aspect("warm", "", ""))
NOT_GRADED = Failure("not graded", "no grade was recorded for this answer")
LINES = [
    {"pair": "r1", "answer": "Yes.", "grades": [0, 2]},
    {"pair": "r2", "answer": "Yes.", "grades": [1, 1.5]},
    {"answers": ["Yes!", "No."], "grades": {"r1": [[2, 2], [0, 0]], "r3": [[1, 0], [0, 1]]}, "question": "?"},
]


def grader(path: Path) -> Any:
    return GRADERS.make(f"recorded?path={path}")


def ask(pair: str, answer: str) -> Answered:
    return Answered(question="?", answer=answer, rubric=RUBRIC, pair=pair)


def refusal(path: Path) -> list[str]:
    with pytest.raises(BadInput) as caught:
        grader(path)
    return str(caught.value).splitlines()


def test_grades_are_looked_up_by_row_and_answer(write_jsonl: Write) -> None:
    model = grader(write_jsonl(LINES, "grades.jsonl"))
    asks = [ask("r2", "Yes."), ask("r1", "Yes."), ask("r1", "No."), ask("r3", "Yes!"), ask("r1", "Yes.")]
    grades = model.grade(asks)
    assert grades == [Grades(aspects=values) for values in ((1.0, 1.5), (0.0, 2.0), (0.0, 0.0), (1.0, 0.0), (0.0, 2.0))]
    assert checked_grades(grades, asks) == grades
    assert not model.remote


def test_an_answer_without_a_grade_is_a_failure_not_a_grade(write_jsonl: Write) -> None:
    model = grader(write_jsonl(LINES, "grades.jsonl"))
    unknown = [ask("r1", "yes."), ask("r2", "No."), ask("r9", "Yes."), ask("", "Yes.")]
    assert model.grade([*unknown, ask("r1", "Yes.")]) == [NOT_GRADED] * 4 + [Grades(aspects=(0.0, 2.0))]
    assert model.grade([]) == []


def test_grades_of_another_rubric_are_a_failure(write_jsonl: Write) -> None:
    asks = [ask("r1", "Yes.")]
    model = grader(write_jsonl([{"pair": "r1", "answer": "Yes.", "grades": [2]}], "grades.jsonl"))
    assert checked_grades(model.grade(asks), asks) == [Failure("no grades", "the grader returned (2.0,) for 2 aspects")]


def test_every_wrong_line_is_named(write_jsonl: Write) -> None:
    lines: list[Any] = [
        {"pair": "r1", "answer": "Yes.", "grades": [0, 2]},
        {"pair": "r1", "answer": "Yes."},
        {"pair": "r1", "answer": "Yes.", "grades": []},
        {"pair": "r1", "answer": "Yes.", "grades": [0, 3]},
        {"pair": "r1", "answer": "Yes.", "grades": [True, 1]},
        {"pair": "r1", "answer": "Yes.", "grades": ["1"]},
        {"pair": "r1", "grades": [1]},
        {"answer": "Yes.", "grades": [1]},
        {"answers": ["Yes.", "No."], "grades": {"r1": [[1]]}},
        {"answers": ["Yes."], "grades": {"r1": [1]}},
        ["r1", "Yes.", [1]],
    ]
    path = write_jsonl(lines, "grades.jsonl")
    numbers, needed = "`grades` must be a list of numbers from 0 to 2, not", "`pair`, `answer` and `grades` are needed"
    told = "\n".join(refusal(path))
    assert told.startswith(f"{path} has lines that cannot be used")
    for line, problem in {2: f"{numbers} None", 3: f"{numbers} []", 7: needed}.items():
        assert f"  grades.jsonl:{line}: {problem}" in told
    for line in range(2, 12):
        assert f"grades.jsonl:{line}" in told


def test_no_file_and_an_empty_one_are_refused(write_jsonl: Write, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.jsonl")[0]
    assert "is empty" in refusal(write_jsonl([], "grades.jsonl"))[0]


def test_two_different_grades_of_one_answer_are_refused_and_equal_ones_are_not(write_jsonl: Write) -> None:
    first = {"pair": "r1", "answer": "Yes.", "grades": [0, 2]}
    same = {"answers": ["Yes."], "grades": {"r1": [[0.0, 2.0]]}}
    model = grader(write_jsonl([first, same], "same.jsonl"))
    assert model.grade([ask("r1", "Yes.")]) == [Grades(aspects=(0.0, 2.0))]
    path = write_jsonl([first, {**first, "grades": [1, 2]}], "different.jsonl")
    assert refusal(path) == [f"{path}: two different grades of the same answer to row 'r1'"]


def test_the_fingerprint_follows_the_content_and_nothing_else(write_jsonl: Write) -> None:
    line = LINES[0]
    base = grader(write_jsonl(LINES, "grades.jsonl")).fingerprint
    assert base.startswith("recorded-")
    extra = [{**line, "rater": "kim"}, *LINES[1:]]
    assert grader(write_jsonl(extra[::-1], "elsewhere.jsonl")).fingerprint == base
    others = [
        [{**line, "grades": [0, 1]}, *LINES[1:]],
        [{**line, "answer": "Yes"}, *LINES[1:]],
        [{**line, "pair": "r4"}, *LINES[1:]],
        LINES[:2],
    ]
    prints = [grader(write_jsonl(lines, f"{n}.jsonl")).fingerprint for n, lines in enumerate(others)]
    assert len({base, *prints}) == len(others) + 1
