"""Meta-evaluation by hand, by a second implementation, and by properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from prb.data.load import load
from prb.grading import Answered, Grades
from prb.grading.validate import (
    GradedPair,
    GradedTwice,
    agreement,
    discrimination,
    grade_pairs,
    rank_correlation,
    ranks,
    weighted_kappa,
)
from prb.types import Failure

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
    found = discrimination(ROWS)
    accuracy = found["accuracy"]
    assert (accuracy["value"], accuracy["n"], accuracy["ties"], accuracy["failed"]) == (2.5 / 4, 4, 1, 1)
    assert found["strict_accuracy"]["value"] == 0.5
    assert found["score_chosen"]["value"] == pytest.approx((1 + 0.5 + 0.25 + 0.75) / 4)
    assert found["score_rejected"]["value"] == pytest.approx((0 + 0.5 + 0.75 + 0.5) / 4)
    assert found["gap"]["value"] == pytest.approx(0.75 / 4)
    assert (found["gap"]["n"], found["gap"]["dropped"]) == (4, 1)
    assert {tier: e["value"] for tier, e in found["by_tier"].items()} == {"stated": 0.75, "implied": 0.5}
    assert found["by_category"]["Art"]["failed"] == 1
    assert found["failures"] == {"timeout": 1}


def test_a_grader_that_always_fails_has_no_accuracy() -> None:
    found = discrimination([pair("a", FAILED, FAILED), pair("b", FAILED, graded(2))])
    assert (found["accuracy"]["value"], found["accuracy"]["failed"]) == (None, 2)
    assert found["gap"]["value"] is None


def test_swapping_the_answers_mirrors_the_accuracy() -> None:
    swapped = [row._replace(chosen=row.rejected, rejected=row.chosen) for row in ROWS]
    there, back = discrimination(ROWS), discrimination(swapped)
    assert back["accuracy"]["value"] == pytest.approx(1 - there["accuracy"]["value"])
    assert back["gap"]["value"] == pytest.approx(-there["gap"]["value"])


def test_both_answers_of_every_row_are_graded_with_all_that_a_grader_may_see() -> None:
    asked: list[Answered] = []

    def grade(answers: object) -> list[Grades]:
        asked.extend(answers)  # type: ignore[call-overload]
        return [graded(*[float(len(a.answer) % 3)] * len(a.rubric)) for a in asked]

    dataset = load("mirror", split="test", limit=3)
    rows = grade_pairs(dataset, grade)
    pairs = list(dataset)
    assert [a.answer for a in asked] == [text for p in pairs for text in p.answers]
    assert [a.narrative for a in asked[::2]] == [p.narrative for p in pairs]  # type: ignore[union-attr]
    assert [row.cluster for row in rows] == dataset.index.clusters
    assert rows[0].chosen == graded(*[float(len(pairs[0].answers[0]) % 3)] * 3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@given(two_columns)
def test_weighted_kappa_is_that_of_scikit_learn(columns: np.ndarray) -> None:
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
def test_ranks_keep_all_that_spearman_looks_at(columns: np.ndarray) -> None:
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
        GradedTwice("d", graded(2, 2), FAILED),
    ]
    found = agreement(rows)
    assert (found["answers"], found["failed"]) == (3, 2)
    assert (found["equal"]["value"], found["equal"]["n"]) == (5 / 6, 6)
    kappa = cohen_kappa_score([2, 0, 1, 1, 0, 2], [2, 1, 1, 1, 0, 2], weights="quadratic")
    assert found["kappa"]["value"] == pytest.approx(kappa)
    assert found["kappa"]["low"] <= kappa <= found["kappa"]["high"]
    assert found["spearman"]["value"] is None  # one side scored all three answers ½
    assert agreement([]) == {**agreement([rows[3]]), "failed": 0}


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=2, max_size=12))
def test_whoever_agrees_with_himself_agrees_wholly(grades: list[list[int]]) -> None:
    rows = [
        GradedTwice("one", graded(*map(float, g)), graded(*map(float, g))) for g in grades
    ]  # one cluster: no resampling
    found = agreement(rows)
    assert found["equal"]["value"] == 1
    assert found["kappa"]["value"] in (1, None)
    assert found["spearman"]["value"] is None or found["spearman"]["value"] == pytest.approx(1)
