"""Best-of-k: exact against every subset, by hand, and as properties."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.errors import BadInput
from prb.stats.best_of import curves, headroom, kl_bound, meetings, overoptimization, powers, weights, win_rates
from prb.stats.estimate import Floats, Ints
from tests.stats.strategies import NAN, few, floats, ints, usual

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
def test_a_weight_is_the_share_of_all_subsets_that_a_sample_wins(scores: Floats, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    assert weights(scores, k) == pytest.approx([float(w) for w in by_every_subset(scores, k)], abs=1e-15)


def test_weights_by_hand() -> None:
    # of 4 samples there are 6 couples: the best wins 3 of them, the two in the middle share the other 3
    assert weights(floats(1, 2, 2, 3), 2).tolist() == [0, 0.25, 0.25, 0.5]
    assert weights(floats(7, 7, 7), 2).tolist() == [1 / 3] * 3
    assert weights(floats(5, 9, 9, 1), 4).tolist() == [0, 0.5, 0.5, 0]


@usual
@given(tied_scores, st.data())
def test_only_the_order_of_scores_matters(scores: Floats, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    places = np.array(data.draw(st.permutations(range(len(scores)))))
    assert weights(np.exp(scores) - 100, k).tolist() == weights(scores, k).tolist()
    assert weights(scores[places], k).tolist() == weights(scores, k)[places].tolist()
    assert weights(scores, k).sum() == pytest.approx(1)


def test_best_of_many_is_exact_where_floats_would_overflow() -> None:
    found = weights(np.arange(3000.0), 1500)
    assert found.sum() == pytest.approx(1)
    assert found[-1] == 0.5  # the best of all is in half of all halves


@pytest.mark.parametrize("k", [0, 4, -1])
def test_more_than_there_are_samples_is_refused(k: int) -> None:
    with pytest.raises(BadInput, match=f"best-of-{k} is not defined for 3 samples"):
        weights(floats(1, 2, 3), k)


rows = st.lists(st.tuples(*[st.tuples(st.integers(0, 3), grade)] * 5), min_size=1, max_size=6)


@usual
@given(rows)
def test_curves_stay_between_nobody_and_the_oracle(table: list[tuple[tuple[int, float], ...]]) -> None:
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


def test_one_failed_sample_leaves_its_query_out() -> None:
    scores = np.array([[1.0, 2.0], [1.0, NAN], [1.0, 2.0]])
    grades = np.array([[0.0, 1.0], [0.0, 1.0], [NAN, 1.0]])
    assert np.array_equal(curves(scores, grades, (1, 2)), [[0.5, 1.0], [NAN, NAN], [NAN, NAN]], equal_nan=True)


def test_the_kl_bound_is_the_divergence_of_the_best_of_k_uniform_draws() -> None:
    from scipy.integrate import quad

    assert kl_bound(1) == 0
    assert kl_bound(2) == pytest.approx(log(2) - 1 / 2)
    for k in (2, 3, 16):
        # the best of k has density k u^(k−1) where one draw has 1
        divergence, _ = quad(lambda u, k=k: k * u ** (k - 1) * log(k * u ** (k - 1)), 1e-12, 1)
        assert kl_bound(k) == pytest.approx(divergence, abs=1e-6)


@pytest.mark.parametrize(("n", "ks"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))])
def test_powers_end_at_n(n: int, ks: tuple[int, ...]) -> None:
    assert powers(n) == ks


def test_headroom_is_a_ratio_of_means_not_a_mean_of_ratios() -> None:
    chance, best = floats(0.5, 0.2), floats(0.6, 1.0)
    got = floats(0.6, 0.6)  # all of a little, half of a lot
    found = headroom(got, chance, best, ints(0, 1))
    assert found["value"] == pytest.approx((0.1 + 0.4) / (0.1 + 0.8))
    assert found["low"] == pytest.approx(0.5)  # the second query drawn twice
    assert found["high"] == pytest.approx(1.0)


@few
@given(st.lists(st.tuples(grade, grade, grade, st.integers(0, 4)), min_size=1, max_size=12))
def test_chance_captures_nothing_and_the_oracle_everything(table: list[tuple[float, float, float, int]]) -> None:
    low, high = np.array([min(row[:2]) for row in table]), np.array([max(row[:2]) for row in table])
    clusters = np.array([row[3] for row in table])
    if (high == low).all():
        assert headroom(high, low, high, clusters) == {"value": None, "low": None, "high": None, "n": len(table)}
    else:
        assert headroom(low, low, high, clusters)["value"] == 0
        assert headroom(high, low, high, clusters)["value"] == pytest.approx(1)


def test_the_headroom_interval_is_that_of_whole_clusters_redrawn() -> None:
    rng = np.random.default_rng(5)
    clusters: Ints = np.repeat(np.arange(12), 2)
    chance = np.full(24, 0.3)
    best = chance + rng.uniform(0, 0.5, 24)
    got = chance + (best - chance) * rng.uniform(-0.5, 1, 24)
    found = headroom(got, chance, best, clusters, seed=1)
    ratios = []
    for _ in range(4000):  # the slow twin
        rows = np.concatenate([np.flatnonzero(clusters == c) for c in rng.integers(0, 12, 12)])
        ratios.append((got - chance)[rows].sum() / (best - chance)[rows].sum())
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(ratios, [0.025, 0.975])), abs=0.02)


def test_a_query_without_headroom_does_not_widen_the_interval() -> None:
    args = floats(0.4, 0.5, 0.3), floats(0.3, 0.4, 0.2), floats(0.5, 0.7, 0.6)
    more = (np.append(a, 0.9) for a in args)
    with_nothing = headroom(*more, ints(0, 1, 2, 3), seed=3)
    assert {**with_nothing, "n": 3} == headroom(*args, ints(0, 1, 2), seed=3)


def test_a_curve_that_rises_does_not_overoptimization() -> None:
    rising = np.tile(floats(0.2, 0.3, 0.4), (8, 1))
    found = overoptimization(rising, (1, 2, 4), np.arange(8))
    assert found is not None
    assert (found["peak"], found["drop"], found["p"], found["down"]) == (4, 0.0, None, False)


def test_a_fall_that_every_user_shares_is_called_one() -> None:
    falls = np.array([[0.2, 0.5, 0.5 - d] for d in (0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.1, 0.3)])
    found = overoptimization(falls, (1, 4, 16), np.arange(8))
    assert found is not None
    assert (found["peak"], found["down"]) == (4, True)
    assert found["drop"] == pytest.approx(0.175)
    assert found["p"] == pytest.approx(2 / 2**8 * 2)  # all of 8 signs alike, twice for two tails, twice for two ks
    assert found["low"] < 0.175 < found["high"]


def test_a_fall_within_chance_is_told_but_not_called_one() -> None:
    falls = np.array([[0.2, 0.5, 0.5 - d] for d in (0.3, -0.2, 0.1, -0.1)])
    found = overoptimization(falls, (1, 4, 16), np.arange(4))
    assert found is not None
    assert (found["peak"], found["down"]) == (4, False)
    assert found["drop"] == pytest.approx(0.025)
    signs = [abs(np.dot(s, [0.3, -0.2, 0.1, -0.1])) >= 0.1 - 1e-12 for s in product((1, -1), repeat=4)]
    assert found["p"] == min(1.0, 2 * np.mean(signs))


def test_the_sooner_peak_is_named_and_failed_queries_do_not_count() -> None:
    flat = np.array([[0.5, 0.5, 0.5], [NAN, NAN, NAN]])
    found = overoptimization(flat, (1, 2, 4), ints(0, 1))
    assert found is not None
    assert (found["peak"], found["drop"], found["down"]) == (1, 0.0, False)
    assert overoptimization(np.full((2, 3), NAN), (1, 2, 4), ints(0, 1)) is None
    assert overoptimization(np.full((2, 1), 0.5), (1,), ints(0, 1)) is None


def test_noise_is_seldom_called_a_fall() -> None:
    rng = np.random.default_rng(11)
    called = [overoptimization(rng.uniform(0, 1, (10, 5)), (1, 2, 4, 8, 16), np.arange(10)) for _ in range(150)]
    assert sum(bool(c and c["down"]) for c in called) <= 150 * 0.05


def test_a_round_robin_by_hand() -> None:
    # a beats b both times, a and c split by position, b and c tie both times
    won = {(0, 1): 1.0, (1, 0): 0.0, (0, 2): 1.0, (2, 0): 1.0, (1, 2): 0.5, (2, 1): 0.5}
    assert win_rates(3, [won[meeting] for meeting in meetings(3)]) == [3 / 4, 1 / 4, 2 / 4]


@usual
@given(st.integers(1, 6), st.data())
def test_win_rates_average_to_a_half(n: int, data: st.DataObject) -> None:
    credits = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n * (n - 1), max_size=n * (n - 1)))
    assert np.mean(win_rates(n, credits)) == pytest.approx(0.5)


def test_a_judge_of_position_alone_ranks_nobody() -> None:
    assert win_rates(5, [1.0] * 20) == [0.5] * 5
