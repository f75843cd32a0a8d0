"""Measures of rank agreement: golden numbers, properties, and slow twins from scipy, scikit-learn and plain sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import ndcg_score

from prb.stats.rank import MEASURES, Array, kendall, ndcg, pearson, rbo, regret, spearman, weighted_kendall
from tests.stats.strategies import floats, usual

BON, PPO = (1, 5, 3, 4, 6, 2), (1, 4, 3, 5, 6, 2)
"""True rank at each predicted position: the orders behind the paper's correlations."""


def columns(order: tuple[int, ...]) -> tuple[Array, Array]:
    """Scores of a benchmark that puts model 1 first, and of a downstream with these ranks."""
    return -np.arange(len(order), dtype=np.float64), -np.array(order, dtype=np.float64)


@st.composite
def two_columns(draw: st.DrawFn, *, ties: bool = True) -> tuple[Array, Array]:
    n = draw(st.integers(3, 8))
    cells = st.lists(st.integers(0, 3 if ties else 999), min_size=n, max_size=n, unique=not ties)
    found = [np.array(draw(cells.filter(lambda row: len(set(row)) > 1)), dtype=np.float64) for _ in range(2)]
    return found[0], found[1]


def one(measure: Callable[[Array, Array], Array], x: Array, y: Array) -> float:
    (value,) = measure(x, y)
    return float(value)


@pytest.mark.parametrize(("order", "gain", "rho"), [(BON, 0.9180, 9 / 35), (PPO, 0.9265, 13 / 35)])
def test_the_published_correlations_come_from_these_orders(order: tuple[int, ...], gain: float, rho: float) -> None:
    assert one(ndcg, *columns(order)) == pytest.approx(gain, abs=5e-5)
    assert one(spearman, *columns(order)) == pytest.approx(rho)


def test_overlap_of_two_swapped_models_by_hand() -> None:
    # nothing agrees at depth 1, everything at depth 2: 0.9² + 0.1 / 0.9 · (0 · 0.9 + 1 · 0.9²) = 0.9
    assert one(rbo, floats(1, 2), floats(2, 1)) == pytest.approx(0.9)


def test_regret_is_what_the_first_choice_lacks_and_a_mean_over_tied_firsts() -> None:
    downstream = floats(0.2, 0.5, 0.9)
    assert one(regret, floats(3, 2, 1), downstream) == pytest.approx(0.7)
    assert one(regret, floats(1, 1, 0), downstream) == pytest.approx(0.9 - 0.35)


@usual
@given(two_columns())
def test_correlations_agree_with_scipy_with_ties_too(pair: tuple[Array, Array]) -> None:
    x, y = pair
    assert one(spearman, x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert one(kendall, x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert one(weighted_kendall, x, y) == pytest.approx(stats.weightedtau(x, y).statistic)
    assert one(pearson, x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])


@usual
@given(two_columns())
def test_ndcg_agrees_with_scikit_learn_with_ties_too(pair: tuple[Array, Array]) -> None:
    x, y = pair
    gains = 2.0 ** stats.rankdata(y) - 1
    assert one(ndcg, x, y) == pytest.approx(ndcg_score([gains], [x]))


@usual
@given(two_columns())
def test_overlap_agrees_with_sets_of_models(pair: tuple[Array, Array]) -> None:
    x, y = pair
    n, p = len(x), 0.9
    agreement = []
    for depth in range(1, n + 1):
        s, t = ({i for i in range(n) if sum(c[j] > c[i] for j in range(n)) < depth} for c in (x, y))
        agreement.append(2 * len(s & t) / (len(s) + len(t)))
    slow = agreement[-1] * p**n + (1 - p) / p * sum(a * p**d for d, a in enumerate(agreement, 1))
    assert one(rbo, x, y) == pytest.approx(slow)


@usual
@given(two_columns(ties=False), st.integers(0, 99))
@pytest.mark.parametrize("name", MEASURES)
def test_the_order_of_the_models_does_not_matter(name: str, pair: tuple[Array, Array], seed: int) -> None:
    x, y = pair
    order = np.random.default_rng(seed).permutation(len(x))
    assert one(MEASURES[name], x[order], y[order]) == pytest.approx(one(MEASURES[name], x, y))


@usual
@given(two_columns(ties=False))
def test_a_perfect_prediction_is_perfect_in_every_measure(pair: tuple[Array, Array]) -> None:
    x, _ = pair
    for name, measure in MEASURES.items():
        assert one(measure, x, x) == pytest.approx(0.0 if name == "regret" else 1.0)


@usual
@given(two_columns())
@pytest.mark.parametrize("name", MEASURES)
def test_many_rows_at_once_on_either_side_are_the_rows_one_by_one(name: str, pair: tuple[Array, Array]) -> None:
    x, y = pair
    measure = MEASURES[name]
    xs, ys = np.stack([x, x[::-1], y]), np.stack([y, y[::-1], x])
    assert measure(x, ys) == pytest.approx([one(measure, x, row) for row in ys])
    assert measure(xs, y) == pytest.approx([one(measure, row, y) for row in xs])
    assert measure(xs, ys) == pytest.approx([one(measure, a, b) for a, b in zip(xs, ys, strict=True)])


def test_a_constant_column_correlates_with_nothing() -> None:
    for measure in (pearson, spearman, kendall, weighted_kendall):
        assert np.isnan(one(measure, floats(1, 1, 1), floats(1, 2, 3)))
