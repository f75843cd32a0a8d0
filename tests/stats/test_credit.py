"""Credit for rows with any number of right and wrong answers."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.stats.credit import (
    SUBSETS,
    ScoredRow,
    credit_of_duels,
    credit_of_scores,
    credit_of_verdicts,
    duel_shares,
    final_score,
    pairwise_credit,
    ties_score,
)

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=6)


@pytest.mark.parametrize(
    ("scores", "n_best", "credit", "margin", "pairwise"),
    [
        ([2, 1], 1, 1.0, 1, 1.0),
        ([1, 1], 1, 0.5, 0, 0.5),
        ([1, 2], 1, 0.0, -1, 0.0),
        ([3, 1, 2, 0], 1, 1.0, 1, 1.0),
        ([3, 3, 2, 0], 1, 0.5, 0, 2.5 / 3),
        ([0, 0, 0, 0], 1, 0.25, 0, 0.5),
        ([1, 3, 2, 0], 2, 1.0, 1, 0.75),  # 1 > 0, 3 > 2, 3 > 0, but 1 < 2
        ([2, 2, 2], 2, 2 / 3, 0, 0.5),
    ],
)
def test_credit_of_scores_by_hand(
    scores: list[float], n_best: int, credit: float, margin: float, pairwise: float
) -> None:
    assert credit_of_scores(scores, n_best) == pytest.approx((credit, margin))
    assert pairwise_credit(scores, n_best) == pytest.approx(pairwise)


@given(SCORES, st.data())
def test_credit_is_the_chance_that_a_random_top_answer_is_right(scores: list[float], data: st.DataObject) -> None:
    n_best = data.draw(st.integers(1, len(scores) - 1))
    tops = [n for n, score in enumerate(scores) if score == max(scores)]
    assert credit_of_scores(scores, n_best).credit == pytest.approx(sum(n < n_best for n in tops) / len(tops))


@pytest.mark.parametrize(
    ("verdicts", "shares"),
    [
        (["first", "second"], [1.0]),  # the right answer wins in both orders
        (["first", "first"], [0.5]),  # the first one always wins: position, not taste
        (["tie", "second"], [0.75]),
        (["first", None], [1.0]),  # one order only
        ([None, None], [None]),
        (["first", "second", "second", "first"], [1.0, 0.0]),
    ],
)
def test_shares_of_duels_by_hand(verdicts: list[str | None], shares: list[float | None]) -> None:
    assert duel_shares(verdicts) == shares


@pytest.mark.parametrize(
    ("verdicts", "log_odds", "n_best", "credit", "margin"),
    [
        (["first", "first"], [3.0, 1.0], 1, 1.0, 1.0),  # always the first, but the right answer by more: (3 - 1) / 2
        (["first", "first"], [1.0, 3.0], 1, 0.0, -1.0),
        (["first", "first"], [2.0, 2.0], 1, 0.5, 0.0),  # position alone
        (["first", "second"], [0.5, -2.5], 1, 1.0, 1.5),
        (["first", None], [0.7, None], 1, 1.0, 0.7),  # one order only
        (["first", "first"], None, 1, 0.5, 0.0),  # as without log-odds
        (["first", "first"], [3.0, None], 1, 0.5, 0.0),  # not all have them
        # two wrong answers: beaten by (3 - 1) / 2 = 1, then (1 - 2) / 2 = -0.5
        (["first"] * 4, [3.0, 1.0, 1.0, 2.0], 1, 0.0, 0.25),
        (["first"] * 4, [3.0, 1.0, 2.0, 2.0], 1, 0.5, 0.5),  # tied for the top with the second one
    ],
)
def test_log_odds_of_both_orders_decide_by_hand(
    verdicts: list[str | None], log_odds: list[float | None] | None, n_best: int, credit: float, margin: float
) -> None:
    assert credit_of_verdicts(verdicts, log_odds, n_best) == pytest.approx((credit, margin))


def test_a_missing_verdict_earns_nothing() -> None:
    assert credit_of_verdicts(["first", "second", None, None], None, 1) is None
    assert credit_of_verdicts([], None, 1) is None


@given(st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=2), st.integers(-9, 9))
def test_a_bias_for_a_position_cancels_in_log_odds(log_odds: list[float], bias: int) -> None:
    """A judge that adds the same to whatever comes first earns what it would without."""
    shifted = [odds + bias for odds in log_odds]
    verdicts = ["first", "second"]  # whatever they are
    assert credit_of_verdicts(verdicts, shifted, 1) == pytest.approx(credit_of_verdicts(verdicts, log_odds, 1))


@pytest.mark.parametrize(
    ("shares", "n_best", "credit"),
    [
        ([0.75], 1, 0.75),
        ([1, 1, 1], 1, 1.0),
        ([1, 0.5, 1], 1, 0.5),  # tied for the top with one wrong answer
        ([0.5, 0.5, 0.5], 1, 0.25),
        ([1, 0.25, 1], 1, 0.0),
        ([0, 1, 1, 1], 2, 1.0),  # the second right answer beats both wrong ones
    ],
)
def test_credit_of_duels_by_hand(shares: list[float], n_best: int, credit: float) -> None:
    assert credit_of_duels(shares, n_best).credit == pytest.approx(credit)
    assert credit_of_duels(shares, n_best).margin == pytest.approx(sum(shares) / len(shares) - 0.5)


@given(SCORES)
def test_a_comparer_that_follows_scores_earns_what_the_scorer_earns(scores: list[float]) -> None:
    duels = [0.5 if right == wrong else float(right > wrong) for right, wrong in product(scores[:1], scores[1:])]
    assert credit_of_duels(duels, 1).credit == pytest.approx(credit_of_scores(scores, 1).credit)


# against numbers that RewardBench 2's own functions gave

Golden = dict[str, list[dict[str, Any]]]


@pytest.fixture
def golden(shared_data: Path) -> Golden:
    return json.loads((shared_data / "formats" / "rewardbench2_scoring" / "golden.json").read_text())  # type: ignore[no-any-return]


def test_best_of_4_is_the_official_one(golden: Golden) -> None:
    for case in golden["best_of_4"]:
        assert credit_of_scores(case["scores"], 1).credit == pytest.approx(case["expected"], abs=1e-15)


def test_the_ties_score_is_the_official_one(golden: Golden) -> None:
    for case in golden["ties"]:
        flat = [[s[0] if isinstance(s, list) else s for s in row["scores"]] for row in case["rows"]]
        rows = [
            ScoredRow(row["id"], row["num_correct"], scores) for row, scores in zip(case["rows"], flat, strict=True)
        ]
        assert ties_score(rows) == pytest.approx(case["expected"], abs=1e-12), case["name"]


def test_a_perfect_model_and_one_that_ranks_a_wrong_answer_first() -> None:
    perfect = [ScoredRow("ref:1", 1, (5, 0)), ScoredRow("Ties-tied:1", 2, (5, 5, 0))]
    assert ties_score(perfect) == pytest.approx(1.01)  # 0.3 + 0.3 + 0.2 + 0.2 + 0.01 tanh(∞)
    upside_down = [row._replace(scores=[-s for s in row.scores]) for row in perfect]
    assert ties_score(upside_down) == pytest.approx(-0.01)
    assert ties_score([]) == 0.0


@given(st.lists(st.integers(-5, 5), min_size=3, max_size=6), st.integers(-9, 9))
def test_adding_a_constant_to_all_scores_changes_nothing(scores: list[int], constant: int) -> None:
    rows = [ScoredRow("ref:1", 1, scores), ScoredRow("tied:1", 2, scores)]
    moved = [row._replace(scores=[s + constant for s in row.scores]) for row in rows]
    assert ties_score(rows) == ties_score(moved)


def test_the_final_score_is_the_plain_mean_of_six_subsets() -> None:
    assert final_score(dict.fromkeys(SUBSETS, 0.5) | {"Ties": 1.01}) == pytest.approx((5 * 0.5 + 1.01) / 6)
