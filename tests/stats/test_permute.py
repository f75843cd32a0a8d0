"""Permutation p-values, swaps and power: published facts, slow twins over every order, properties under chance."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.permute import (
    EXACT,
    measured,
    models_needed,
    orders,
    percentiles,
    permutation_p,
    power,
    resampled,
    swap_p,
    williams,
)
from prb.stats.rank import MEASURES, TWO_SIDED, Array, ndcg
from tests.stats.strategies import few, floats
from tests.stats.test_rank import BON, PPO, columns, two_columns


@pytest.mark.parametrize(("order", "of_rho", "of_ndcg"), [(BON, 0.658, 0.129), (PPO, 0.497, 0.114)])
def test_six_models_do_not_tell_the_published_correlations_from_chance(
    order: tuple[int, ...], of_rho: float, of_ndcg: float
) -> None:
    x, y = columns(order)
    assert permutation_p("spearman", x, y).p == pytest.approx(of_rho, abs=5e-4)
    assert permutation_p("ndcg", x, y).p == pytest.approx(of_ndcg, abs=5e-4)
    assert permutation_p("ndcg", x, y).orders == 720


def test_random_orders_of_six_have_a_high_ndcg_already() -> None:
    x = -np.arange(6, dtype=np.float64)
    assert measured(ndcg, x[None], x[orders(6)]).mean() == pytest.approx(0.6987, abs=5e-5)


@few
@given(two_columns())
@pytest.mark.parametrize("name", MEASURES)
def test_exact_p_counts_every_order_that_does_as_well(name: str, pair: tuple[Array, Array]) -> None:
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


def test_exact_p_agrees_with_scipy() -> None:
    x, y = columns((2, 1, 4, 3, 7, 5, 6))
    assert permutation_p("kendall", x, y).p == pytest.approx(stats.kendalltau(x, y, method="exact").pvalue)


def test_above_nine_models_a_sample_is_drawn_and_p_is_never_zero() -> None:
    x = np.arange(EXACT + 1, dtype=np.float64)
    tested = permutation_p("spearman", x, x, draws=2000)
    assert (tested.exact, tested.orders, tested.p) == (False, 2000, pytest.approx(1 / 2001))


def test_drawn_p_is_near_the_exact_one_of_kendall() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=12)
    y = 0.5 * x + rng.normal(size=12)
    exact = stats.kendalltau(x, y, method="exact").pvalue
    # 20,000 draws: four standard errors
    assert permutation_p("kendall", x, y).p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))


@few
@given(two_columns(), st.integers(0, 99))
@pytest.mark.parametrize("name", [name for name in MEASURES if name != "pearson"])
def test_swaps_are_all_looked_at_and_counted_as_a_slow_loop_would(
    name: str, pair: tuple[Array, Array], seed: int
) -> None:
    x, y = pair[0][:5], pair[1][:5]
    actual = np.random.default_rng(seed).permutation(len(x)).astype(np.float64)
    a, b = stats.rankdata(x), stats.rankdata(y)

    def difference(swap: tuple[bool, ...]) -> float:
        first, second = np.where(swap, b, a), np.where(swap, a, b)
        known = [np.nan_to_num(MEASURES[name](side, actual)[0]) for side in (first, second)]
        return abs(float(known[0] - known[1]))

    slow = [difference(swap) for swap in product((False, True), repeat=len(x))]
    assert swap_p(name, x, y, actual).p == pytest.approx(np.mean([d >= slow[0] - 1e-9 for d in slow]))


def test_a_benchmark_does_not_differ_from_itself_on_another_scale() -> None:
    x, y = columns(BON)
    assert swap_p("spearman", x, 100 + 7 * x**3, y).p == 1.0
    assert williams(x, 2 * x + 1, y) == 1.0


def test_a_perfect_benchmark_beats_a_reversed_one_as_far_as_eight_models_can_tell() -> None:
    x = np.arange(8, dtype=np.float64)
    # only the swaps of none, of all, and any that differ in no rank could be as far apart: 2 of 2^8
    assert swap_p("spearman", x, -x, x).p == 2 / 2**8


def test_swaps_above_sixteen_models_are_sampled() -> None:
    rng = np.random.default_rng(3)
    x, y, z = rng.normal(size=(3, 20))
    tested = swap_p("spearman", x, y, z, draws=500)
    assert (tested.exact, tested.orders) == (False, 500)


def test_williams_agrees_with_a_calculation_by_hand() -> None:
    # r = .40 and .50 with the column, .10 between them, n = 103: |R| = .62, mean .45,
    # t = .1 √(102 · 1.1 / (2 · .62 · 102 / 100 + .2025 · .729)) = .891
    rng = np.random.default_rng(0)
    wanted = np.array([[1, 0.4, 0.5], [0.4, 1, 0.1], [0.5, 0.1, 1]])
    raw = rng.normal(size=(103, 3))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(raw.T @ raw / 102)).T
    actual, first, second = (white @ np.linalg.cholesky(wanted).T).T
    assert williams(first, second, actual) == pytest.approx(2 * stats.t.sf(0.8913, 100), abs=1e-3)


def test_power_of_few_models_is_as_small_as_it_is() -> None:
    assert power(0.5, 4) == 0.0  # 2 of 24 orders are more than 5 %
    assert power(0.5, 12) == pytest.approx(0.36, abs=0.02)
    assert power(0.5, 30) == pytest.approx(0.78, abs=0.02)
    assert power(0.0, 12) == pytest.approx(0.05, abs=0.015)


def test_the_number_of_models_needed_is_the_first_that_suffices() -> None:
    n = models_needed(0.5)
    assert n is not None
    assert power(0.5, n) >= 0.8 > power(0.5, n - 1)
    assert models_needed(0.05, most=16) is None


def test_p_of_unrelated_columns_is_small_no_more_often_than_it_says() -> None:
    rng = np.random.default_rng(5)
    ps = [permutation_p("spearman", *rng.normal(size=(2, 6))).p for _ in range(400)]
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(ps) <= level) <= level + 3 * np.sqrt(level * (1 - level) / 400)


def test_intervals_over_models_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(6)
    inside = 0
    for study in range(100):
        x = rng.normal(size=30)
        y = 0.6 * x + 0.8 * rng.normal(size=30)
        found = percentiles("pearson", *resampled(x, y, seed=study, draws=400))
        assert found is not None
        inside += found[0] <= 0.6 <= found[1]
    assert 86 <= inside <= 100


def test_undefined_resamples_are_left_out_and_too_many_leave_no_interval() -> None:
    rows = np.array([[1.0, 1, 1], [1, 2, 3], [1, 2, 3], [3, 2, 1]])
    assert percentiles("spearman", rows[1:3], floats(1, 2, 3)[None]) == (pytest.approx(1), pytest.approx(1))
    assert percentiles("spearman", rows[[0, 0, 0, 1]], floats(1, 2, 3)[None]) is None


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = columns(BON)
    whole = permutation_p("weighted_kendall", x, y)
    monkeypatch.setattr("prb.stats.permute.CELLS", 100)
    assert permutation_p("weighted_kendall", x, y) == whole
