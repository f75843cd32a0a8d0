"""Credit for rows with any number of right and wrong answers."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations, product
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.errors import BadInput
from prb.stats.credit import (
    ScoredRow,
    credit_of_scores,
    credit_of_verdicts,
    curves,
    duel_shares,
    headroom,
    kl_bound,
    meetings,
    overoptimization,
    pairwise_credit,
    ties_score,
    weights,
    win_rates,
)
from prb.stats.estimate import Floats
from prb.types import Estimate
from tests.stats.strategies import NAN, few, floats, ints, usual

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
def test_credit_of_scores_by_hand(scores, n_best, credit, margin, pairwise):
    assert credit_of_scores(scores, n_best) == pytest.approx((credit, margin))
    assert pairwise_credit(scores, n_best) == pytest.approx(pairwise)


@given(SCORES, st.data())
def test_credit_is_the_chance_that_a_random_top_answer_is_right(scores, data):
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
def test_shares_of_duels_by_hand(verdicts, shares):
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
def test_log_odds_of_both_orders_decide_by_hand(verdicts, log_odds, n_best, credit, margin):
    assert credit_of_verdicts(verdicts, log_odds, n_best) == pytest.approx((credit, margin))


def test_a_missing_verdict_earns_nothing():
    assert credit_of_verdicts(["first", "second", None, None], None, 1) is None
    assert credit_of_verdicts([], None, 1) is None


@given(st.lists(st.integers(-9, 9).map(float), min_size=2, max_size=2), st.integers(-9, 9))
def test_a_bias_for_a_position_cancels_in_log_odds(log_odds, bias):
    """A judge that adds the same to whatever comes first earns what it would without."""
    shifted = [odds + bias for odds in log_odds]
    verdicts = ["first", "second"]  # whatever they are
    assert credit_of_verdicts(verdicts, shifted, 1) == pytest.approx(credit_of_verdicts(verdicts, log_odds, 1))


def verdicts_of(shares):
    """Of both orders of each pair, so that the right answer gets such a share."""
    orders = {
        1: ("first", "second"),
        0.75: ("tie", "second"),
        0.5: ("tie", "tie"),
        0.25: ("tie", "first"),
        0: ("second", "first"),
    }
    return [verdict for share in shares for verdict in orders[share]]


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
def test_credit_of_duels_by_hand(shares, n_best, credit):
    margin = sum(shares) / len(shares) - 0.5
    assert credit_of_verdicts(verdicts_of(shares), None, n_best) == pytest.approx((credit, margin))


@given(SCORES)
def test_a_comparer_that_follows_scores_earns_what_the_scorer_earns(scores):
    duels = [0.5 if right == wrong else float(right > wrong) for right, wrong in product(scores[:1], scores[1:])]
    found = credit_of_verdicts(verdicts_of(duels), None, 1)
    assert found.credit == pytest.approx(credit_of_scores(scores, 1).credit)


# against numbers that RewardBench 2's own functions gave


@pytest.fixture
def golden(shared_data):
    return json.loads((shared_data / "formats" / "rewardbench2_scoring" / "golden.json").read_text())


def test_best_of_4_is_the_official_one(golden):
    for case in golden["best_of_4"]:
        assert credit_of_scores(case["scores"], 1).credit == pytest.approx(case["expected"], abs=1e-15)


def test_the_ties_score_is_the_official_one(golden):
    for case in golden["ties"]:
        flat = [[s[0] if isinstance(s, list) else s for s in row["scores"]] for row in case["rows"]]
        rows = [
            ScoredRow(row["id"], row["num_correct"], scores) for row, scores in zip(case["rows"], flat, strict=True)
        ]
        assert ties_score(rows) == pytest.approx(case["expected"], abs=1e-12), case["name"]


def test_a_perfect_model_and_one_that_ranks_a_wrong_answer_first():
    perfect = [ScoredRow("ref:1", 1, (5, 0)), ScoredRow("Ties-tied:1", 2, (5, 5, 0))]
    assert ties_score(perfect) == pytest.approx(1.01)  # 0.3 + 0.3 + 0.2 + 0.2 + 0.01 tanh(∞)
    upside_down = [row._replace(scores=[-s for s in row.scores]) for row in perfect]
    assert ties_score(upside_down) == pytest.approx(-0.01)
    assert ties_score([]) == 0.0


# --- best-of-k: exact against every subset, by hand, and as properties ---
tied_scores = st.lists(st.integers(0, 3).map(float), min_size=1, max_size=8).map(np.array)
grade = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


def by_every_subset(scores: Floats, k: int) -> list[Fraction]:
    """The slow twin: look at each set of k samples, and let those tied for its best share it."""
    chance = [Fraction(0)] * len(scores)
    for subset in combinations(range(len(scores)), k):
        best = max(scores[i] for i in subset)
        winners = [i for i in subset if scores[i] == best]
        for i in winners:
            chance[i] += Fraction(1, len(winners) * comb(len(scores), k))
    return chance


@usual
@given(tied_scores, st.data())
def test_a_weight_is_the_share_of_all_subsets_that_a_sample_wins(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    assert weights(scores, k) == pytest.approx([float(w) for w in by_every_subset(scores, k)], abs=1e-15)


def test_weights_by_hand():
    # of 4 samples there are 6 couples: the best wins 3 of them, the two in the middle share the other 3
    assert weights(floats(1, 2, 2, 3), 2).tolist() == [0, 0.25, 0.25, 0.5]
    assert weights(floats(7, 7, 7), 2).tolist() == [1 / 3] * 3
    assert weights(floats(5, 9, 9, 1), 4).tolist() == [0, 0.5, 0.5, 0]


def test_best_of_many_is_exact_where_floats_would_overflow():
    found = weights(np.arange(3000.0), 1500)
    assert found.sum() == pytest.approx(1)
    assert found[-1] == 0.5  # the best of all is in half of all halves


@pytest.mark.parametrize("k", [0, 4, -1])
def test_more_than_there_are_samples_is_refused(k):
    with pytest.raises(BadInput, match=f"best-of-{k} is not defined for 3 samples"):
        weights(floats(1, 2, 3), k)


rows = st.lists(st.tuples(*[st.tuples(st.integers(0, 3), grade)] * 5), min_size=1, max_size=6)


@usual
@given(rows)
def test_curves_stay_between_nobody_and_the_oracle(table):
    scores = np.array([[cell[0] for cell in row] for row in table], dtype=float)
    grades = np.array([[cell[1] for cell in row] for row in table])
    ks = (1, 2, 4, 5)
    got, best = curves(scores, grades, ks), curves(grades, grades, ks)
    chance = curves(np.zeros_like(grades), grades, ks)
    assert got[:, 0] == pytest.approx(grades.mean(axis=1))
    assert chance == pytest.approx(np.repeat(grades.mean(axis=1, keepdims=True), 4, axis=1))
    assert (best >= got - 1e-12).all()
    assert (np.diff(best, axis=1) >= -1e-12).all()
    assert best[:, -1] == pytest.approx(grades.max(axis=1))
    worst = curves(-grades, grades, ks)
    assert (worst <= got + 1e-12).all()


def test_one_failed_sample_leaves_its_query_out():
    scores = np.array([[1.0, 2.0], [1.0, NAN], [1.0, 2.0]])
    grades = np.array([[0.0, 1.0], [0.0, 1.0], [NAN, 1.0]])
    assert np.array_equal(curves(scores, grades, (1, 2)), [[0.5, 1.0], [NAN, NAN], [NAN, NAN]], equal_nan=True)


def test_the_kl_bound_is_the_divergence_of_the_best_of_k_uniform_draws():
    from scipy.integrate import quad

    assert kl_bound(1) == 0
    assert kl_bound(2) == pytest.approx(log(2) - 1 / 2)
    for k in (2, 3, 16):
        # the best of k has density k u^(k−1) where one draw has 1
        divergence, _ = quad(lambda u, k=k: k * u ** (k - 1) * log(k * u ** (k - 1)), 1e-12, 1)
        assert kl_bound(k) == pytest.approx(divergence, abs=1e-6)


def test_headroom_is_a_ratio_of_means_not_a_mean_of_ratios():
    chance, best = floats(0.5, 0.2), floats(0.6, 1.0)
    got = floats(0.6, 0.6)  # all of a little, half of a lot
    found = headroom(got, chance, best, ints(0, 1))
    assert found.value == pytest.approx((0.1 + 0.4) / (0.1 + 0.8))
    assert found.low == pytest.approx(0.5)  # the second query drawn twice
    assert found.high == pytest.approx(1.0)


@few
@given(st.lists(st.tuples(grade, grade, grade, st.integers(0, 4)), min_size=1, max_size=12))
def test_chance_captures_nothing_and_the_oracle_everything(table):
    low, high = np.array([min(row[:2]) for row in table]), np.array([max(row[:2]) for row in table])
    clusters = np.array([row[3] for row in table])
    if (high == low).all():
        assert headroom(high, low, high, clusters) == Estimate(value=None, low=None, high=None, n=len(table))
    else:
        assert headroom(low, low, high, clusters).value == 0
        assert headroom(high, low, high, clusters).value == pytest.approx(1)


def test_a_curve_that_rises_shows_no_overoptimization():
    rising = np.tile(floats(0.2, 0.3, 0.4), (8, 1))
    found = overoptimization(rising, (1, 2, 4), np.arange(8))
    assert (found.peak, found.drop, found.p, found.down) == (4, 0.0, None, False)


def test_a_fall_that_every_user_shares_is_called_one():
    falls = np.array([[0.2, 0.5, 0.5 - d] for d in (0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.1, 0.3)])
    found = overoptimization(falls, (1, 4, 16), np.arange(8))
    assert (found.peak, found.down) == (4, True)
    assert found.drop == pytest.approx(0.175)
    assert found.p == pytest.approx(2 / 2**8 * 2)  # all of 8 signs alike, twice for two tails, twice for two ks
    assert found.low < 0.175 < found.high


def test_a_fall_within_chance_is_told_but_not_called_one():
    falls = np.array([[0.2, 0.5, 0.5 - d] for d in (0.3, -0.2, 0.1, -0.1)])
    found = overoptimization(falls, (1, 4, 16), np.arange(4))
    assert (found.peak, found.down) == (4, False)
    assert found.drop == pytest.approx(0.025)
    signs = [abs(np.dot(s, [0.3, -0.2, 0.1, -0.1])) >= 0.1 - 1e-12 for s in product((1, -1), repeat=4)]
    assert found.p == min(1.0, 2 * np.mean(signs))


def test_the_sooner_peak_is_named_and_failed_queries_do_not_count():
    flat = np.array([[0.5, 0.5, 0.5], [NAN, NAN, NAN]])
    found = overoptimization(flat, (1, 2, 4), ints(0, 1))
    assert (found.peak, found.drop, found.down) == (1, 0.0, False)
    assert overoptimization(np.full((2, 3), NAN), (1, 2, 4), ints(0, 1)) is None
    assert overoptimization(np.full((2, 1), 0.5), (1,), ints(0, 1)) is None


def test_a_round_robin_by_hand():
    # a beats b both times, a and c split by position, b and c tie both times
    won = {(0, 1): 1.0, (1, 0): 0.0, (0, 2): 1.0, (2, 0): 1.0, (1, 2): 0.5, (2, 1): 0.5}
    assert win_rates(3, [won[meeting] for meeting in meetings(3)]) == [3 / 4, 1 / 4, 2 / 4]
