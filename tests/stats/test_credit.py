"""Credit for rows with any number of right and wrong answers."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.stats.credit import credit_of_duels, credit_of_scores, duel_shares, pairwise_credit

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
