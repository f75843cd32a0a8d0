"""Grading in a run folder: each answer once, resumable; what ends in the summary; input files with wrong lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load
from prb.data.schema import read_items
from prb.errors import BadInput, BudgetUsedUp, RunConflict, TooManyFailures, Unreachable
from prb.grading import Answered, GradeConfig, Grades
from prb.grading.llm import LLMGrader
from prb.grading.run import GradableRows, GradeKey, check_failures, grade
from prb.llm import ScriptedLLM
from prb.runs import read_lines
from prb.types import Failure, FailureKind
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]
Grade = Callable[[Answered], Grades | Failure]


def by_length(answered: Answered) -> Grades | Failure:
    """0, 1 or 2 by the length of the answer; a short one fails."""
    if len(answered.answer) < 4:
        return Failure("too short", answered.answer)
    return Grades(aspects=tuple([float(len(answered.answer) % 3)] * len(answered.rubric)), tokens=5, cost=0.5)


class Recording:
    """A grader that keeps what it was asked, and may be interrupted."""

    def __init__(self, function: Grade = by_length, *, remote: bool = False, stop_after: int | None = None) -> None:
        self.fingerprint, self.remote = "recording", remote
        self.asked: list[Answered] = []
        self._function, self._left = function, stop_after

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        self.asked += answers
        return [self._function(answered) for answered in answers]


@pytest.fixture
def data(write_jsonl: Write) -> str:
    return str(write_jsonl([make_row(n) for n in range(1, 6)]))


@pytest.fixture
def answers(write_jsonl: Write) -> Path:
    lines = [("r1", "abcd"), ("r2", "abcde"), ("r1", "no"), ("r2", "abcde"), ("r3", "abcdefgh"), ("r1", "abcde")]
    return write_jsonl([{"pair": pair, "answer": text} for pair, text in lines], "answers.jsonl")


def lines(folder: Path) -> list[dict[str, Any]]:
    return list(read_lines(folder / "grades.jsonl"))


def test_each_distinct_answer_is_graded_once_and_every_given_one_counts(
    data: str, answers: Path, tmp_path: Path
) -> None:
    grader = Recording()
    config = GradeConfig(grader="mine", dataset=data, answers=answers, out=tmp_path / "run")
    summary = grade(config, grader=grader).summary
    assert [a.answer for a in grader.asked] == ["abcd", "abcde", "no", "abcdefgh", "abcde"]
    # by length mod 3: abcd 1, abcde 2 three times, no fails, abcdefgh 2; a score is half a grade
    assert summary["score"]["value"] == pytest.approx((0.5 + 1 + 1 + 1 + 1) / 5)
    assert (summary["score"]["n"], summary["score"]["failed"]) == (5, 1)
    assert summary["answers"] == {"given": 6, "distinct": 5}
    assert summary["failures"] == {"too short": 1}
    assert (summary["tokens"], summary["cost"]) == (20, 2.0)
    stored = lines(tmp_path / "run")
    assert [(line["pair"], line["score"]) for line in stored][:3] == [("r1", 0.5), ("r2", 1.0), ("r1", None)]
    assert stored[2]["failure"] == "too short: no"
    assert orjson.loads((tmp_path / "run" / "summary.json").read_bytes()) == summary


def test_settings_may_be_keywords(data: str, answers: Path, tmp_path: Path) -> None:
    config = GradeConfig(grader="mine", dataset=data, answers=answers, limit=2, out=tmp_path / "a")
    one = grade(config, grader=Recording())
    two = grade(grader=Recording(), dataset=data, answers=str(answers), limit=2, out=tmp_path / "b")
    three = grade(config, grader=Recording(), out=tmp_path / "c")
    assert one.summary["score"] == two.summary["score"] == three.summary["score"]
    assert three.folder == tmp_path / "c"


def test_nothing_stays_behind_where_nothing_was_graded(data: str, answers: Path, tmp_path: Path) -> None:
    config = GradeConfig(grader="mine", dataset=data, answers=answers, out=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        grade(config, grader=Recording(stop_after=0))
    assert not (tmp_path / "run").exists()


def test_a_changed_file_or_grader_is_refused(data: str, answers: Path, tmp_path: Path, write_jsonl: Write) -> None:
    config = GradeConfig(grader="mine", dataset=data, answers=answers, out=tmp_path / "run")
    grade(config, grader=Recording())
    other = Recording()
    other.fingerprint = "another"
    with pytest.raises(RunConflict, match="'another' now"):
        grade(config, grader=other)
    write_jsonl([{"pair": "r1", "answer": "abcd"}], "answers.jsonl")
    with pytest.raises(RunConflict, match=r"files\.answers"):
        grade(config, grader=Recording())


@pytest.mark.parametrize(
    ("remote", "mask_pii", "masked"),
    [(True, "auto", True), (True, "off", False), (False, "auto", False), (False, "on", True)],
)
def test_the_users_words_are_masked_for_graders_elsewhere(
    remote: bool, mask_pii: Any, masked: bool, write_jsonl: Write, answers: Path, tmp_path: Path
) -> None:
    mail = "me@example.org"
    aspects = [{"aspect": "brevity", "evidence": f"write to {mail}", "reason": mail}]
    rows = [make_row(n, question=f"Mail {mail}?", narrative=mail, rubric_aspects=aspects) for n in (1, 2, 3)]
    data = str(write_jsonl(rows, "mail.jsonl"))
    grader = Recording(remote=remote)
    grade(
        GradeConfig(grader="mine", dataset=data, answers=answers, mask_pii=mask_pii, out=tmp_path / "run"),
        grader=grader,
    )
    for asked in grader.asked:
        texts = (asked.question, asked.narrative, asked.rubric[0].evidence, asked.rubric[0].reason)
        assert [mail in text for text in texts] == [not masked] * 4


def test_a_row_without_rubric_fails_and_the_others_are_graded(write_jsonl: Write, tmp_path: Path) -> None:
    data = str(write_jsonl([make_row(1), make_row(2, rubric_aspects=[])]))
    answers = write_jsonl([{"pair": p, "answer": "[2]"} for p in ("r1", "r2")], "answers.jsonl")
    config = GradeConfig(grader="mine", dataset=data, answers=answers, out=tmp_path / "run")
    summary = grade(config, grader=LLMGrader(ScriptedLLM("[2]"))).summary
    assert (summary["score"]["n"], summary["failures"]) == (1, {"no rubric": 1})


@pytest.mark.parametrize("aspects", [(), (1.0, 1.0), (3.0,), (float("nan"),)])
def test_a_grader_that_returns_nonsense_has_failed(
    aspects: tuple[float, ...], data: str, answers: Path, tmp_path: Path
) -> None:
    config = GradeConfig(grader="mine", dataset=data, answers=answers, out=tmp_path / "run")
    summary = grade(config, grader=Recording(lambda _: Grades(aspects=aspects))).summary
    assert (summary["score"]["value"], summary["failures"]) == (None, {"no grades": 6})


def test_validation_grades_both_answers_of_every_row(data: str, tmp_path: Path) -> None:
    def knows(answered: Answered) -> Grades | Failure:
        if "number 5" in answered.question:
            return Failure("busy")
        return Grades(aspects=(2.0,) if answered.answer.startswith("Once") else (1.0,))

    config = GradeConfig(grader="mine", dataset=data, validate=True, retest=True, out=tmp_path / "run")
    summary = grade(config, grader=Recording(knows)).summary
    found = summary["validation"]
    assert (found["accuracy"]["value"], found["accuracy"]["n"], found["accuracy"]["failed"]) == (1.0, 4, 1)
    assert found["gap"]["value"] == 0.5
    assert summary["retest"] == {"deterministic": True}
    assert summary["human"] is None
    assert len(lines(tmp_path / "run")) == 10


def test_a_retest_asks_again_under_another_seed(data: str, tmp_path: Path) -> None:
    llm = ScriptedLLM(lambda r: "[2]" if r.sampling.seed == 0 or "number 1" in r.chat[0].text else "[1]")
    config = GradeConfig(grader="mine", dataset=data, validate=True, retest=True, limit=4, out=tmp_path / "run")
    found = grade(config, grader=LLMGrader(llm)).summary["retest"]
    assert len(llm.requests) == 2 * 2 * 4
    assert (found["deterministic"], found["answers"], found["equal"]["value"]) == (False, 8, 0.25)
    assert [line["round"] for line in lines(tmp_path / "run")] == [0] * 8 + [1] * 8


def test_human_grades_are_compared_with_the_graders_own(data: str, tmp_path: Path, write_jsonl: Write) -> None:
    rows = [make_row(n) for n in (1, 2, 5)]
    human = [{"pair": row["id"], "answer": row["chosen"], "grades": [2]} for row in rows]
    human += [{"pair": "r1", "answer": "Never seen before.", "grades": [0]}]
    human += [{"pair": "r1", "answer": rows[0]["chosen"], "grades": [1]}]  # a second annotator
    path = write_jsonl(human, "human.jsonl")
    grader = Recording(lambda a: Grades(aspects=(2.0,) if a.answer.startswith("Once") else (0.0,)))
    config = GradeConfig(grader="mine", dataset=data, validate=True, human=path, limit=2, out=tmp_path / "run")
    summary = grade(config, grader=grader).summary
    assert (summary["human"]["answers"], summary["human"]["equal"]["value"]) == (5, 0.8)
    assert summary["validation"]["accuracy"]["n"] == 2  # the limit is on rows, not on what annotators graded
    assert len(grader.asked) == 4 + 3  # one of them is in the sample


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "either --answers FILE or --validate"),
        ({"validate": True, "answers": Path("a.jsonl")}, "either --answers FILE or --validate"),
        ({"answers": Path("a.jsonl"), "retest": True}, "only be used with --validate"),
        ({"answers": Path("a.jsonl"), "human": Path("h.jsonl")}, "only be used with --validate"),
        ({"validate": True, "limit": 0}, "limit must be at least 1, not 0"),
        ({"validate": True, "batch": 0}, "batch must be at least 1, not 0"),
        ({"validate": True, "grad": "x"}, "there is no setting 'grad'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        grade(grader=Recording(), **changes)


# input files

ASPECTS = [{"aspect": "brevity"}, {"aspect": "warmth"}]


@pytest.fixture
def rows(write_jsonl: Write) -> GradableRows:
    bare = make_row(2, rubric_aspects=[])
    return GradableRows(load(str(write_jsonl([make_row(1, rubric_aspects=ASPECTS), bare, *make_twins(3)]))))


def refusal(path: Path, parse: Callable[[Any], Any]) -> str:
    with pytest.raises(BadInput) as caught:
        read_items(path, parse)
    return str(caught.value)


def test_answers_name_their_row_by_id_or_by_question(rows: GradableRows, write_jsonl: Write) -> None:
    lines = [
        {"pair": "r1", "answer": "So.", "model": "mine"},
        {"question": "How do I water plant number 1?", "answer": ""},
    ]
    assert read_items(write_jsonl(lines, "a.jsonl"), rows.key) == [GradeKey("r1", "So."), GradeKey("r1", "")]


def test_every_wrong_line_is_named(rows: GradableRows, write_jsonl: Write) -> None:
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
    said = refusal(path, rows.key).splitlines()
    assert said == [
        f"{path} has lines that cannot be used",
        f"  a.jsonl:2: no row of {rows.name} has the id 'r9'",
        "  a.jsonl:3: `answer` is missing or not a string (and 1 more: a.jsonl:4)",
        "  a.jsonl:5: `pair` (the id of a row) or `question` is missing",
        f"  a.jsonl:6: 2 rows of {rows.name} have this `question`: give `pair` (and 1 more: a.jsonl:7)",
        "  a.jsonl:8: a line must be a JSON object",
        said[6],
    ]
    assert "a.jsonl:9: broken JSON" in said[6]


def test_no_file_and_an_empty_one_are_refused(rows: GradableRows, write_jsonl: Write, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.jsonl", rows.key)
    assert "is empty" in refusal(write_jsonl([], "a.jsonl"), rows.key)
    (tmp_path / "a.txt").write_text("hello")
    assert "unknown format" in refusal(tmp_path / "a.txt", rows.key)


def test_human_grades_are_read(rows: GradableRows, write_jsonl: Write) -> None:
    path = write_jsonl([{"pair": "r1", "answer": "So.", "grades": [0, 2], "rater": "kim"}], "h.jsonl")
    (human,) = read_items(path, rows.human_grades)
    assert (human.key, human.grades.aspects) == (GradeKey("r1", "So."), (0.0, 2.0))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"pair": "r1", "answer": "So."}, "`grades` must be a list of 2, one per aspect of row 'r1'"),
        ({"pair": "r1", "answer": "So.", "grades": [1]}, "`grades` must be a list of 2"),
        ({"pair": "r1", "answer": "So.", "grades": [1, 3]}, "a grade is 0, 1 or 2"),
        ({"pair": "r1", "answer": "So.", "grades": [1, 1.5]}, "a grade is 0, 1 or 2"),
        ({"pair": "r1", "answer": "So.", "grades": [1, True]}, "a grade is 0, 1 or 2"),
        ({"pair": "r2", "answer": "So.", "grades": []}, "row 'r2' has no rubric"),
        ({"pair": "r9", "answer": "So.", "grades": [1, 1]}, "has the id 'r9'"),
    ],
)
def test_human_grades_must_fit_the_rubric(line: Any, says: str, rows: GradableRows, write_jsonl: Write) -> None:
    assert says in refusal(write_jsonl([line], "h.jsonl"), rows.human_grades)


def test_a_dataset_without_any_rubric_is_refused(write_jsonl: Write) -> None:
    data = load(str(write_jsonl([make_row(1, rubric_aspects=[])])))
    with pytest.raises(BadInput, match="has a rubric"):
        GradableRows(data)


# graders that do not answer


def failing(failure: Failure, after: int, times: int = 10**9) -> Grade:
    calls = iter(range(10**9))

    def function(answered: Answered) -> Grades | Failure:
        return failure if after <= next(calls) < after + times else by_length(answered)

    return function


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure("HTTP 401", "wrong key", kind="fatal"), Unreachable),
        (Failure("budget used up", "$1 of $1", kind="budget"), BudgetUsedUp),
    ],
)
def test_a_grader_that_cannot_be_reached_stops_the_run_and_nothing_is_paid_twice(
    data: str, tmp_path: Path, failure: Failure, error: type[Exception]
) -> None:
    config = GradeConfig(grader="mine", dataset=data, validate=True, out=tmp_path / "run", batch=10)
    whole = grade(config, grader=Recording(), out=tmp_path / "whole").summary
    with pytest.raises(error, match=str(failure).replace("$", r"\$")):
        grade(config, grader=Recording(failing(failure, 3)))
    again = Recording()
    assert grade(config, grader=again).summary == whole
    assert len(again.asked) == 7


def test_a_wrong_key_from_the_start_leaves_no_folder(data: str, tmp_path: Path) -> None:
    wrong_key = Failure("HTTP 401", "wrong key", kind="fatal")
    config = GradeConfig(grader="mine", dataset=data, validate=True, out=tmp_path / "run")
    with pytest.raises(Unreachable):
        grade(config, grader=Recording(lambda _: wrong_key))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "fresh", "again"), [("transient", False, 2), ("row", False, 0), ("row", True, 10)])
def test_answers_that_failed_are_graded_again(
    data: str, tmp_path: Path, kind: FailureKind, fresh: bool, again: int
) -> None:
    config = GradeConfig(grader="mine", dataset=data, validate=True, out=tmp_path / "run", batch=4)
    whole = grade(config, grader=Recording(), out=tmp_path / "whole").summary
    first = grade(config, grader=Recording(failing(Failure("lost", kind=kind), 2, 2))).summary
    with pytest.raises(TooManyFailures, match=r"mine: 1 of 5 failed \(2 × lost\)"):
        check_failures(first, 0.1)
    grader = Recording()
    mended = grade(config, grader=grader, fresh=fresh).summary
    assert len(grader.asked) == again
    assert (mended == whole) == bool(again)
    assert len(lines(tmp_path / "run")) == 10
