"""Agreement, reliability and parity: golden numbers, a slow twin for each formula, properties."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prb.stats.agreement import (
    NUISANCE,
    alternative_test,
    dawid_skene,
    equivalence,
    exact_p,
    fleiss_kappa,
    gwet_ac1,
    krippendorff_alpha,
    labels_for,
    mean_size,
    prediction_powered,
    with_interval,
)
from prb.stats.estimate import Ints
from tests.stats.strategies import NAN

VOTES = st.lists(st.lists(st.integers(-1, 2), min_size=3, max_size=3), min_size=3, max_size=14).map(np.array)
FULL = st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=3, max_size=14).map(np.array)


def known(votes: Ints) -> list[list[int]]:
    return [[int(v) for v in row if v >= 0] for row in votes]


def slow_fleiss(votes: Ints, values: int) -> float | None:
    units = [row for row in known(votes) if len(row) > 1]
    if not units:
        return None
    agreed = [np.mean([a == b for a, b in combinations(row, 2)]) for row in units]
    pooled = [v for row in units for v in row]
    chance = sum((pooled.count(v) / len(pooled)) ** 2 for v in range(values))
    return None if chance == 1 else float((np.mean(agreed) - chance) / (1 - chance))


def slow_ac1(votes: Ints, values: int) -> float:
    shares = [[row.count(v) / len(row) for v in range(values)] for row in known(votes) if row]
    mean = [float(np.mean([s[v] for s in shares])) for v in range(values)]
    chance = sum(p * (1 - p) for p in mean) / (values - 1)
    agreed = np.mean([np.mean([a == b for a, b in combinations(row, 2)]) for row in known(votes) if len(row) > 1])
    return float((agreed - chance) / (1 - chance))


def test_fleiss_example_of_1971_by_hand():
    """Two units, three raters: (a a b) and (b b b): P = (1/3 + 1)/2, chance = (1/3)² + (2/3)²."""
    votes = np.array([[0, 0, 1], [1, 1, 1]])
    assert fleiss_kappa(votes, 2) == pytest.approx((2 / 3 - 5 / 9) / (4 / 9))
    assert gwet_ac1(votes, 2) == pytest.approx((2 / 3 - 2 * (1 / 3) * (2 / 3)) / (1 - 4 / 9))


def test_krippendorffs_own_example_has_his_alpha():
    """Four observers, twelve units with gaps (Krippendorff 2011, section C): nominal 0.743, ordinal 0.815."""
    gap = -1
    rows = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, gap, gap, gap],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, gap, 3],
        [gap, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, gap],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, gap],
    ]
    votes = np.array([[v - 1 if v > 0 else -1 for v in unit] for unit in zip(*rows, strict=True)])
    assert krippendorff_alpha(votes, 5) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(votes, 5, ordinal=True) == pytest.approx(0.815, abs=5e-4)


@settings(max_examples=80, deadline=None)
@given(VOTES)
def test_coefficients_equal_their_slow_twins(votes):
    if not any(len(row) > 1 for row in known(votes)):
        return
    for mine, twin in ((fleiss_kappa(votes, 3), slow_fleiss(votes, 3)), (gwet_ac1(votes, 3), slow_ac1(votes, 3))):
        assert (mine is None) == (twin is None)
        if mine is not None:
            assert mine == pytest.approx(twin, abs=1e-9)


def test_perfect_agreement_is_one_and_a_single_value_is_undefined():
    votes = np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2]])
    for statistic in (krippendorff_alpha, fleiss_kappa, gwet_ac1):
        assert statistic(votes, 3) == pytest.approx(1.0)
    same = np.zeros((5, 3), dtype=np.int64)
    assert [f(same, 3) for f in (krippendorff_alpha, fleiss_kappa)] == [None] * 2
    assert gwet_ac1(same, 3) == 1.0  # its chance term does not break down: that is what it is for


def test_raters_without_common_units_have_no_kappa():
    assert fleiss_kappa(np.array([[0, -1], [-1, 1]]), 2) is None
    nothing = with_interval(lambda v: krippendorff_alpha(v, 2), np.array([[0, -1], [-1, 1]]), np.arange(2))
    assert (nothing.value, nothing.low, nothing.n) == (None, None, 0)


def test_resampling_whole_groups_is_wider_than_pretending_that_copies_are_new():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, size=40)
    votes = np.where(rng.random((40, 3)) < 0.8, truth[:, None], 1 - truth[:, None])
    copies = np.repeat(votes, 5, axis=0)
    honest = with_interval(lambda v: fleiss_kappa(v, 2), copies, np.repeat(np.arange(40), 5), draws=400)
    naive = with_interval(lambda v: fleiss_kappa(v, 2), copies, np.arange(200), draws=400)
    assert honest.value == naive.value
    assert honest.high - honest.low > 1.6 * (naive.high - naive.low)
    again = with_interval(lambda v: fleiss_kappa(v, 2), copies, np.repeat(np.arange(40), 5), draws=400)
    assert again == honest


def slow_dawid_skene(votes: Ints, values: int, rounds: int, smooth: float) -> list[float]:
    """The same model with loops and products instead of logarithms."""
    units, raters = votes.shape
    belief = [[row.count(v) / len(row) if row else 1 / values for v in range(values)] for row in known(votes)]
    for _ in range(rounds):
        prior = [sum(b[k] for b in belief) / units for k in range(values)]
        confusion = [[[smooth] * values for _ in range(values)] for _ in range(raters)]
        for u, r in np.argwhere(votes >= 0):
            for k in range(values):
                confusion[r][k][votes[u, r]] += belief[u][k]
        for matrix in confusion:
            for k, line in enumerate(matrix):
                matrix[k] = [x / sum(line) for x in line]
        for u in range(units):
            weight = [
                prior[k] * math.prod(confusion[r][k][votes[u, r]] for r in range(raters) if votes[u, r] >= 0)
                for k in range(values)
            ]
            belief[u] = [w / sum(weight) for w in weight]
    return [sum(prior[k] * confusion[r][k][k] for k in range(values)) for r in range(raters)]


@settings(max_examples=30, deadline=None)
@given(FULL)
def test_dawid_skene_equals_its_slow_twin(votes):
    assert np.allclose(dawid_skene(votes, 3, rounds=5), slow_dawid_skene(votes, 3, 5, 0.1), atol=1e-7)


def test_equivalence_is_two_t_tests():
    from scipy.stats import ttest_1samp

    delta = np.random.default_rng(3).normal(0.1, 0.6, size=50)
    found = equivalence(delta, 0.5)
    low = ttest_1samp(delta, -0.5, alternative="greater").pvalue
    high = ttest_1samp(delta, 0.5, alternative="less").pvalue
    assert found.p == pytest.approx(max(low, high))
    assert found.equivalent is (found.p is not None and found.p < 0.05)
    assert found.effect == pytest.approx(delta.mean() / delta.std(ddof=1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=30), st.floats(0.05, 2))
def test_equivalence_holds_exactly_when_the_interval_is_inside_the_margin(values, margin):
    found = equivalence(np.array(values), margin)
    inside = -margin < found.low and found.high < margin
    edge = min(abs(found.low + margin), abs(found.high - margin)) < 1e-9
    assert edge or found.equivalent is inside


def test_too_few_differences_show_nothing():
    assert equivalence(np.array([]), 0.5).equivalent is False
    assert equivalence(np.array([0.0]), 0.5).equivalent is False
    assert equivalence(np.zeros(9), 0.5).equivalent is True
    assert mean_size(np.array([])).value is None


@pytest.mark.parametrize("behind", [[-1, -1, 0, -1], [-1, 0, 0, 0], [1, 0, -1], [1, 1, 0, 0]])
def test_p_is_the_largest_over_how_often_values_are_zero_by_enumeration(behind):
    epsilon, n = 0.15, len(behind)
    low, high = stats.binomtest(np.count_nonzero(behind), n).proportion_ci(1 - NUISANCE)
    chances = []
    for share in np.linspace(max(epsilon, low), max(epsilon, high), 101):
        chance = {1: (share + epsilon) / 2, -1: (share - epsilon) / 2, 0: 1 - share}
        sums = [each for each in product(chance, repeat=n) if sum(each) <= sum(behind)]
        chances.append(sum(np.prod([chance[value] for value in each]) for each in sums))
    assert exact_p(np.array(behind), epsilon) == pytest.approx(min(1.0, max(chances) + NUISANCE), abs=1e-9)


def test_without_ties_and_margin_p_is_the_sign_test():
    behind = np.array([-1] * 9 + [1])
    # 11 of 1,024 sequences have at most one 1; the nuisance interval costs its own chance of missing
    assert exact_p(behind, 0.0) == pytest.approx(11 / 1024 + NUISANCE, abs=1e-4)


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=30), st.floats(0, 0.5), st.floats(0, 0.4))
def test_more_tolerance_never_makes_a_judge_worse(values, epsilon, more):
    behind = np.array(values)
    assert exact_p(behind, epsilon + more) <= exact_p(behind, epsilon) + 1e-9


def test_a_judge_that_says_what_all_people_say_wins_over_each_of_them_and_one_that_errs_over_none():
    votes = np.tile(np.arange(60) % 2, (3, 1)).T.astype(float)
    good = alternative_test(votes, votes[:, 0], ["a", "b", "c"])
    bad = alternative_test(votes, 1 - votes[:, 0], ["a", "b", "c"])
    assert (good.winning_rate, good.advantage, good.passes) == (1.0, 1.0, True)
    assert (bad.winning_rate, bad.advantage, bad.passes) == (0.0, 0.0, False)
    assert alternative_test(votes[:, :1], votes[:, 0], ["a"]).winning_rate is None  # there is nobody to agree with


def test_alignment_is_with_the_others_who_judged_the_item():
    # c judged neither item: a is compared with b alone; the judge agrees with b on both, a on one
    votes = np.array([[1, 1, NAN], [0, 1, NAN]])
    found = {rival.annotator: rival for rival in alternative_test(votes, np.array([1.0, 1.0]), ["a", "b", "c"]).rivals}
    assert set(found) == {"a", "b"}
    assert (found["a"].judge, found["a"].n) == (1.0, 2)


def test_numbers_are_compared_by_distance():
    votes = np.array([[1.0, 2.0], [4.0, 4.0]])
    found = alternative_test(votes, np.array([2.0, 3.0]), ["a", "b"], scale="numeric").rivals[0]
    # against b: the judge is 0 and 1 away, a is 1 and 0 away
    assert found.judge == 0.5


def test_a_powered_mean_is_the_formula_worked_by_hand():
    human, judge, more = np.array([1.0, 0, 1, 1]), np.array([1.0, 1, 1, 1]), np.array([1.0, 0, 1, 0, 1, 1])
    classical = prediction_powered(human, judge, more, np.arange(4), np.arange(4, 10), weight=1)
    assert classical.tuned.value == pytest.approx(0.75 + 4 / 6 - 1)  # the judge's 4/6, minus its error of 0.25
    found = prediction_powered(human, judge, more, np.arange(4), np.arange(4, 10))
    assert found.human.value == 0.75
    assert found.weight == 0  # it says the same of all labeled items, so it tells nothing about them


def test_clusters_of_one_row_give_the_textbook_variance():
    rng = np.random.default_rng(0)
    human, judge, more = rng.random(40), rng.random(40), rng.random(200)
    found = prediction_powered(human, judge, more, np.arange(40), np.arange(40, 240), weight=1).tuned
    squares = (
        np.square(human - judge - (human - judge).mean()).sum() / 40**2 + np.square(more - more.mean()).sum() / 200**2
    )
    half = (found.high - found.low) / 2
    assert half == pytest.approx(2.0227 * np.sqrt(squares * 240 / 239), rel=1e-3)


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(0, 40))
def test_a_tuned_interval_is_never_wider_than_either_of_the_others(seed, labeled, rest):
    rng = np.random.default_rng(seed)
    human, judge, more = rng.normal(size=labeled), rng.normal(size=labeled), rng.normal(size=rest)
    clusters, more_clusters = np.arange(labeled), np.arange(labeled, labeled + rest)
    width = {}
    for weight in (None, 0, 1):
        tuned = prediction_powered(human, judge, more, clusters, more_clusters, unit=False, weight=weight).tuned
        width[weight] = tuned.high - tuned.low
    assert width[None] <= min(width[0], width[1]) + 1e-9


def test_four_times_the_labels_halve_an_interval():
    human, judge, more = np.array([0.0, 1] * 20), np.array([0.0, 1] * 18 + [1, 0] * 2), np.ones(100) * 0.5
    found = prediction_powered(human, judge, more, np.arange(40), np.arange(40, 140))
    half = (found.tuned.high - found.tuned.low) / 2
    assert labels_for(found, half / 2) == pytest.approx(160, abs=1)
