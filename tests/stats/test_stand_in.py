"""Golden numbers by hand and by enumeration; scipy as a second implementation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from prb.stats.stand_in import (
    NUISANCE,
    _sum_at_most,
    alternative_test,
    benjamini_yekutieli,
    exact_p,
    labels_for,
    prediction_powered,
)

NAN = float("nan")


@pytest.mark.parametrize("total", [-3, -1, 0, 2, 4])
def test_the_distribution_of_a_sum_equals_enumeration(total):
    up, down, n = 0.35, 0.2, 4
    chance = {1: up, -1: down, 0: 1 - up - down}
    enumerated = sum(np.prod([chance[v] for v in each]) for each in product(chance, repeat=n) if sum(each) <= total)
    assert _sum_at_most(total, n, up, down) == pytest.approx(enumerated, abs=1e-12)


def test_without_ties_and_margin_p_is_the_sign_test():
    behind = np.array([-1] * 9 + [1])
    # 11 of 1,024 sequences have at most one 1; the nuisance interval costs its own chance of missing
    assert exact_p(behind, 0.0) == pytest.approx(11 / 1024 + NUISANCE, abs=1e-4)


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=30), st.floats(0, 0.5), st.floats(0, 0.4))
def test_more_tolerance_never_makes_a_judge_worse(values, epsilon, more):
    behind = np.array(values)
    assert exact_p(behind, epsilon + more) <= exact_p(behind, epsilon) + 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_correction_is_scipys(p):
    assert benjamini_yekutieli(p) == pytest.approx(false_discovery_control(p, method="by").tolist())


def test_a_judge_that_says_what_all_people_say_wins_over_each_of_them_and_one_that_errs_over_none():
    votes = np.tile(np.arange(60) % 2, (3, 1)).T.astype(float)
    good = alternative_test(votes, votes[:, 0], ["a", "b", "c"])
    bad = alternative_test(votes, 1 - votes[:, 0], ["a", "b", "c"])
    assert (good.winning_rate, good.advantage, good.passes) == (1.0, 1.0, True)
    assert (bad.winning_rate, bad.advantage, bad.passes) == (0.0, 0.0, False)


def test_alignment_is_with_the_others_who_judged_the_item():
    # c judged neither item: a is compared with b alone; the judge agrees with b on both, a on one
    votes = np.array([[1, 1, NAN], [0, 1, NAN]])
    found = {rival.annotator: rival for rival in alternative_test(votes, np.array([1.0, 1.0]), ["a", "b", "c"]).rivals}
    assert set(found) == {"a", "b"}
    assert (found["a"].judge, found["a"].human, found["a"].n) == (1.0, 0.5, 2)


def test_numbers_are_compared_by_distance():
    votes = np.array([[1.0, 2.0], [4.0, 4.0]])
    found = alternative_test(votes, np.array([2.0, 3.0]), ["a", "b"], scale="numeric").rivals[0]
    # against b: the judge is 0 and 1 away, a is 1 and 0 away
    assert (found.judge, found.human) == (0.5, 0.5)


def test_one_annotator_alone_cannot_be_compared():
    assert alternative_test(np.ones((5, 1)), np.ones(5), ["a"]).winning_rate is None


def test_a_powered_mean_is_the_formula_worked_by_hand():
    human, judge, more = np.array([1.0, 0, 1, 1]), np.array([1.0, 1, 1, 1]), np.array([1.0, 0, 1, 0, 1, 1])
    found = prediction_powered(human, judge, more, np.arange(4), np.arange(4, 10))
    assert found.human.value == 0.75
    assert found.classical.value == pytest.approx(0.75 + 4 / 6 - 1)  # the judge's 4/6, minus its error of 0.25
    assert found.weight == 0  # it says the same of all labeled items, so it tells nothing about them


def test_clusters_of_one_row_give_the_textbook_variance():
    rng = np.random.default_rng(0)
    human, judge, more = rng.random(40), rng.random(40), rng.random(200)
    found = prediction_powered(human, judge, more, np.arange(40), np.arange(40, 240))
    squares = (
        np.square(human - judge - (human - judge).mean()).sum() / 40**2 + np.square(more - more.mean()).sum() / 200**2
    )
    half = (found.classical.high - found.classical.low) / 2
    assert half == pytest.approx(2.0227 * np.sqrt(squares * 240 / 239), rel=1e-3)


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(0, 40))
def test_a_tuned_interval_is_never_wider_than_either_of_the_others(seed, labeled, rest):
    rng = np.random.default_rng(seed)
    human, judge, more = rng.normal(size=labeled), rng.normal(size=labeled), rng.normal(size=rest)
    found = prediction_powered(human, judge, more, np.arange(labeled), np.arange(labeled, labeled + rest), unit=False)
    width = {name: getattr(found, name).high - getattr(found, name).low for name in ("human", "classical", "tuned")}
    assert width["tuned"] <= min(width["human"], width["classical"]) + 1e-9


def test_four_times_the_labels_halve_an_interval():
    human, judge, more = np.array([0.0, 1] * 20), np.array([0.0, 1] * 18 + [1, 0] * 2), np.ones(100) * 0.5
    found = prediction_powered(human, judge, more, np.arange(40), np.arange(40, 140))
    half = (found.tuned.high - found.tuned.low) / 2
    assert labels_for(found, half / 2) == pytest.approx(160, abs=1)
