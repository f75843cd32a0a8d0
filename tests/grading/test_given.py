"""Files people hand in: every wrong line is told, nothing is used of a file with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.data.load import load
from prb.errors import BadInput
from prb.grading.given import SHOWN, Given, Rows, read_answers, read_human
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]
ASPECTS = [{"aspect": "brevity"}, {"aspect": "warmth"}]


@pytest.fixture
def rows(write_jsonl: Write) -> Rows:
    bare = make_row(2, rubric_aspects=[])
    return Rows(load(str(write_jsonl([make_row(1, rubric_aspects=ASPECTS), bare, *make_twins(3)]))))


def refusal(read: Callable[[Path, Rows], Any], path: Path, rows: Rows) -> str:
    with pytest.raises(BadInput) as caught:
        read(path, rows)
    return str(caught.value)


def test_answers_name_their_row_by_id_or_by_question(rows: Rows, write_jsonl: Write) -> None:
    lines = [
        {"pair": "r1", "answer": "So.", "model": "mine"},
        {"question": "How do I water plant number 1?", "answer": ""},
    ]
    assert read_answers(write_jsonl(lines, "a.jsonl"), rows) == [Given("r1", "So."), Given("r1", "")]


def test_every_wrong_line_is_named(rows: Rows, write_jsonl: Write) -> None:
    question = make_row(3)["question"]
    lines: list[Any] = [
        {"pair": "r1", "answer": "So."},
        {"pair": "r9", "answer": "So."},
        {"pair": "r1"},
        {"pair": "r1", "answer": 3},
        {"answer": "So."},
        {"question": question, "answer": "So."},
        {"question": "Who?", "answer": "So."},
        ["r1", "So."],
    ]
    path = write_jsonl(lines, "a.jsonl")
    with path.open("ab") as file:
        file.write(b'{"pair": ')
    said = refusal(read_answers, path, rows).splitlines()
    assert said == [
        f"{path}: not every line can be used",
        f"  a.jsonl:2: no row of {rows.name} has the id 'r9'",
        "  a.jsonl:3: `answer` is missing or is no text",
        "  a.jsonl:4: `answer` is missing or is no text",
        "  a.jsonl:5: names no row: it wants `pair`, the id of one, or its `question`",
        f"  a.jsonl:6: 2 rows of {rows.name} have this `question`: name a `pair`",
        f"  a.jsonl:7: 0 rows of {rows.name} have this `question`: name a `pair`",
        "  a.jsonl:8: a line is an object",
        said[8],
    ]
    assert "a.jsonl:9: broken JSON" in said[8]


def test_a_long_list_of_problems_is_cut(rows: Rows, write_jsonl: Write) -> None:
    said = refusal(read_answers, write_jsonl([{"pair": "r9"}] * (SHOWN + 5), "a.jsonl"), rows).splitlines()
    assert (len(said), said[-1]) == (SHOWN + 2, "  … and 5 more")


def test_no_file_and_an_empty_one_are_refused(rows: Rows, write_jsonl: Write, tmp_path: Path) -> None:
    assert "does not exist" in refusal(read_answers, tmp_path / "none.jsonl", rows)
    assert "holds no lines" in refusal(read_answers, write_jsonl([], "a.jsonl"), rows)
    (tmp_path / "a.txt").write_text("hello")
    assert "unknown format" in refusal(read_answers, tmp_path / "a.txt", rows)


def test_peoples_grades_are_read(rows: Rows, write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": "r1", "answer": "So.", "grades": [0, 2], "rater": "kim"}], "h.jsonl")
    (human,) = read_human(path, rows)
    assert (human.given, human.grades.aspects) == (Given("r1", "So."), (0.0, 2.0))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"pair": "r1", "answer": "So."}, "`grades` wants a list of 2, one an aspect of row 'r1'"),
        ({"pair": "r1", "answer": "So.", "grades": [1]}, "`grades` wants a list of 2"),
        ({"pair": "r1", "answer": "So.", "grades": [1, 3]}, "a grade is 0, 1 or 2"),
        ({"pair": "r1", "answer": "So.", "grades": [1, 1.5]}, "a grade is 0, 1 or 2"),
        ({"pair": "r1", "answer": "So.", "grades": [1, True]}, "a grade is 0, 1 or 2"),
        ({"pair": "r2", "answer": "So.", "grades": []}, "row 'r2' has no rubric"),
        ({"pair": "r9", "answer": "So.", "grades": [1, 1]}, "has the id 'r9'"),
    ],
)
def test_peoples_grades_must_fit_the_rubric(line: Any, says: str, rows: Rows, write_jsonl: Write) -> None:
    assert says in refusal(read_human, write_jsonl([line], "h.jsonl"), rows)


def test_a_dataset_without_any_rubric_is_refused(write_jsonl: Write) -> None:
    data = load(str(write_jsonl([make_row(1, rubric_aspects=[])])))
    with pytest.raises(BadInput, match="has a rubric"):
        Rows(data)
