"""Aspects may have a weight, a polarity, and be required."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prb.building.stages import parse_record
from prb.data.convert import convert
from prb.data.schema import to_pair
from prb.data.source import open_source
from prb.errors import BadData
from prb.evaluation.conditions import true_plan
from prb.grading import Answered, Grades, answered, checked_grades, grading_calls
from prb.grading.llm import LLMGrader
from prb.grading.run import grade
from prb.llm import ScriptedLLM
from prb.types import Aspect
from prb.work import Asked
from tests.conftest import make_row


def score(grades: tuple[float, ...], *rubric: Aspect) -> float:
    asked = [Answered(question="q", answer="a", rubric=rubric)]
    (graded,) = checked_grades([Grades(aspects=grades)], asked)
    assert isinstance(graded, Grades)
    return graded.score


def test_without_them_every_aspect_counts_the_same():
    assert score((2, 1, 0), Aspect("x"), Aspect("y"), Aspect("z")) == 0.5


def test_weights_make_a_weighted_mean():
    assert score((2, 0), Aspect("x", weight=3), Aspect("y")) == pytest.approx(3 / 4)


def test_a_negative_aspect_counts_as_far_as_it_is_absent():
    assert score((2, 2), Aspect("x"), Aspect("y", negative=True)) == 0.5
    assert score((2, 0), Aspect("x"), Aspect("y", negative=True)) == 1.0


def test_a_required_aspect_that_is_missed_altogether_makes_the_score_zero():
    assert score((2, 0), Aspect("x"), Aspect("y", required=True)) == 0.0
    assert score((2, 1), Aspect("x"), Aspect("y", required=True)) == 0.75
    assert score((2, 2), Aspect("x"), Aspect("y", required=True, negative=True)) == 0.0


def test_a_row_says_how_its_aspects_count_and_grading_honors_it(write_jsonl, tmp_path):
    aspects = [
        {"aspect": "brevity", "weight": 3, "required": True},
        {"aspect": "jargon", "polarity": "negative", "weight": 1},
    ]
    path = write_jsonl([make_row(1, rubric_aspects=aspects), make_row(2)])

    class Half:
        fingerprint, remote = "half", False

        def grade(self, answers):
            return [Grades(aspects=(2.0, 2.0) if len(a.rubric) == 2 else (1.0,)) for a in answers]

    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"pair": "r1", "answer": "x"}\n', "utf-8")
    result = grade(grader=Half(), dataset=str(path), answers=answers, out=tmp_path / "run")
    assert result.summary["score"]["value"] == pytest.approx(3 / 4)
    assert convert(open_source(str(path)), tmp_path / "rows.parquet") == 2
    assert next(iter(open_source(str(tmp_path / "rows.parquet")).rows())).data["rubric_aspects"] == aspects


@pytest.mark.parametrize("wrong", [{"weight": 0}, {"weight": "much"}, {"polarity": "bad"}, {"required": "yes"}])
def test_a_wrong_way_to_count_is_an_error_of_the_row(write_jsonl, tmp_path, wrong):
    path = write_jsonl([make_row(1, rubric_aspects=[{"aspect": "brevity", **wrong}])])
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"pair": "r1", "answer": "x"}\n', "utf-8")
    with pytest.raises(BadData):
        grade(dataset=str(path), answers=answers, out=tmp_path / "run")


def test_a_grader_reads_that_an_aspect_is_negative_and_never_how_much_it_counts():
    llm = ScriptedLLM('[{"aspect": 1, "grade": 2}]')
    grader = LLMGrader(llm)
    plain, heavy, negative = (
        Answered(question="q", answer="a", rubric=(aspect,))
        for aspect in (Aspect("x"), Aspect("x", weight=5, required=True), Aspect("x", negative=True))
    )
    keys = [call.key for call in grading_calls(Asked.of("g", grader, "grade"), grader, [plain, heavy, negative])]
    assert keys[0] == keys[1] != keys[2]
    pair = to_pair(make_row())
    assert answered(pair, "x", masked=True).rubric == pair.rubric


def test_the_oracle_is_told_how_an_aspect_counts():
    item = replace(
        to_pair(make_row()), rubric=(Aspect("jargon", negative=True), Aspect("brevity", weight=2, required=True))
    )
    assert true_plan(item) == ("avoid jargon", "brevity (×2, required)")


def test_an_aspect_is_written_as_it_was_read_and_a_build_keeps_how_it_counts():
    rows = [{"aspect": "x", "evidence": "", "reason": "", "weight": 2.0, "polarity": "negative", "required": True}]
    rows.append({"aspect": "y", "evidence": "e", "reason": "r"})
    assert [Aspect.read(row).as_row() for row in rows] == rows
    record = parse_record({"id": 1, "question": "q?", "narrative": "n", "posts": ["p"], "rubric_aspects": rows})
    assert [aspect.as_row() for aspect in record.rubric] == rows
