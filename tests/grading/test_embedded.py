"""Graders without an LLM: calibrated on train and measured on test; recorded grades, looked up and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from prb.data.load import load, load_pairs
from prb.errors import BadInput
from prb.grading import GRADERS, Answered, Grades, answered
from prb.grading.embedded import BIAS, NOT_GRADED, VALIDITY, WEIGHTS, EmbeddedGrader
from prb.grading.run import GradedPair, discrimination, scores
from prb.types import Aspect, Pair


@cache
def grader() -> EmbeddedGrader:
    return EmbeddedGrader()


@cache
def train() -> list[Pair]:
    return load_pairs("mirror", split="dev")


def mean_score(texts: Sequence[tuple[Pair, str]]) -> float:
    return float(scores(grader().grade([answered(pair, text) for pair, text in texts])).mean())


def test_grades_are_calibrated_where_they_were_fitted() -> None:
    # a logistic regression with a free intercept predicts its own base rate: half of these answers meet the rubric
    both = [(pair, text) for pair in train() for text in pair.answers]
    assert mean_score(both) == pytest.approx(0.5, abs=1e-3)
    graded = grader().grade([answered(pair, text) for pair, text in both])
    probability = np.array([g / 2 for one in graded if isinstance(one, Grades) for g in one.aspects])
    met = np.tile([1, 1, 1, 0, 0, 0], len(train()))
    for low, high in ((0, 0.4), (0.4, 0.6), (0.6, 1)):
        inside = (probability >= low) & (probability < high)
        assert met[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.08)


def test_its_weights_are_those_of_a_logistic_regression_on_the_same_rows() -> None:
    rows = np.concatenate([grader().similarities(p.answers[n], p.rubric) for n in (0, 1) for p in train()])
    center, spread = rows.mean(axis=0), rows.std(axis=0)
    fitted = LogisticRegression().fit((rows - center) / spread, np.repeat([1, 0], len(rows) // 2))
    weights = fitted.coef_[0] / spread
    assert weights == pytest.approx(WEIGHTS, rel=1e-3)
    assert fitted.intercept_[0] - weights @ center == pytest.approx(BIAS, rel=1e-3)


def test_its_validity_is_that_on_the_test_split() -> None:
    test = load("mirror", split="test")
    pairs = [pair for pair in test if isinstance(pair, Pair)]
    grades = grader().grade([answered(pair, text) for pair in pairs for text in pair.contrast])
    both = zip(test.index.clusters, grades[::2], grades[1::2], strict=True)
    accuracy = discrimination([GradedPair(cluster, "", None, *graded) for cluster, *graded in both]).accuracy
    numbers = [float(number) for number in re.findall(r"[0-9]+\.[0-9]", VALIDITY)]
    assert numbers == [round(100 * x, 1) for x in (accuracy.value, accuracy.low, accuracy.high)]


def test_pasting_an_unrelated_answer_behind_hardly_helps() -> None:
    pairs = train()
    others = [pairs[(n + 79) % len(pairs)].rejected for n in range(len(pairs))]
    alone = mean_score([(pair, pair.rejected) for pair in pairs])
    padded = mean_score([(pair, f"{pair.rejected} {other}") for pair, other in zip(pairs, others, strict=True)])
    chosen = mean_score([(pair, pair.chosen) for pair in pairs])
    assert padded - alone < 0.25 * (chosen - alone)


def test_there_is_one_grade_per_aspect_on_the_scale() -> None:
    odd = (Aspect("brevity"), Aspect("…"), Aspect("短い", "x" * 3000, "why"), Aspect("a" * 50))
    texts = ["ok", "word " * 4000, "短い答え", "https://example.org", train()[0].chosen]
    for one in grader().grade([Answered(question="?", answer=text, rubric=odd) for text in texts]):
        assert len(one.aspects) == 4
        assert all(0 <= grade <= 2 for grade in one.aspects)


@pytest.mark.parametrize(
    ("answer", "rubric", "reason"),
    [
        ("Fine.", (), "no rubric"),
        (" ", (Aspect("brevity"),), "empty answer"),
        ("!!! 👍", (Aspect("brevity"),), "no words in the answer"),
    ],
)
def test_nothing_to_grade_is_a_failure(answer, rubric, reason) -> None:
    (result,) = grader().grade([Answered(question="?", answer=answer, rubric=rubric)])
    assert result.reason == reason


def test_its_fingerprint_is_that_of_earlier_versions() -> None:
    made = GRADERS.make("embedded")
    assert (made.remote, made.fingerprint) == (False, grader().fingerprint)
    assert made.fingerprint.endswith("-1.5765_3.6509_9.2615")


# --- recorded grades ---
LINES = [
    {"pair": "r1", "answer": "Yes.", "grades": [0, 2]},
    {"pair": "r2", "answer": "Yes.", "grades": [1, 1.5]},
    {"answers": ["Yes!", "No."], "grades": {"r1": [[2, 2], [0, 0]], "r3": [[1, 0], [0, 1]]}, "question": "?"},
]


def recorded(path: Path) -> Any:
    return GRADERS.make(f"recorded?path={path}")


def ask(pair: str, answer: str) -> Answered:
    return Answered(question="?", answer=answer, rubric=(Aspect("short"), Aspect("warm")), pair=pair)


def test_grades_are_looked_up_by_row_and_answer_and_an_unknown_answer_fails(write_jsonl) -> None:
    model = recorded(write_jsonl(LINES, "grades.jsonl"))
    known = [ask("r2", "Yes."), ask("r1", "Yes."), ask("r1", "No."), ask("r3", "Yes!"), ask("r1", "Yes.")]
    grades = [(1.0, 1.5), (0.0, 2.0), (0.0, 0.0), (1.0, 0.0), (0.0, 2.0)]
    assert model.grade(known) == [Grades(aspects=values) for values in grades]
    assert model.grade([ask("r1", "yes."), ask("r2", "No."), ask("r9", "Yes."), ask("", "Yes.")]) == [NOT_GRADED] * 4


def test_every_wrong_line_is_named(write_jsonl) -> None:
    numbers = "`grades` must be a list of numbers from 0 to 2, not"
    needed = "`pair`, `answer` and `grades` are needed"
    wrong: list[tuple[Any, str]] = [
        ({"pair": "r1", "answer": "Yes."}, f"{numbers} None"),
        ({"pair": "r1", "answer": "Yes.", "grades": []}, f"{numbers} []"),
        ({"pair": "r1", "answer": "Yes.", "grades": [0, 3]}, f"{numbers} [0, 3]"),
        ({"pair": "r1", "answer": "Yes.", "grades": [True, 1]}, f"{numbers} [True, 1]"),
        ({"pair": "r1", "answer": "Yes.", "grades": ["1"]}, f"{numbers} ['1']"),
        ({"pair": "r1", "grades": [1]}, needed),
        ({"answer": "Yes.", "grades": [1]}, needed),
        ({"answers": ["Yes.", "No."], "grades": {"r1": [[1]]}}, "`grades` of 'r1' must have a list per answer"),
        (["r1", "Yes.", [1]], "a row must be an object, not a list"),
    ]
    for line, problem in wrong:
        with pytest.raises(BadInput, match=re.escape(f"grades.jsonl:2: {problem}")):
            recorded(write_jsonl([LINES[0], line], "grades.jsonl"))
    with pytest.raises(BadInput, match="is empty"):
        recorded(write_jsonl([], "grades.jsonl"))


def test_two_different_grades_of_one_answer_are_refused_and_equal_ones_are_not(write_jsonl) -> None:
    same = {"answers": ["Yes."], "grades": {"r1": [[0.0, 2.0]]}}
    assert recorded(write_jsonl([LINES[0], same])).grade([ask("r1", "Yes.")]) == [Grades(aspects=(0.0, 2.0))]
    with pytest.raises(BadInput, match="two different grades of the same answer to row 'r1'"):
        recorded(write_jsonl([LINES[0], {**LINES[0], "grades": [1, 2]}]))


def test_the_fingerprint_follows_the_content_and_nothing_else(write_jsonl) -> None:
    line = LINES[0]
    base = recorded(write_jsonl(LINES, "grades.jsonl")).fingerprint
    extra = [{**line, "rater": "kim"}, *LINES[1:]]
    assert recorded(write_jsonl(extra[::-1], "elsewhere.jsonl")).fingerprint == base
    others = [[{**line, **change}, *LINES[1:]] for change in ({"grades": [0, 1]}, {"answer": "Yes"}, {"pair": "r4"})]
    prints = [recorded(write_jsonl(lines, f"{n}.jsonl")).fingerprint for n, lines in enumerate([*others, LINES[:2]])]
    assert len({base, *prints}) == 5
