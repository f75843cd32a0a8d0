"""Rank agreement and its tests: published facts, properties, slow twins over every order and from other libraries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import ndcg_score

from prb.stats.estimate import Floats
from prb.stats.ranking import (
    EXACT,
    MEASURES,
    TWO_SIDED,
    accuracies,
    cluster_sums,
    clusters_to_overtake,
    kendall,
    models_needed,
    ndcg,
    pearson,
    percentiles,
    permutation_p,
    power,
    random_orders,
    rbo,
    regret,
    resampled,
    spearman,
    split_half,
    swap_p,
    weighted_kendall,
    williams,
    without_random,
)
from tests.stats.strategies import NAN, few, floats, ints, usual

BON, PPO = (1, 5, 3, 4, 6, 2), (1, 4, 3, 5, 6, 2)
"""True rank at each predicted position: the orders behind the paper's correlations."""


def columns(order: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Scores of a benchmark that puts model 1 first, and of a downstream with these ranks."""
    return -np.arange(len(order), dtype=np.float64), -np.array(order, dtype=np.float64)


@st.composite
def two_columns(draw: st.DrawFn, *, ties: bool = True) -> tuple[Floats, Floats]:
    n = draw(st.integers(3, 8))
    cells = st.lists(st.integers(0, 3 if ties else 999), min_size=n, max_size=n, unique=not ties)
    found = [np.array(draw(cells.filter(lambda row: len(set(row)) > 1)), dtype=np.float64) for _ in range(2)]
    return found[0], found[1]


def one(measure: Callable[[Floats, Floats], Floats], x: Floats, y: Floats) -> float:
    (value,) = measure(x, y)
    return float(value)


@pytest.mark.parametrize(("order", "gain", "rho"), [(BON, 0.9180, 9 / 35), (PPO, 0.9265, 13 / 35)])
def test_the_published_correlations_come_from_these_orders(order, gain, rho):
    assert one(ndcg, *columns(order)) == pytest.approx(gain, abs=5e-5)
    assert one(spearman, *columns(order)) == pytest.approx(rho)


def test_regret_is_what_the_first_choice_lacks_and_a_mean_over_tied_firsts():
    downstream = floats(0.2, 0.5, 0.9)
    assert one(regret, floats(3, 2, 1), downstream) == pytest.approx(0.7)
    assert one(regret, floats(1, 1, 0), downstream) == pytest.approx(0.9 - 0.35)


@usual
@given(two_columns())
def test_correlations_agree_with_scipy_with_ties_too(pair):
    x, y = pair
    assert one(spearman, x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert one(kendall, x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert one(weighted_kendall, x, y) == pytest.approx(stats.weightedtau(x, y).statistic)
    assert one(pearson, x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])


@usual
@given(two_columns())
def test_ndcg_agrees_with_scikit_learn_with_ties_too(pair):
    x, y = pair
    gains = 2.0 ** stats.rankdata(y) - 1
    assert one(ndcg, x, y) == pytest.approx(ndcg_score([gains], [x]))


@usual
@given(two_columns())
def test_overlap_agrees_with_sets_of_models(pair):
    x, y = pair
    n, p = len(x), 0.9
    agreement = []
    for depth in range(1, n + 1):
        s, t = ({i for i in range(n) if sum(c[j] > c[i] for j in range(n)) < depth} for c in (x, y))
        agreement.append(2 * len(s & t) / (len(s) + len(t)))
    slow = agreement[-1] * p**n + (1 - p) / p * sum(a * p**d for d, a in enumerate(agreement, 1))
    assert one(rbo, x, y) == pytest.approx(slow)


@usual
@given(two_columns())
@pytest.mark.parametrize("name", MEASURES)
def test_many_rows_at_once_on_either_side_are_the_rows_one_by_one(name, pair):
    x, y = pair
    measure = MEASURES[name]
    xs, ys = np.stack([x, x[::-1], y]), np.stack([y, y[::-1], x])
    assert measure(x, ys) == pytest.approx([one(measure, x, row) for row in ys])
    assert measure(xs, y) == pytest.approx([one(measure, row, y) for row in xs])
    assert measure(xs, ys) == pytest.approx([one(measure, a, b) for a, b in zip(xs, ys, strict=True)])


def test_a_constant_column_correlates_with_nothing():
    for measure in (pearson, spearman, kendall, weighted_kendall):
        assert np.isnan(one(measure, floats(1, 1, 1), floats(1, 2, 3)))


@pytest.mark.parametrize(("order", "of_rho", "of_ndcg"), [(BON, 0.658, 0.129), (PPO, 0.497, 0.114)])
def test_six_models_do_not_tell_the_published_correlations_from_chance(order, of_rho, of_ndcg):
    x, y = columns(order)
    assert permutation_p("spearman", x, y).p == pytest.approx(of_rho, abs=5e-4)
    assert permutation_p("ndcg", x, y) == (pytest.approx(of_ndcg, abs=5e-4), True)


@few
@given(two_columns())
@pytest.mark.parametrize("name", MEASURES)
def test_exact_p_counts_every_order_that_does_as_well(name, pair):
    x, y = pair[0][:5], pair[1][:5]
    if len(set(x)) == 1 or len(set(y)) == 1:
        return
    seen = MEASURES[name](x, y)[0]
    slow = [MEASURES[name](x, np.array(order))[0] for order in permutations(y)]
    if name in TWO_SIDED:
        hits = [abs(value) >= abs(seen) - 1e-9 for value in slow]
    else:
        hits = [value <= seen + 1e-9 if name == "regret" else value >= seen - 1e-9 for value in slow]
    assert permutation_p(name, x, y).p == pytest.approx(np.mean(hits))


def test_above_nine_models_a_sample_is_drawn_and_p_is_never_zero():
    x = np.arange(EXACT + 1, dtype=np.float64)
    tested = permutation_p("spearman", x, x, draws=2000)
    assert tested == (pytest.approx(1 / 2001), False)


@few
@given(two_columns(), st.integers(0, 99))
@pytest.mark.parametrize("name", [name for name in MEASURES if name != "pearson"])
def test_swaps_are_all_looked_at_and_counted_as_a_slow_loop_would(name, pair, seed):
    x, y = pair[0][:5], pair[1][:5]
    actual = np.random.default_rng(seed).permutation(len(x)).astype(np.float64)
    a, b = stats.rankdata(x), stats.rankdata(y)

    def difference(swap: tuple[bool, ...]) -> float:
        first, second = np.where(swap, b, a), np.where(swap, a, b)
        known = [np.nan_to_num(MEASURES[name](side, actual)[0]) for side in (first, second)]
        return abs(float(known[0] - known[1]))

    slow = [difference(swap) for swap in product((False, True), repeat=len(x))]
    assert swap_p(name, x, y, actual).p == pytest.approx(np.mean([d >= slow[0] - 1e-9 for d in slow]))


def test_williams_agrees_with_a_calculation_by_hand():
    # r = .40 and .50 with the column, .10 between them, n = 103: |R| = .62, mean .45,
    # t = .1 √(102 · 1.1 / (2 · .62 · 102 / 100 + .2025 · .729)) = .891
    rng = np.random.default_rng(0)
    wanted = np.array([[1, 0.4, 0.5], [0.4, 1, 0.1], [0.5, 0.1, 1]])
    raw = rng.normal(size=(103, 3))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(raw.T @ raw / 102)).T
    actual, first, second = (white @ np.linalg.cholesky(wanted).T).T
    assert williams(first, second, actual) == pytest.approx(2 * stats.t.sf(0.8913, 100), abs=1e-3)


def test_power_of_few_models_is_as_small_as_it_is():
    assert power(0.5, 4) == 0.0  # 2 of 24 orders are more than 5 %
    assert power(0.5, 12) == pytest.approx(0.36, abs=0.02)
    assert power(0.5, 30) == pytest.approx(0.78, abs=0.02)
    assert power(0.0, 12) == pytest.approx(0.05, abs=0.015)


def test_the_number_of_models_needed_is_the_first_that_suffices():
    n = models_needed(0.5)
    assert power(0.5, n) >= 0.8 > power(0.5, n - 1)
    assert models_needed(0.05, most=16) is None


def test_undefined_resamples_are_left_out_and_too_many_leave_no_interval():
    rows = np.array([[1.0, 1, 1], [1, 2, 3], [1, 2, 3], [3, 2, 1]])
    assert percentiles("spearman", rows[1:3], floats(1, 2, 3)[None]) == (pytest.approx(1), pytest.approx(1))
    assert percentiles("spearman", rows[[0, 0, 0, 1]], floats(1, 2, 3)[None]) is None


def test_blocks_change_nothing(monkeypatch):
    x, y = columns(BON)
    whole = permutation_p("weighted_kendall", x, y)
    monkeypatch.setattr("prb.stats.ranking.CELLS", 100)
    assert permutation_p("weighted_kendall", x, y) == whole


# does a ranking of models survive other users?

leads = st.lists(st.sampled_from((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)), min_size=1, max_size=7)


def overtaken_by_trying(values: list[float]) -> int | None:
    """Every set of clusters is left out in turn, smaller sets first; one cluster always remains."""
    for k in range(len(values)):
        for gone in combinations(range(len(values)), k):
            if sum(v for n, v in enumerate(values) if n not in gone) <= 0:
                return k
    return None


def test_sums_by_cluster_leave_failures_out():
    sums, sizes = cluster_sums(floats(1, NAN, 0.5, 0, 1), ints(0, 0, 2, 2, 2), 4)
    assert sums.tolist() == [1, 0, 1.5, 0]
    assert sizes.tolist() == [1, 0, 3, 0]


@usual
@given(leads)
def test_no_smaller_set_of_clusters_reverses_the_order(values):
    assert clusters_to_overtake(floats(*values)) == overtaken_by_trying(values)


def test_without_k_clusters_every_other_one_counts():
    sums, sizes = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 2.0], [2.0, 2.0]])
    orders = np.array([[0, 1], [1, 0]])  # the first draw leaves out cluster 0, the second cluster 1
    assert accuracies(orders >= 1, sums, sizes).tolist() == [[0, 0.5], [1, 0.5]]
    result = without_random(orders, 1, sums, sizes)
    assert result["value"] == [0.5, 0.5]
    assert result["first"] == [0.5, 0.5]
    assert without_random(orders, 0, sums, sizes)["first"] == [0.5, 0.5]  # a tie is shared


def test_models_that_never_change_places_correlate_perfectly_and_two_models_say_nothing():
    sizes = np.full((3, 6), 4.0)
    sums = np.array([np.full(6, 1.0), np.full(6, 2.0), np.full(6, 3.0)])
    result = split_half(random_orders(6, 10), sums, sizes)
    assert result == {"value": pytest.approx(1), "low": pytest.approx(1), "high": pytest.approx(1), "draws": 10}
    assert split_half(random_orders(6, 10), sums[:2], sizes[:2]) is None
    assert split_half(random_orders(6, 10), sizes, sizes) is None  # all tied: no order to repeat


def test_of_many_models_swaps_and_resamples_are_drawn():
    rng = np.random.default_rng(3)
    x, y, z = rng.normal(size=(3, 20))
    assert not swap_p("spearman", x, y, z, draws=500).exact
    low, high = percentiles("pearson", *resampled(x, x + 0.1 * y, draws=200)) or (0.0, 0.0)
    assert 0.9 < low < high < 1
