"""Grading in a run folder: each answer once, resumable; what its summary says of answers and graders; wrong input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from prb.building.stages import read_records
from prb.data.load import load
from prb.data.publish import convert
from prb.data.schema import read_items, to_pair
from prb.data.source import open_source
from prb.errors import BadData, BadInput, TooManyFailures
from prb.evaluation.conditions import true_plan
from prb.grading import Answered, GradeConfig, Grades, answered, shown
from prb.grading.run import (
    GradedPair,
    GradedTwice,
    GradeKey,
    GradingJob,
    agreement,
    check_failures,
    discrimination,
    grade,
    rank_correlation,
    ranks,
    read_summary,
    weighted_kappa,
)
from prb.runs import read_lines
from prb.types import Aspect, Failure
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]
Grade = Callable[[Answered], Grades | Failure]


def by_length(answered: Answered) -> Grades | Failure:
    """0, 1 or 2 by the length of the answer; a short one fails."""
    if len(answered.answer) < 4:
        return Failure("too short", answered.answer)
    return Grades(aspects=tuple([float(len(answered.answer) % 3)] * len(answered.rubric)), tokens=5, cost=0.5)


class Recording:
    """A grader that keeps what it was asked."""

    def __init__(self, function: Grade = by_length, *, remote: bool = False) -> None:
        self.fingerprint, self.remote = "recording", remote
        self.asked: list[Answered] = []
        self._function = function

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        self.asked += answers
        return [self._function(answered) for answered in answers]


@pytest.fixture
def data(write_jsonl: Write) -> str:
    return str(write_jsonl([make_row(n) for n in range(1, 6)]))


@pytest.fixture
def answers(write_jsonl: Write) -> Path:
    lines = [("r1", "abcd"), ("r2", "abcde"), ("r1", "no"), ("r2", "abcde"), ("r3", "abcdefgh"), ("r1", "abcde")]
    return write_jsonl([{"pair": pair, "answer": text} for pair, text in lines], "answers.jsonl")


@pytest.fixture
def run(data: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The summary of what a grader makes of the data."""

    def run(grader: Any, **settings: Any) -> dict[str, Any]:
        settings = {"grader": "mine", "dataset": data, "out": tmp_path / "run", **settings}
        return grade(GradeConfig(**settings), grader=grader).summary

    return run


def lines(folder: Path) -> list[dict[str, Any]]:
    return list(read_lines(folder / "grades.jsonl"))


def test_each_distinct_answer_is_graded_once_and_every_given_one_counts(run, answers, tmp_path) -> None:
    grader = Recording()
    summary = run(grader, answers=answers)
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


@pytest.mark.parametrize(
    ("remote", "mask_pii", "masked"),
    [(True, "auto", True), (True, "off", False), (False, "auto", False), (False, "on", True)],
)
def test_the_users_words_are_masked_for_graders_elsewhere(run, remote, mask_pii, masked, write_jsonl, answers) -> None:
    mail = "me@example.org"
    aspects = [{"aspect": "brevity", "evidence": f"write to {mail}", "reason": mail}]
    rows = [make_row(n, question=f"Mail {mail}?", narrative=mail, rubric_aspects=aspects) for n in (1, 2, 3)]
    grader = Recording(remote=remote)
    run(grader, dataset=str(write_jsonl(rows, "mail.jsonl")), answers=answers, mask_pii=mask_pii)
    for asked in grader.asked:
        texts = (asked.question, asked.narrative, asked.rubric[0].evidence, asked.rubric[0].reason)
        assert [mail in text for text in texts] == [not masked] * 4


@pytest.mark.parametrize("aspects", [(), (1.0, 1.0), (3.0,), (float("nan"),)])
def test_a_grader_that_returns_nonsense_has_failed(run, aspects, answers) -> None:
    summary = run(Recording(lambda _: Grades(aspects=aspects)), answers=answers)
    assert (summary["score"]["value"], summary["failures"]) == (None, {"no grades": 6})


def test_validation_grades_both_answers_of_every_row(run, tmp_path) -> None:
    def knows(answered: Answered) -> Grades | Failure:
        if "number 5" in answered.question:
            return Failure("busy")
        return Grades(aspects=(2.0,) if answered.answer.startswith("Once") else (1.0,))

    summary = run(Recording(knows), validate=True)
    found = summary["validation"]
    assert (found["accuracy"]["value"], found["accuracy"]["n"], found["accuracy"]["failed"]) == (1.0, 4, 1)
    assert found["gap"]["value"] == 0.5
    assert summary["human"] is None
    assert len(lines(tmp_path / "run")) == 10


def test_human_grades_are_compared_with_the_graders_own(run, write_jsonl) -> None:
    rows = [make_row(n) for n in (1, 2, 5)]
    human = [{"pair": row["id"], "answer": row["chosen"], "grades": [2]} for row in rows]
    human += [{"pair": "r1", "answer": "Never seen before.", "grades": [0]}]
    human += [{"pair": "r1", "answer": rows[0]["chosen"], "grades": [1]}]  # a second annotator
    grader = Recording(lambda a: Grades(aspects=(2.0,) if a.answer.startswith("Once") else (0.0,)))
    summary = run(grader, validate=True, human=write_jsonl(human, "human.jsonl"), limit=2)
    assert (summary["human"]["answers"], summary["human"]["equal"]["value"]) == (5, 0.8)
    assert summary["validation"]["accuracy"]["n"] == 2  # the limit is on rows, not on what annotators graded
    assert len(grader.asked) == 4 + 3  # one of them is in the sample


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "one of --answers FILE and --validate"),
        ({"validate": True, "answers": Path("a.jsonl")}, "one of --answers FILE and --validate"),
        ({"answers": Path("a.jsonl"), "human": Path("h.jsonl")}, "only be used with --validate"),
        ({"validate": True, "limit": 0}, "limit must be at least 1, not 0"),
        ({"validate": True, "grad": "x"}, "there is no setting 'grad'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, says) -> None:
    with pytest.raises(BadInput, match=says):
        grade(grader=Recording(), **changes)


# --- input files ---
ASPECTS = [{"aspect": "brevity"}, {"aspect": "warmth"}]


@pytest.fixture
def job(write_jsonl: Write) -> GradingJob:
    rows = [make_row(1, rubric_aspects=ASPECTS), make_row(2, rubric_aspects=[]), *make_twins(3)]
    return GradingJob(GradeConfig(validate=True), load(str(write_jsonl(rows))))


def test_grades_of_a_file_are_of_an_answer_to_a_row(job) -> None:
    human = {"pair": "r1", "answer": "So.", "grades": [0, 2], "rater": "kim"}
    assert job.human_grades(human) == (GradeKey("r1", "So."), Grades(aspects=(0.0, 2.0)))


def test_every_wrong_line_is_named(job, write_jsonl) -> None:
    lines: list[Any] = [
        {"pair": "r1", "answer": "So."},
        {"pair": "r9", "answer": "So."},
        {"pair": "r1"},
        {"pair": "r1", "answer": 3},
        {"question": "Who?", "answer": "So."},
    ]
    path = write_jsonl(lines, "a.jsonl")
    with pytest.raises(BadInput) as caught:
        read_items(path, job.key)
    assert str(caught.value).splitlines() == [
        f"{path} has lines that cannot be used",
        f"  a.jsonl:2: `pair` must be the id of a row of {job.name}, not 'r9'",
        "  a.jsonl:3: `answer` is missing or not a string (and 1 more: a.jsonl:4)",
        f"  a.jsonl:5: `pair` must be the id of a row of {job.name}, not None",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({}, "`grades` must be 2 times 0, 1 or 2, one per aspect of row 'r1'"),
        ({"grades": [1]}, "2 times 0, 1 or 2"),
        ({"grades": [1, 3]}, "2 times 0, 1 or 2"),
        ({"grades": [1, 1.5]}, "2 times 0, 1 or 2"),
        ({"grades": [1, True]}, "2 times 0, 1 or 2"),
        ({"pair": "r2", "grades": []}, "row 'r2' has no rubric"),
        ({"pair": "r9", "grades": [1, 1]}, "must be the id of a row"),
    ],
)
def test_human_grades_must_fit_the_rubric(line, says, job) -> None:
    with pytest.raises(ValueError, match=says):
        job.human_grades({"pair": "r1", "answer": "So.", **line})


def test_a_dataset_without_any_rubric_is_refused(write_jsonl) -> None:
    with pytest.raises(BadInput, match="has a rubric"):
        grade(dataset=str(write_jsonl([make_row(1, rubric_aspects=[])])), validate=True)


# --- aspects may have a weight, a polarity, and be required ---
@pytest.mark.parametrize(
    ("grades", "rubric", "score"),
    [
        ((2, 1, 0), (Aspect("x"), Aspect("y"), Aspect("z")), 0.5),
        ((2, 1, 0), (), 0.5),
        ((2, 0), (Aspect("x", weight=3), Aspect("y")), 3 / 4),
        ((2, 2), (Aspect("x"), Aspect("y", negative=True)), 0.5),  # negative: as far as it is absent
        ((2, 0), (Aspect("x"), Aspect("y", negative=True)), 1),
        ((2, 0), (Aspect("x"), Aspect("y", required=True)), 0),  # missed altogether
        ((2, 1), (Aspect("x"), Aspect("y", required=True)), 0.75),
        ((2, 2), (Aspect("x"), Aspect("y", required=True, negative=True)), 0),
    ],
)
def test_an_aspect_counts_as_its_rubric_says(grades, rubric, score):
    assert Grades(aspects=grades, rubric=rubric).score == pytest.approx(score)


def test_a_row_says_how_its_aspects_count_and_grading_honors_it(run, write_jsonl, tmp_path) -> None:
    counted = {"aspect": "brevity", "weight": 3, "required": True}
    negative = {"aspect": "jargon", "polarity": "negative"}
    aspects = [counted, {**negative, "weight": 1}]
    path = write_jsonl([make_row(1, rubric_aspects=aspects), make_row(2)])
    answers = write_jsonl([{"pair": "r1", "answer": "x"}], "answers.jsonl")
    grader = Recording(lambda a: Grades(aspects=(2.0,) * len(a.rubric)))
    assert run(grader, dataset=str(path), answers=answers)["score"]["value"] == pytest.approx(3 / 4)
    assert convert(open_source(str(path)), tmp_path / "rows.parquet") == 2
    assert next(iter(open_source(str(tmp_path / "rows.parquet")).rows())).data["rubric_aspects"] == aspects
    record, _ = read_records(str(path))
    assert [{k: v for k, v in aspect.as_row().items() if v} for aspect in record.rubric] == [counted, negative]


@pytest.mark.parametrize("wrong", [{"weight": 0}, {"weight": "much"}, {"polarity": "bad"}, {"required": "yes"}])
def test_a_wrong_way_to_count_is_an_error_of_the_row(run, write_jsonl, wrong) -> None:
    data = str(write_jsonl([make_row(1, rubric_aspects=[{"aspect": "brevity", **wrong}])]))
    with pytest.raises(BadData):
        run(Recording(), dataset=data, validate=True)


def test_a_grader_reads_that_an_aspect_is_negative_and_never_how_much_it_counts() -> None:
    assert shown(Aspect("x")) == shown(Aspect("x", weight=5, required=True)) != shown(Aspect("x", negative=True))
    pair = to_pair(make_row())
    assert answered(pair, "x", masked=True).rubric == pair.rubric


def test_the_oracle_is_told_how_an_aspect_counts() -> None:
    aspects = [{"aspect": "jargon", "polarity": "negative"}, {"aspect": "brevity", "weight": 2, "required": True}]
    assert true_plan(to_pair(make_row(rubric_aspects=aspects))) == ("avoid jargon", "brevity (×2, required)")


# --- graders that do not answer ---
@pytest.mark.parametrize(("kind", "fresh", "again"), [("transient", False, 2), ("row", False, 0), ("row", True, 10)])
def test_answers_that_failed_are_graded_again(run, tmp_path, kind, fresh, again) -> None:
    calls = iter(range(10))

    def failing(answered: Answered) -> Grades | Failure:
        return Failure("lost", kind=kind) if next(calls) in (2, 3) else by_length(answered)

    whole = run(Recording(), validate=True, out=tmp_path / "whole")
    first = run(Recording(failing), validate=True)
    with pytest.raises(TooManyFailures, match=r"mine: 1 of 5 failed \(2 × lost\)"):
        check_failures(read_summary(first), 0.1)
    grader = Recording()
    mended = run(grader, validate=True, fresh=fresh)
    assert len(grader.asked) == again
    assert (mended == whole) == bool(again)
    assert len(lines(tmp_path / "run")) == 10


# --- how good is a grader: by hand, by a second implementation, and by properties ---
FAILED = Failure("timeout", "after 60 s")
two_columns = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=40).map(np.array)


def graded(*aspects: float) -> Grades:
    return Grades(aspects=aspects)


def pair(cluster: str, chosen: Grades | Failure, rejected: Grades | Failure, tier: str = "stated") -> GradedPair:
    return GradedPair(cluster, "Art", tier, chosen, rejected)


ROWS = [
    pair("a", graded(2, 2), graded(0, 0)),  # won, gap 1
    pair("a", graded(1, 1), graded(2, 0)),  # a tie
    pair("b", graded(0, 1), graded(2, 1), "implied"),  # lost, gap −0.5
    pair("c", graded(2, 1), graded(1, 1), "implied"),  # won, gap 0.25
    pair("c", FAILED, graded(2, 2)),
]


def test_discrimination_by_hand() -> None:
    result = discrimination(ROWS)
    accuracy = result.accuracy
    assert (accuracy.value, accuracy.n, accuracy.ties, accuracy.failed) == (2.5 / 4, 4, 1, 1)
    assert result.strict_accuracy.value == 0.5
    assert result.score_chosen.value == pytest.approx((1 + 0.5 + 0.25 + 0.75) / 4)
    assert result.score_rejected.value == pytest.approx((0 + 0.5 + 0.75 + 0.5) / 4)
    assert result.gap.value == pytest.approx(0.75 / 4)
    assert (result.gap.n, result.gap.dropped) == (4, 1)
    assert {tier: e.value for tier, e in result.by_tier.items()} == {"stated": 0.75, "implied": 0.5}
    assert result.by_category["Art"].failed == 1
    assert result.failures == {"timeout": 1}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@given(two_columns)
def test_weighted_kappa_is_that_of_scikit_learn(columns) -> None:
    own = weighted_kappa(columns)
    theirs = cohen_kappa_score(*columns.T, labels=[0, 1, 2], weights="quadratic")
    assert np.isnan(theirs) if own is None else own == pytest.approx(theirs)


def test_weighted_kappa_by_hand() -> None:
    # squared distances: seen 0 + 1 + 4 = 5; by chance, over the nine couples of 0 1 2 and 0 2 0, 15 / 3 = 5
    assert weighted_kappa(np.array([[0, 0], [1, 2], [2, 0]])) == 0
    assert weighted_kappa(np.array([[0, 0], [1, 1], [2, 2]])) == 1
    assert weighted_kappa(np.array([[0, 2], [2, 0]])) == -1
    assert weighted_kappa(np.array([[1, 1], [1, 1]])) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=30).map(np.array))
def test_ranks_keep_all_that_spearman_looks_at(columns) -> None:
    found = rank_correlation(ranks(columns))
    if found is None:
        assert (np.ptp(columns, axis=0) == 0).any()
    else:
        assert found == pytest.approx(spearmanr(columns[:, 0], columns[:, 1]).statistic)


def test_agreement_by_hand() -> None:
    rows = [
        GradedTwice("a", graded(2, 0), graded(2, 1)),
        GradedTwice("b", graded(1, 1), graded(1, 1)),
        GradedTwice("c", graded(0.4, 1.6), graded(0, 2)),  # rounded for aspects, as it is for scores
        GradedTwice("d", FAILED, graded(2, 2)),
    ]
    result = agreement(rows)
    assert (result.answers, result.failed) == (3, 1)
    assert (result.equal.value, result.equal.n) == (5 / 6, 6)
    kappa = cohen_kappa_score([2, 0, 1, 1, 0, 2], [2, 1, 1, 1, 0, 2], weights="quadratic")
    assert result.kappa.value == pytest.approx(kappa)
    assert result.kappa.low <= kappa <= result.kappa.high
    assert result.spearman.value is None  # one side scored all three answers ½
    assert agreement([]) == structs.replace(agreement([rows[3]]), failed=0)
