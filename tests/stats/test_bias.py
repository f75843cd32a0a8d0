"""Does a model prefer the longer answer or the first one, and do its margins mean anything?"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from prb.stats.bias import (
    FOLDS,
    MARGIN_BINS,
    Giveaway,
    blind_margins,
    bradley_terry,
    by_margin,
    calibration,
    credits_of,
    fit_temperature,
    fold_groups,
    giveaways,
    histogram,
    length_bias,
    length_controlled,
    logistic,
    position_bias,
    room_above,
    widened,
)
from prb.stats.estimate import share
from prb.types import Difference, Estimate
from tests.stats.strategies import NAN, columns, credit, few, floats, ints, usual

ratios = st.sampled_from((-1.5, -0.7, -0.2, 0.0, 0.3, 0.7, 1.1))
RIDGE = 100.0
"""scikit-learn's inverse of the penalty."""


def test_the_intercept_is_read_at_equal_length_not_at_the_mean_length():
    # all chosen answers are longer: log ratio 1 wins ½, 3 wins 0.9. The line of log odds 0 … ln 9 falls by ln 9 over
    # two units, so at 0 it is −ln 9/2 = −ln 3: a share of ¼
    ratio = np.repeat(floats(1, 3), 1000)
    won = np.concatenate([np.repeat([1.0, 0.0], 500), np.repeat([1.0, 0.0], [900, 100])])
    equal, slope = logistic(ratio, won)
    assert equal == pytest.approx(0.25, abs=0.002)
    assert slope == pytest.approx(math.log(3), abs=0.005)  # ln 3 a unit, and the standard deviation is one unit


def test_a_regression_cannot_be_fitted_without_contrast():
    nothing = (None, None)
    assert logistic(floats(1, 1, 1), floats(1, 0, 1)) == nothing
    assert logistic(floats(1, 2, 3), floats(1, 1, 1)) == nothing
    assert logistic(floats(1, 2, 3), floats(0.5, 0.5, 0.5)) == nothing
    # one ratio repeated, whose deviation rounds above zero
    assert logistic(np.full(27, math.log(2)), np.arange(27) % 2.0) == nothing


def test_separable_data_stay_finite():
    equal, slope = logistic(floats(-2, -1, 1, 2), floats(0, 0, 1, 1))
    assert equal == pytest.approx(0.5, abs=1e-4)
    assert 1 < slope < 100


@usual
@given(columns(ratios, credit, min_rows=3))
def test_the_regression_agrees_with_scikit_learn(table):
    ratio, won, _ = table
    assume(len(set(ratio)) > 1 and len(set(won)) > 1)
    rows = np.tile(ratio / ratio.std(), 2).reshape(-1, 1)
    model = LogisticRegression(C=RIDGE, tol=1e-10, solver="newton-cholesky")
    model.fit(rows, np.repeat([1, 0], len(won)), sample_weight=np.concatenate([won, 1 - won]))
    assert logistic(ratio, won) == pytest.approx((expit(model.intercept_[0]), model.coef_[0, 0]), abs=1e-5)


def test_length_bias_by_hand():
    won = floats(1, 1, 0, 0, 1, NAN)
    chosen, rejected = floats(200, 300, 100, 100, 100, 900), floats(100, 100, 200, 300, 100, 1)
    found = length_bias(won, ints(0, 1, 2, 3, 4, 5), chosen, rejected)
    # longer 2 of 2, shorter 0 of 2, one of equal length in neither, one failed
    assert found["chosen_longer"] == share(floats(1, 1), ints(0, 1)).as_dict()
    assert found["chosen_shorter"] == share(floats(0, 0), ints(2, 3)).as_dict()
    assert found["slope"] > 1
    assert found["accuracy_at_equal_length"] > 0.5
    assert length_bias(won[5:], ints(5), chosen[5:], rejected[5:]) is None  # nothing was answered


def test_position_bias_by_hand():
    verdicts = [
        ("first", "second"),  # the same answer wins both times
        ("first", "first"),  # the place wins
        ("tie", "tie"),  # consistent, decides nothing
        ("tie", "first"),
        ("second", None),  # failed once: not counted
        ("first",),  # asked in one order only: not counted
    ]
    # consistent 2 of 4; of five decided verdicts four say first
    assert position_bias(verdicts) == {"n": 4, "consistency": 0.5, "first_share": 0.8}

    assert position_bias([("tie", "tie")] * 3) == {"n": 3, "consistency": 1.0, "first_share": None}
    one_order = [(None, "first"), (None, None), ("tie", None), ("second", None), (None, "first")]
    assert position_bias(one_order) == {"n": 3, "consistency": None, "first_share": 2 / 3}
    assert position_bias([]) is position_bias([(None, None), ("tie", None)]) is None


margins = st.sampled_from((-3.0, -1.2, -0.4, 0.0, 0.1, 0.5, 1.0, 2.0, 4.0))
sizes = st.sampled_from((0.0, 0.1, 0.4, 0.5, 1.0, 1.2, 2.0, 3.0, 4.0))
verdicts = st.sampled_from((0.0, 0.5, 1.0))


def test_the_temperature_of_two_margins_solves_its_first_order_condition():
    # margins 1 (2 of 3 right) and 3 (4 of 5): Σ m (credit − σ(m/T)) = 0
    margin, won = floats(1, 1, 1, 3, 3, 3, 3, 3), floats(1, 1, 0, 1, 1, 1, 1, 0)
    expected = 1 / brentq(lambda b: 3 * (2 / 3 - expit(b)) + 15 * (0.8 - expit(3 * b)), 0.01, 5)
    assert fit_temperature(margin, won) == pytest.approx(expected, rel=1e-4)


@usual
@given(columns(sizes, verdicts), st.sampled_from((1e-6, 0.1, 30.0, 1e6)))
def test_the_temperature_has_the_unit_of_the_margins(table, unit):
    margin, won, _ = table
    assume(margin.any() and not np.isin(won, (0.0, 1.0)).all())
    assert fit_temperature(unit * margin, won) == pytest.approx(unit * fit_temperature(margin, won), rel=1e-3)


def test_a_model_right_three_times_in_four_everywhere_by_hand():
    # five users, margin 2, each right 3 of 4: confidence ¾ for all, so no gap; Brier = ¾·(¼)² + ¼·(¾)²
    won = np.tile([1.0, 1.0, 1.0, 0.0], 5)
    found = calibration(np.where(won == 1, 2.0, -2.0), won, np.repeat(np.arange(5), 4))
    assert found["n"] == 20
    assert found["temperature"] == pytest.approx(2 / math.log(3), rel=1e-4)
    assert found["brier"] == pytest.approx(0.75 * 0.0625 + 0.25 * 0.5625, abs=1e-6)
    assert found["ece"] == pytest.approx(0.0, abs=1e-4)
    (point,) = found["curve"]
    assert point == {"confidence": pytest.approx(0.75, abs=1e-4), "accuracy": 0.75, "n": 20}


def test_nobody_calibrates_themselves():
    # the first user is always wrong, four others are right 3 of 4, all margins 1. The first is judged by the others
    # alone: confidence ¾, accuracy 0. Each other is judged by 9 right of 16: confidence 9/16, accuracy ¾
    won = np.concatenate([np.zeros(4), np.tile([1.0, 1.0, 1.0, 0.0], 4)])
    found = calibration(np.where(won == 1, 1.0, -1.0), won, np.repeat([7, 8, 9, 10, 11], 4))
    assert found["curve"] == [
        {"confidence": pytest.approx(9 / 16, abs=1e-4), "accuracy": 0.75, "n": 16},
        {"confidence": pytest.approx(3 / 4, abs=1e-4), "accuracy": 0.0, "n": 4},
    ]
    # (16·3/16 + 4·¾)/20 and (12·(7/16)² + 4·(9/16)² + 4·(¾)²)/20
    assert found["ece"] == pytest.approx(0.3, abs=1e-4)
    assert found["brier"] == pytest.approx((12 * 49 / 256 + 4 * 81 / 256 + 4 * 9 / 16) / 20, abs=1e-4)


def test_where_there_is_nothing_to_fit_there_is_no_calibration():
    few_users = FOLDS - 1
    assert calibration(floats(), floats(), np.arange(0)) is None
    assert calibration(np.full(8, NAN), np.full(8, NAN), np.arange(8)) is None
    assert calibration(np.ones(8), np.ones(8), np.arange(8) % few_users) is None
    assert calibration(np.zeros(8), np.full(8, 0.5), np.arange(8)) is None
    alone = np.append(np.ones(FOLDS - 1), [NAN] * 3)
    assert calibration(alone, alone, np.arange(len(alone))) is None


@usual
@given(columns(margins, verdicts, min_rows=8), columns(margins, min_rows=0, max_rows=5))
def test_failed_rows_change_nothing(table, failed):
    margin, won, clusters = table
    extra, codes = failed
    lost = np.full(len(extra), NAN)
    found = calibration(margin, won, clusters)
    assert calibration(np.append(margin, extra), np.append(won, lost), np.append(clusters, codes)) == found
    assert calibration(np.append(margin, lost), np.append(won, lost), np.append(clusters, codes)) == found


def test_accuracy_at_equal_length_by_hand():
    # of 100 rows with the chosen answer twice as long 80 are won (logit ln 4), of 100 half as long 50 (logit 0): at
    # equal length the logit is ln 2, the share ⅔. Both groups are fitted exactly, so the clustered variance is that of
    # two binomials, ¼ (1/16 + 1/25), times 200/199; t with 199 degrees of freedom is 1.972.
    credit = np.repeat([1.0, 0.0, 1.0, 0.0], [80, 20, 50, 50])
    chosen, rejected = np.repeat([200.0, 100.0], 100), np.repeat([100.0, 200.0], 100)
    result = length_controlled(credit, np.arange(200), chosen, rejected)
    assert result.value == pytest.approx(2 / 3, abs=2e-4)  # the ridge moves it a little
    half = 1.97196 * math.sqrt((1 / 16 + 1 / 25) / 4 * 200 / 199)
    assert (result.low, result.high) == (
        pytest.approx(expit(math.log(2) - half), abs=1e-3),
        pytest.approx(expit(math.log(2) + half), abs=1e-3),
    )
    # the same rows twice, once per copy of a cluster, know no more: the interval is that of 200 clusters
    twice = length_controlled(*(np.tile(a, 2) for a in (credit, np.arange(200), chosen, rejected)))
    assert twice.low == pytest.approx(result.low, abs=1e-3)


def test_where_length_cannot_matter_accuracy_at_equal_length_is_accuracy():
    same = floats(100, 100, 100, 100)
    credit = floats(1, 0, 1, NAN)
    assert length_controlled(credit, ints(0, 1, 2, 3), same, same) == share(credit[:3], ints(0, 1, 2), failed=1)
    won = floats(1, 1, 1)
    assert length_controlled(won, ints(0, 1, 2), floats(1, 2, 3), same[:3]) == share(won, ints(0, 1, 2))
    assert length_controlled(floats(NAN), ints(0), same[:1], same[:1]).value is None


def test_one_cluster_allows_no_interval_at_equal_length():
    result = length_controlled(floats(1, 0, 1, 0), ints(0, 0, 0, 0), floats(2, 1, 2, 1), floats(1, 2, 1, 1))
    assert (result.low, result.high) == (0, 1)


def test_a_histogram_by_hand():
    # the scale is 2, so margins are −0.5, 1, 1 and 50 typical ones; bars are a quarter wide, from −3
    assert histogram(floats(0, NAN)) is None
    result = histogram(floats(-1, 2, 2, 100, 0))
    assert (result["scale"], result["zeros"]) == (2, 1)
    assert {n: count for n, count in enumerate(result["counts"]) if count} == {10: 1, 16: 2, MARGIN_BINS - 1: 1}


def test_accuracy_by_decile_by_hand():
    # twenty margins of sizes 1 … 20: each decile holds two; the model is right from 11 on
    margin = floats(*(n if n > 10 else -n for n in range(1, 21)))
    bins = by_margin(margin, np.where(margin > 0, 1.0, 0.0), np.arange(20))
    assert [(b["from"], b["to"], b["n"], b["value"]) for b in bins] == [
        (2 * k + 1, 2 * k + 2, 2, float(k >= 5)) for k in range(10)
    ]


def test_equal_margins_stay_together_and_failures_are_left_out():
    bins = by_margin(floats(0.5, -0.5, 0.5, 0, NAN), floats(1, 0, 1, 0.5, NAN), ints(0, 1, 2, 3, 4))
    assert [(b["from"], b["n"]) for b in bins] == [(0, 1), (0.5, 3)]
    assert bins[1]["value"] == pytest.approx(2 / 3)
    assert by_margin(floats(NAN), floats(NAN), ints(0)) == []


WORDS = st.frozensets(st.sampled_from("abcd"), max_size=4)


@few
@given(st.lists(st.sampled_from((-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)), min_size=1, max_size=40))
def test_every_margin_is_in_one_bin_and_bins_do_not_overlap(values):
    margin = floats(*values)
    credit = np.where(margin == 0, 0.5, np.where(margin > 0, 1.0, 0.0))
    bins = by_margin(margin, credit, np.arange(len(values)))
    assert sum(b["n"] for b in bins) == len(values)
    assert all(a["to"] < b["from"] for a, b in pairwise(bins))
    counted = histogram(margin)
    if counted:
        assert sum(counted["counts"]) + counted["zeros"] == len(values)


def test_too_few_clusters_are_not_measured():
    rows = np.ones((9, 2))
    assert blind_margins(rows, -rows, [str(n) for n in range(9)]) is None


def test_a_feature_that_gives_chosen_away_is_found_out_of_fold():
    rng = np.random.default_rng(0)
    chosen, rejected = rng.normal(size=(60, 8)), rng.normal(size=(60, 8))
    chosen[:, 3] += 5
    margins = blind_margins(chosen, rejected, [str(n) for n in range(60)])
    assert np.mean(credits_of(margins)) > 0.95


def test_mirror_twins_in_one_cluster_stand_at_exactly_half():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(30, 5)), rng.normal(size=(30, 5))
    chosen, rejected = np.concatenate([a, b]), np.concatenate([b, a])
    margins = blind_margins(chosen, rejected, [str(n % 30) for n in range(60)])
    assert np.mean(credits_of(margins)) == 0.5


def test_weights_agree_with_a_slow_gradient_descent():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 3)) + np.array([0.5, 0, 0])
    scale = np.sqrt((x**2).mean(axis=0))
    z, w = x / scale, np.zeros(3)
    for _ in range(20_000):
        # scikit-learn: ½|w|² + C Σ log(1 + exp(-w·z)), every difference there twice
        w -= 0.01 * (w - 2 * 0.1 * (z / (1 + np.exp(z @ w))[:, None]).sum(axis=0))
    assert bradley_terry(x, 0.1) == pytest.approx(w / scale, abs=1e-3)


def test_users_and_near_duplicate_questions_stay_together():
    users, questions = ["a", "a", "b", "c", "d"], ["q1", "q2", "q2'", "q3", "q4"]
    found = fold_groups(users, questions, [("q2", "q2'")], least=3)
    groups, what = found
    assert what == "person and question"
    assert groups[0] == groups[1] == groups[2]
    assert len(set(groups)) == 3


def test_where_everybody_asks_the_same_questions_only_those_are_kept_whole():
    users = [p for p in "abcd" for _ in range(6)]
    questions = [f"q{n}" for _ in range(4) for n in range(6)]
    found = fold_groups(users, questions, [], least=4)
    assert found[1] == "question"
    assert len(set(found[0])) == 6
    assert [found[0][n] == found[0][n + 6] for n in range(6)] == [True] * 6
    assert fold_groups(users, questions, [], least=7) is None


def pair(chosen: str, rejected: str) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(chosen), frozenset(rejected)


def test_a_word_that_only_chosen_answers_have_is_found_by_a_sign_test():
    answers = [pair("xy", "y")] * 14 + [pair("y", "xy")] * 2
    found, tested = giveaways(answers, [str(n) for n in range(16)])
    # y stands in both answers of each pair and tells nothing; x: 14 against 2, z = 12 / 4
    assert tested == 1
    assert found == [Giveaway("x", 14, 2, pytest.approx(2 * stats.norm.sf(3)))]


def test_rows_of_one_user_count_as_one_voice():
    answers = [pair("x", "")] * 16
    alone, _ = giveaways(answers, [str(n) for n in range(16)])
    together, _ = giveaways(answers, [str(n % 2) for n in range(16)])
    assert alone[0].p == pytest.approx(2 * stats.norm.sf(4))
    assert together[0].p == pytest.approx(2 * stats.norm.sf(np.sqrt(2)))


def test_rare_words_are_not_tested_and_many_are_corrected_for():
    answers = [pair("x", "")] * 9 + [pair("ab", "")] * 10
    found, tested = giveaways(answers, [str(n) for n in range(19)])
    assert (tested, {g.word for g in found}) == (2, {"a", "b"})
    assert found[0].p == pytest.approx(2 * 2 * stats.norm.sf(np.sqrt(10)))


@usual
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30))
def test_mirror_twins_cancel(answers):
    twins = [*answers, *((rejected, chosen) for chosen, rejected in answers)]
    clusters = [str(n) for n in range(len(answers))] * 2
    found, _ = giveaways(twins, clusters, least=1)
    assert all(g.p == 1 and g.chosen == g.rejected for g in found)


def test_a_fitted_learner_has_a_wider_interval_by_hand():
    # five folds: 1 + 5/4 = 9/4 times the variance, so 3/2 times the width
    found = widened(Estimate(value=0.6, low=0.5, high=0.66, n=80))
    assert (found.value, found.low, found.high, found.n) == (0.6, pytest.approx(0.45), pytest.approx(0.69), 80)
    assert widened(Estimate(value=0.9, low=0.1, high=1.0, n=8)).low == 0.0
    exact = Estimate(value=0.5, low=0.5, high=0.5, n=80)
    assert widened(exact) == exact


def test_the_room_above_a_learner_is_as_uncertain_as_the_learner():
    gap = Difference(value=0.2, low=0.1, high=0.3, p=0.01, n=80, dropped=0, test="sign-flip")
    found = room_above(gap, Estimate(value=0.6, low=0.5, high=0.66, n=80))
    # below: 0.1² and what 3/2 of the learner's upper half width 0.06 adds to it, 5/4 · 0.06²
    assert found.low == pytest.approx(0.2 - (0.01 + 1.25 * 0.0036) ** 0.5)
    assert found.high == pytest.approx(0.2 + (0.01 + 1.25 * 0.01) ** 0.5)
    assert (found.value, found.p, found.test) == (0.2, None, "none")
