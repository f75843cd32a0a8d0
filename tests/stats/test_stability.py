"""Does a ranking of models survive other users?"""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from prb.stats.ranking import (
    accuracies,
    cluster_leads,
    cluster_sums,
    clusters_to_overtake,
    first_shares,
    random_orders,
    split_half,
    without_random,
)
from tests.stats.strategies import NAN, few, floats, ints, usual

leads = st.lists(st.sampled_from((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)), min_size=1, max_size=7)


def overtaken_by_trying(values: list[float]) -> int | None:
    """Every set of clusters is left out in turn, smaller sets first; one cluster always remains."""
    for k in range(len(values)):
        for gone in combinations(range(len(values)), k):
            if sum(v for n, v in enumerate(values) if n not in gone) <= 0:
                return k
    return None


def split_half_by_loops(sums: np.ndarray, sizes: np.ndarray, orders: np.ndarray) -> float:
    correlations = []
    for order in orders.tolist():
        halves: list[list[float]] = []
        for inside in (True, False):
            kept = [g for g, place in enumerate(order) if (place < len(order) // 2) == inside]
            halves.append([sum(s[g] for g in kept) / sum(z[g] for g in kept) for s, z in zip(sums, sizes, strict=True)])
        if len(set(halves[0])) > 1 and len(set(halves[1])) > 1:
            correlations.append(float(spearmanr(*halves).statistic))
    return sum(correlations) / len(correlations)


def test_sums_by_cluster_leave_failures_out() -> None:
    sums, sizes = cluster_sums(floats(1, NAN, 0.5, 0, 1), ints(0, 0, 2, 2, 2), 4)
    assert sums.tolist() == [1, 0, 1.5, 0]
    assert sizes.tolist() == [1, 0, 3, 0]


def test_leads_are_counted_on_rows_that_both_answered() -> None:
    a, b = floats(1, 1, NAN, 0.5), floats(0, 0.5, 0, NAN)
    assert cluster_leads(a, b, ints(0, 1, 1, 1), 2).tolist() == [1, 0.5]


@usual
@given(leads)
def test_no_smaller_set_of_clusters_reverses_the_order(values: list[float]) -> None:
    assert clusters_to_overtake(floats(*values)) == overtaken_by_trying(values)


def test_a_lead_by_hand() -> None:
    # 3 + 1 + 1 − 2 = 3: without the 3 the two are level, so one cluster is enough
    assert clusters_to_overtake(floats(1, 3, -2, 1)) == 1
    assert clusters_to_overtake(floats(1, 1)) is None
    assert clusters_to_overtake(floats(0, 0)) == 0


def test_without_k_clusters_every_other_one_counts() -> None:
    sums, sizes = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 2.0], [2.0, 2.0]])
    orders = np.array([[0, 1], [1, 0]])  # the first draw leaves out cluster 0, the second cluster 1
    assert accuracies(orders >= 1, sums, sizes).tolist() == [[0, 0.5], [1, 0.5]]
    result = without_random(orders, 1, sums, sizes)
    assert result["value"] == [0.5, 0.5]
    assert result["first"] == [0.5, 0.5]
    assert without_random(orders, 0, sums, sizes)["first"] == [0.5, 0.5]  # a tie is shared


@few
@given(st.integers(2, 9), st.integers(0, 99))
def test_orders_are_orders_and_repeat(groups: int, seed: int) -> None:
    orders = random_orders(groups, 5, seed)
    assert (np.sort(orders, axis=1) == np.arange(groups)).all()
    assert (orders == random_orders(groups, 5, seed)).all()


def test_shares_of_being_first_add_up() -> None:
    random = Random(0)
    values = np.array([[random.choice((0.25, 0.5, 0.75)) for _ in range(4)] for _ in range(30)])
    assert first_shares(values).sum() == pytest.approx(1)


def test_split_halves_agree_with_a_loop() -> None:
    random = Random(1)
    sizes = np.array([[random.randint(1, 4) for _ in range(9)] for _ in range(5)], dtype=float)
    sums = np.array([[random.randint(0, int(2 * z)) / 2 for z in row] for row in sizes])
    orders = random_orders(9, 25)
    result = split_half(orders, sums, sizes)
    assert result is not None
    assert result["value"] == pytest.approx(split_half_by_loops(sums, sizes, orders))
    assert -1 <= result["low"] <= result["value"] <= result["high"] <= 1


def test_models_that_never_change_places_correlate_perfectly_and_two_models_say_nothing() -> None:
    sizes = np.full((3, 6), 4.0)
    sums = np.array([np.full(6, 1.0), np.full(6, 2.0), np.full(6, 3.0)])
    result = split_half(random_orders(6, 10), sums, sizes)
    assert result == {"value": pytest.approx(1), "low": pytest.approx(1), "high": pytest.approx(1), "draws": 10}
    assert split_half(random_orders(6, 10), sums[:2], sizes[:2]) is None
    assert split_half(random_orders(6, 10), sizes, sizes) is None  # all tied: no order to repeat
