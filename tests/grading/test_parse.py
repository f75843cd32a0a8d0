"""Replies as judges really write them, and replies that must not become a grade."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.grading.parse import read_all, read_one
from prb.llm import Completion
from prb.types import Failure

ASPECTS = ("Brevity", "A warm tone")


def one(text: str) -> tuple[int, ...] | Failure | None:
    return read_one(Completion(text=text))


def both(text: str) -> tuple[int, ...] | Failure | None:
    return read_all(Completion(text=text), ASPECTS)


def test_every_real_reply_that_a_published_parser_rejected_is_read(shared_data: Path) -> None:
    lines = (shared_data / "lampqa" / "judge_raw_outputs_distinct.jsonl").read_text("utf-8").splitlines()
    replies = [json.loads(line) for line in lines]
    assert len(replies) == 49
    assert [one(reply["raw"]) for reply in replies] == [(int(r["score_seen_by_eye_regex"]),) for r in replies]


@pytest.mark.parametrize(
    "text",
    [
        '{"grade": 1}',
        '{"why": "It is "short" enough", "grade": 1}',  # quotation marks inside a string
        '{"why": "one\nline\ttoo many", "grade": 1}',
        "{'why': 'it's fine', 'grade': 1,}",
        '```json\n{"match_score": 1}\n```',
        'Let me think: {"why": "as in [2]", "grade": 1} That is all.',
        '{"confidence": 0.2, "aspects": 3, "grade": "1"}',
        '{"why": "the answer itself says \\"grade\\": 2", "grade": 1}',
        '{"grade": 1.0}',
        '{"grade": "1/2"}',
        "**Score:** 1 out of 2",
        "Match score = 1",
        " 1. ",
        "<think>grade: 2, or rather grade: 0</think> grade: 1",
        '{"grade": 1}\n{"grade": 1}',
        "json\n{“grade”: 1}",
    ],
)
def test_one_grade_is_found_however_it_is_dressed(text: str) -> None:
    assert one(text) == (1,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot say.",
        '{"grade": null}',
        '{"grade": true}',
        '{"grade": "high"}',
        '{"grade": 1} and {"grade": 2}',
        '{"grade": 2, "grade": 0}',
        'Grade: 1\n{"grade": 2}',
        '{"why": "grade: 0 would be "harsh"", "grade": 1}',  # no JSON, so the string cannot be told from the rest
        "grade: 1 or 2",
        "grade: 1-2",
        "score: 0/1/2",
        "<think>grade: 2",
        "grade: 50%",
        '{"overall_score": 2}',
        "overall_score: 2",
    ],
)
def test_no_grade_or_more_than_one_is_none(text: str) -> None:
    assert one(text) is None


@pytest.mark.parametrize("value", ["3", "-1", "1.5", '"1,5"', "2/3", "20", "1e9999999"])
def test_a_grade_off_the_scale_is_a_failure_or_nothing_but_never_a_grade(value: str) -> None:
    found = one(f'{{"grade": {value}}}')
    assert found is None or (isinstance(found, Failure) and found.reason == "grade outside the scale")


def test_the_failure_says_what_was_written() -> None:
    assert str(one('{"grade": 3}')) == "grade outside the scale: 3, wanted 0, 1 or 2"
    assert str(both('[{"aspect": 1, "grade": 2}, {"aspect": 2, "grade": 1.5}]')) == (
        "grade outside the scale: 1.5, wanted 0, 1 or 2"
    )


@pytest.mark.parametrize(
    "text",
    [
        '[{"aspect": 1, "why": "…", "grade": 2}, {"aspect": 2, "why": "…", "grade": 0}]',
        '[{"aspect": 2, "grade": 0}, {"aspect": 1, "grade": 2}]',
        '{"aspect": 1, "grade": 2}\n{"aspect": 2, "grade": 0}',
        '[{"aspect": "Brevity", "score": 2}, {"aspect": "a  warm tone", "score": 0}]',
        '[{"aspect": "1. Brevity", "grade": 2}, {"aspect": "Aspect 2: a warm tone", "grade": 0}]',
        '{"grades": [{"id": 1, "match_score": "2"}, {"id": "2", "match_score": "0"}]}',
        '{"1": 2, "2": 0}',
        '{"Brevity": 2, "A warm tone": {"why": "5", "grade": 0}}',
        '{"grades": {"aspect_1": 2, "aspect 2": 0}}',
        '{"grades": [2, 0]}',
        "[2, 0]",
        '[{"grade": 2}, {"grade": 0}]',
        '[{"aspect": 1, "why": "says "no" twice", "grade": 2}, {"aspect": 2, "grade": 0}]',
        "[{'aspect': 1, 'grade': 2}, {'aspect': 'A warm tone', 'grade': 0}]",
        "aspect: 1, grade: 2\naspect: 2, grade: 0",
    ],
)
def test_all_grades_are_found_and_put_in_the_rubrics_order(text: str) -> None:
    assert both(text) == (2, 0)


@pytest.mark.parametrize(
    "text",
    [
        '[{"aspect": 1, "grade": 2}]',
        "[2]",
        "[2, 0, 1]",
        "2",
        '[{"aspect": 1, "grade": 2}, {"aspect": 3, "grade": 0}]',
        '[{"aspect": 0, "grade": 2}, {"aspect": 1, "grade": 0}]',
        '[{"aspect": 1, "grade": 2}, {"aspect": 1, "grade": 0}, {"aspect": 2, "grade": 0}]',
        '[{"aspect": "Brevity", "grade": 2}, {"aspect": "Wit", "grade": 0}]',
        '[{"aspect": 1, "grade": 2}, {"grade": 0}]',
        "[{'grade': 2, 'aspect': 1}, {'grade': 0, 'aspect': 2}]",  # not JSON: a grade before its aspect is nobody's
        '[{"aspect": 1, "grade": 2}, {"aspect": 2, "grade": "some"}]',
    ],
)
def test_missing_doubtful_or_unknown_aspects_are_none(text: str) -> None:
    assert both(text) is None


def test_a_reply_that_was_cut_off_has_no_grades() -> None:
    assert read_one(Completion(text='{"grade": 2}', truncated=True)) is None
    assert read_all(Completion(text="[2, 0]", truncated=True), ASPECTS) is None


def test_an_aspect_that_is_called_like_a_number_is_found_by_its_place() -> None:
    assert read_all(Completion(text='{"1": 0, "2": 2}'), ("2", "1")) == (0, 2)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.text(max_size=40))
def test_what_was_asked_for_is_always_read(grades: list[int], why: str) -> None:
    said = [{"aspect": n, "why": why, "grade": grade} for n, grade in enumerate(grades, 1)]
    names = [f"name {chr(97 + n)}" for n in range(len(grades))]
    assert read_all(Completion(text=json.dumps(said)), names) == tuple(grades)
    assert read_all(Completion(text=f"Here:\n```json\n{json.dumps(said, indent=1)}\n```"), names) == tuple(grades)


@given(st.text(max_size=300))
def test_any_text_is_grades_or_none_or_a_failure(text: str) -> None:
    for found, count in ((one(text), 1), (both(text), 2)):
        assert found is None or isinstance(found, Failure) or (len(found) == count and set(found) <= {0, 1, 2})


@pytest.mark.parametrize(
    "text", ["aspect:" + " " * 30_000 + "x", "grade: " + "\n*" * 15_000, "[" * 30_000, "," * 30_000]
)
def test_a_reply_that_runs_wild_is_read_in_no_time(text: str) -> None:
    assert one(text) is None
    assert both(text) is None
