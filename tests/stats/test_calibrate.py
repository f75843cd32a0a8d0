"""Do margins mean anything? Temperatures, Brier scores and the calibration curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from prb.stats.calibrate import BINS, FOLDS, calibration, fit_temperature
from prb.stats.estimate import Floats, Ints
from tests.stats.strategies import NAN, columns, few, floats, orders, usual

margins = st.sampled_from((-3.0, -1.2, -0.4, 0.0, 0.1, 0.5, 1.0, 2.0, 4.0))
sizes = st.sampled_from((0.0, 0.1, 0.4, 0.5, 1.0, 1.2, 2.0, 3.0, 4.0))
verdicts = st.sampled_from((0.0, 0.5, 1.0))


def log_loss(temperature: float, margin: Floats, credit: Floats) -> float:
    total = 0.0
    for m, c in zip(margin.tolist(), credit.tolist(), strict=True):
        total += c * math.log1p(math.exp(-m / temperature))
        total += (1 - c) * (m / temperature + math.log1p(math.exp(-m / temperature)))
    return total / len(margin)


def temperature_by_grid(margin: Floats, credit: Floats) -> float:
    """Try a thousand temperatures on a log scale around the mean margin, then a thousand around the best."""
    known = [m for m in margin.tolist() if m > 0]
    scale = sum(known) / len(known) if known else 1.0
    low, high = -6.0, 6.0
    for _ in range(4):
        tried = np.linspace(low, high, 81)
        best = min(tried, key=lambda t: log_loss(scale * math.exp(t), margin, credit))
        width = (high - low) / 40
        low, high = max(-6.0, best - width), min(6.0, best + width)
    return scale * math.exp(best)


def calibration_by_loops(margin: Floats, credit: Floats, clusters: Ints) -> tuple[list[float], list[float]]:
    """Confidence of each answered row from a temperature fitted without its fold, and the credits beside it."""
    rows = [i for i in range(len(margin)) if not (np.isnan(margin[i]) or np.isnan(credit[i]))]
    present = sorted({int(clusters[i]) for i in rows})
    confidences = []
    for i in rows:
        fold = present.index(int(clusters[i])) % FOLDS
        others = [j for j in rows if present.index(int(clusters[j])) % FOLDS != fold]
        t = temperature_by_grid(np.abs(margin[others]), credit[others])
        confidences.append(1 / (1 + math.exp(-abs(margin[i]) / t)))
    return confidences, [float(credit[i]) for i in rows]


def ece_by_loops(confidences: list[float], credits_: list[float]) -> float:
    gap = 0.0
    for k in range(BINS):
        low, high = 0.5 + k / (2 * BINS), 0.5 + (k + 1) / (2 * BINS)
        inside = [i for i, c in enumerate(confidences) if low <= c < high or (k == BINS - 1 and c >= high)]
        if inside:
            gap += abs(sum(confidences[i] for i in inside) - sum(credits_[i] for i in inside))
    return gap / len(confidences)


def crowd(seed: int, *, people: int = 60, rows: int = 4, temperature: float = 2.0) -> tuple[Floats, Floats, Ints]:
    """Margins whose σ(|m| / temperature) is by construction the chance of being right."""
    rng = np.random.default_rng(seed)
    size = rng.exponential(2.0, people * rows)
    right = rng.random(people * rows) < expit(size / temperature)
    return np.where(right, size, -size), right.astype(np.float64), np.repeat(np.arange(people), rows)


# the temperature


def test_the_temperature_of_one_margin_is_its_size_over_its_log_odds() -> None:
    # right 3 of 4 at margin 2: σ(2/T) = ¾, T = 2/ln 3
    assert fit_temperature(np.full(4, 2.0), floats(1, 1, 1, 0)) == pytest.approx(2 / math.log(3), rel=1e-4)


def test_the_temperature_of_two_margins_solves_its_first_order_condition() -> None:
    # margins 1 (2 of 3 right) and 3 (4 of 5): Σ m (credit − σ(m/T)) = 0
    margin, won = floats(1, 1, 1, 3, 3, 3, 3, 3), floats(1, 1, 0, 1, 1, 1, 1, 0)
    expected = 1 / brentq(lambda b: 3 * (2 / 3 - expit(b)) + 15 * (0.8 - expit(3 * b)), 0.01, 5)
    assert fit_temperature(margin, won) == pytest.approx(expected, rel=1e-4)


def test_the_temperature_agrees_with_a_regression_without_intercept() -> None:
    margin, won, _ = crowd(3)
    size = np.abs(margin)
    model = LogisticRegression(C=1e9, fit_intercept=False, tol=1e-10).fit(size.reshape(-1, 1), won.astype(int))
    assert fit_temperature(size, won) == pytest.approx(1 / model.coef_[0, 0], rel=1e-3)
    assert fit_temperature(size, won) == pytest.approx(2.0, rel=0.35)


def test_a_model_that_is_always_right_gets_the_coldest_temperature_allowed_and_one_always_wrong_the_hottest() -> None:
    # bounds e^∓6 around the mean margin 2
    assert fit_temperature(floats(1, 3), floats(1, 1)) == pytest.approx(2 * math.exp(-6), rel=0.01)
    assert fit_temperature(floats(1, 3), floats(0, 0)) == pytest.approx(2 * math.exp(6), rel=0.01)


def test_margins_that_are_all_zero_still_give_a_finite_temperature() -> None:
    assert math.exp(-6) <= fit_temperature(np.zeros(3), np.full(3, 0.5)) <= math.exp(6)


@usual
@given(columns(sizes, verdicts))
def test_no_temperature_on_a_grid_fits_better(table: tuple[Floats, Floats, Ints]) -> None:
    margin, won, _ = table
    found, slow = fit_temperature(margin, won), temperature_by_grid(margin, won)
    assert log_loss(found, margin, won) == pytest.approx(log_loss(slow, margin, won), abs=1e-5)


@usual
@given(columns(sizes, verdicts), st.sampled_from((1e-6, 0.1, 30.0, 1e6)), st.data())
def test_the_temperature_has_the_unit_of_the_margins(
    table: tuple[Floats, Floats, Ints], unit: float, data: st.DataObject
) -> None:
    margin, won, _ = table
    order = data.draw(orders(len(margin)))
    if margin.any():
        scaled = fit_temperature(unit * margin[order], won[order]) / unit
        assert log_loss(scaled, margin, won) == pytest.approx(
            log_loss(fit_temperature(margin, won), margin, won), abs=1e-7
        )


# the whole


def test_a_model_right_three_times_in_four_everywhere_by_hand() -> None:
    # five people, margin 2, each right 3 of 4: confidence ¾ for all, so no gap; Brier = ¾·(¼)² + ¼·(¾)²
    won = np.tile([1.0, 1.0, 1.0, 0.0], 5)
    found = calibration(np.where(won == 1, 2.0, -2.0), won, np.repeat(np.arange(5), 4))
    assert found["n"] == 20
    assert found["temperature"] == pytest.approx(2 / math.log(3), rel=1e-4)
    assert found["brier"] == pytest.approx(0.75 * 0.0625 + 0.25 * 0.5625, abs=1e-6)
    assert found["ece"] == pytest.approx(0.0, abs=1e-4)
    (point,) = found["curve"]
    assert point == {"confidence": pytest.approx(0.75, abs=1e-4), "accuracy": 0.75, "n": 20}


def test_nobody_calibrates_themselves() -> None:
    # the first person is always wrong, four others are right 3 of 4, all margins 1. The first is judged by the others
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


def test_a_model_that_is_always_right_is_sure_and_correct() -> None:
    found = calibration(np.ones(10), np.ones(10), np.arange(10))
    assert (found["brier"], found["ece"]) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert [point["n"] for point in found["curve"]] == [10]


def test_a_model_that_is_always_wrong_is_told_to_be_unsure() -> None:
    # the hottest temperature leaves confidence just above ½: Brier ¼, gap ½
    found = calibration(-np.ones(10), np.zeros(10), np.arange(10))
    assert (found["brier"], found["ece"]) == pytest.approx((0.25, 0.5), abs=2e-3)


def test_where_there_is_nothing_to_fit_there_is_no_calibration() -> None:
    few_people = FOLDS - 1
    assert calibration(floats(), floats(), np.arange(0)) is None
    assert calibration(np.full(8, NAN), np.full(8, NAN), np.arange(8)) is None
    assert calibration(np.ones(8), np.ones(8), np.arange(8) % few_people) is None
    assert calibration(np.zeros(8), np.full(8, 0.5), np.arange(8)) is None
    alone = np.append(np.ones(FOLDS - 1), [NAN] * 3)
    assert calibration(alone, alone, np.arange(len(alone))) is None


def test_the_scores_agree_with_scikit_learn_and_with_loops_on_a_crowd() -> None:
    margin, won, clusters = crowd(5, people=15, rows=3)
    confidences, credits_ = calibration_by_loops(margin, won, clusters)
    found = calibration(margin, won, clusters)
    assert found["brier"] == pytest.approx(brier_score_loss(np.array(credits_, dtype=int), confidences), abs=1e-4)
    assert found["ece"] == pytest.approx(ece_by_loops(confidences, credits_), abs=1e-3)


def test_margins_that_mean_what_they_say_are_found_well_calibrated() -> None:
    found = calibration(*crowd(9, people=2000, temperature=3.0))
    assert found["temperature"] == pytest.approx(3.0, rel=0.06)
    # ten bins of about 800 rows: the mean gap from noise alone is near √(¼/800)·0.8 = 0.014
    assert found["ece"] < 0.03
    squeezed = crowd(9, people=2000, temperature=3.0)
    assert calibration(squeezed[0] ** 5, *squeezed[1:])["ece"] > found["ece"]


@few
@given(columns(margins, verdicts, min_rows=6, max_rows=16, groups=9))
def test_calibration_agrees_with_the_long_way(table: tuple[Floats, Floats, Ints]) -> None:
    margin, won, clusters = table
    found = calibration(margin, won, clusters)
    if len(set(clusters.tolist())) < FOLDS or not margin.any():
        assert found is None
        return
    confidences, credits_ = calibration_by_loops(margin, won, clusters)
    slow = sum((c - w) ** 2 for c, w in zip(confidences, credits_, strict=True)) / len(credits_)
    assert found["brier"] == pytest.approx(slow, abs=5e-3)


@usual
@given(columns(margins, verdicts, min_rows=8, max_rows=30))
def test_the_curve_holds_every_row_and_the_error_follows_from_it(table: tuple[Floats, Floats, Ints]) -> None:
    margin, won, clusters = table
    found = calibration(margin, won, clusters)
    if found is None:
        assert len(set(clusters.tolist())) < FOLDS or not margin.any()
        return
    curve = found["curve"]
    assert sum(point["n"] for point in curve) == found["n"] == len(margin)
    assert sum(p["n"] * p["accuracy"] for p in curve) == pytest.approx(won.sum())
    assert all(0.5 <= p["confidence"] <= 1 and 0 <= p["accuracy"] <= 1 for p in curve)
    assert [p["confidence"] for p in curve] == sorted(p["confidence"] for p in curve)
    gap = sum(p["n"] * abs(p["confidence"] - p["accuracy"]) for p in curve) / len(margin)
    assert found["ece"] == pytest.approx(gap)
    assert 0 <= found["ece"] <= 1
    assert 0 <= found["brier"] <= 1
    assert found["temperature"] > 0


@usual
@given(columns(margins, verdicts, min_rows=8), columns(margins, min_rows=0, max_rows=5))
def test_failed_rows_change_nothing(table: tuple[Floats, Floats, Ints], failed: tuple[Floats, Ints]) -> None:
    margin, won, clusters = table
    extra, codes = failed
    lost = np.full(len(extra), NAN)
    found = calibration(margin, won, clusters)
    assert calibration(np.append(margin, extra), np.append(won, lost), np.append(clusters, codes)) == found
    assert calibration(np.append(margin, lost), np.append(won, lost), np.append(clusters, codes)) == found


@few
@given(columns(margins, verdicts, min_rows=8), st.data())
def test_units_signs_order_and_codes_in_the_same_order_do_not_matter(
    table: tuple[Floats, Floats, Ints], data: st.DataObject
) -> None:
    margin, won, clusters = table
    found, order = calibration(margin, won, clusters), data.draw(orders(len(margin)))
    for again in (
        calibration(8 * margin, won, clusters),
        calibration(-margin, won, clusters),
        calibration(margin[order], won[order], clusters[order]),
        calibration(margin, won, 10 * clusters + 5),
    ):
        if found is None:
            assert again is None
        else:
            assert again["brier"] == pytest.approx(found["brier"], abs=5e-3)
            assert again["n"] == found["n"]
