"""Does a model prefer the longer answer, or the one it read first?"""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import expit

from prb.stats.bias import length_bias, logistic, position_bias
from prb.stats.estimate import Floats, Ints, share
from tests.stats.strategies import NAN, columns, credit, credit_or_failure, few, floats, ints, orders, usual

lengths = st.sampled_from((50.0, 80.0, 100.0, 130.0, 200.0, 400.0))
ratios = st.sampled_from((-1.5, -0.7, -0.2, 0.0, 0.3, 0.7, 1.1))
choices = st.sampled_from(("first", "second", "tie", None))
RIDGE = 100.0
"""Weight of the data against ½·slope², as the source sets it."""


def newton_by_loops(ratio: list[float], won: list[float]) -> tuple[float, float]:
    """Newton's method on the penalised log loss, two parameters, row by row."""
    scale = math.sqrt(sum((r - sum(ratio) / len(ratio)) ** 2 for r in ratio) / len(ratio))
    a = b = 0.0

    def loss(a: float, b: float) -> float:
        rows = zip(ratio, won, strict=True)
        return b * b / (2 * RIDGE) + sum(
            float(np.logaddexp(0, a + b * r / scale)) - y * (a + b * r / scale) for r, y in rows
        )

    for _ in range(200):
        ga, gb, haa, hab, hbb = 0.0, b / RIDGE, 0.0, 0.0, 1 / RIDGE
        for r, y in zip(ratio, won, strict=True):
            x = r / scale
            p = float(expit(a + b * x))
            ga, gb = ga + p - y, gb + (p - y) * x
            haa, hab, hbb = haa + p * (1 - p), hab + p * (1 - p) * x, hbb + p * (1 - p) * x * x
        det = haa * hbb - hab * hab
        step_a, step_b = (hbb * ga - hab * gb) / det, (haa * gb - hab * ga) / det
        if max(abs(step_a), abs(step_b)) < 1e-9:
            break
        size = 1.0
        while loss(a - size * step_a, b - size * step_b) > loss(a, b) and size > 1e-9:
            size /= 2
        a, b = a - size * step_a, b - size * step_b
    return float(expit(a)), b


def test_a_regression_on_two_lengths_by_hand() -> None:
    # ratios ±1 have standard deviation 1; longer wins 3 of 4, shorter 1 of 4. By symmetry the intercept is 0, and
    # the slope solves 8·(¾ − σ(w)) = w / ridge, just below ln 3
    ratio, won = floats(1, 1, 1, 1, -1, -1, -1, -1), floats(1, 1, 1, 0, 0, 0, 0, 1)
    equal, slope = logistic(ratio, won)
    assert equal == pytest.approx(0.5, abs=1e-6)
    assert slope == pytest.approx(brentq(lambda w: 8 * (0.75 - expit(w)) - w / RIDGE, 0, 5), abs=1e-4)
    assert slope == pytest.approx(math.log(3), abs=0.01)


def test_the_intercept_is_read_at_equal_length_not_at_the_mean_length() -> None:
    # all chosen answers are longer: log ratio 1 wins ½, 3 wins 0.9. The line of log odds 0 … ln 9 falls by ln 9 over
    # two units, so at 0 it is −ln 9/2 = −ln 3: a share of ¼
    ratio = np.repeat(floats(1, 3), 1000)
    won = np.concatenate([np.repeat([1.0, 0.0], 500), np.repeat([1.0, 0.0], [900, 100])])
    equal, slope = logistic(ratio, won)
    assert equal == pytest.approx(0.25, abs=0.002)
    assert slope == pytest.approx(math.log(3), abs=0.005)  # ln 3 a unit, and the standard deviation is one unit


def test_a_regression_cannot_be_fitted_without_contrast() -> None:
    nothing = (None, None)
    assert logistic(floats(1, 1, 1), floats(1, 0, 1)) == nothing
    assert logistic(floats(1, 2, 3), floats(1, 1, 1)) == nothing
    assert logistic(floats(1, 2, 3), floats(0.5, 0.5, 0.5)) == nothing


def test_one_length_ratio_repeated_is_no_contrast_even_when_its_deviation_rounds_above_zero() -> None:
    ratio = np.full(27, math.log(2))
    assert ratio.std() > 0
    assert logistic(ratio, np.arange(27) % 2.0) == (None, None)


def test_separable_data_stay_finite() -> None:
    equal, slope = logistic(floats(-2, -1, 1, 2), floats(0, 0, 1, 1))
    assert equal == pytest.approx(0.5, abs=1e-4)
    assert 1 < slope < 100


@few
@given(columns(ratios, credit, min_rows=3))
def test_the_regression_agrees_with_newtons_method_and_with_scipy(table: tuple[Floats, Floats, Ints]) -> None:
    ratio, won, _ = table
    assume(len(set(ratio)) > 1 and len(set(won)) > 1)
    found = logistic(ratio, won)
    assert found == pytest.approx(newton_by_loops(ratio.tolist(), won.tolist()), abs=2e-3)

    def loss(w: Floats) -> float:
        z = w[0] + w[1] * ratio / ratio.std()
        return float((np.logaddexp(0, z) - won * z).sum() + w[1] ** 2 / (2 * RIDGE))

    best = minimize(loss, np.zeros(2), method="BFGS", options={"gtol": 1e-8})
    at = floats(float(np.log(found[0] / (1 - found[0]))), found[1])
    assert loss(at) <= best.fun + 1e-5


@few
@given(columns(ratios, credit, min_rows=3), st.sampled_from((0.1, 3.0)))
def test_the_regression_mirrors_with_the_answers_and_has_no_unit(
    table: tuple[Floats, Floats, Ints], unit: float
) -> None:
    ratio, won, _ = table
    assume(len(set(ratio)) > 1 and len(set(won)) > 1)
    equal, slope = logistic(ratio, won)
    assert 0 <= equal <= 1
    assert logistic(-ratio, 1 - won) == pytest.approx((1 - equal, slope), abs=2e-3)
    assert logistic(-ratio, won) == pytest.approx((equal, -slope), abs=2e-3)
    assert logistic(unit * ratio, won) == pytest.approx((equal, slope), abs=2e-3)


@few
@given(columns(ratios, credit, min_rows=3))
def test_two_ties_weigh_as_much_as_a_win_and_a_loss(table: tuple[Floats, Floats, Ints]) -> None:
    ratio, won, _ = table
    assume(len(set(ratio)) > 1 and len(set(won)) > 1)
    tied = logistic(np.append(ratio, [ratio[0]] * 2), np.append(won, [0.5, 0.5]))
    assert tied == pytest.approx(logistic(np.append(ratio, [ratio[0]] * 2), np.append(won, [1, 0])), abs=2e-3)


def test_length_bias_by_hand() -> None:
    won = floats(1, 1, 0, 0, 1, NAN)
    chosen, rejected = floats(200, 300, 100, 100, 100, 900), floats(100, 100, 200, 300, 100, 1)
    found = length_bias(won, ints(0, 1, 2, 3, 4, 5), chosen, rejected)
    # longer 2 of 2, shorter 0 of 2, one of equal length in neither, one failed
    assert found["chosen_longer"] == share(floats(1, 1), ints(0, 1)).as_dict()
    assert found["chosen_shorter"] == share(floats(0, 0), ints(2, 3)).as_dict()
    assert found["slope"] > 1
    assert found["accuracy_at_equal_length"] > 0.5


def test_a_model_that_ignores_length_has_no_slope() -> None:
    # each of four length pairs once won, once lost: the fit is σ(0) everywhere
    chosen, rejected = np.repeat(floats(100, 200, 300, 50), 2), np.repeat(floats(200, 100, 100, 300), 2)
    found = length_bias(np.tile([1.0, 0.0], 4), np.arange(8), chosen, rejected)
    assert (found["accuracy_at_equal_length"], found["slope"]) == pytest.approx((0.5, 0.0), abs=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_answered_shows_no_length_bias(rows: int) -> None:
    assert length_bias(np.full(rows, NAN), np.arange(rows), np.full(rows, 9.0), np.full(rows, 3.0)) is None


def test_answers_of_equal_length_show_only_empty_halves() -> None:
    found = length_bias(floats(1, 0), ints(0, 1), floats(7, 9), floats(7, 9))
    assert (found["chosen_longer"]["n"], found["chosen_shorter"]["n"]) == (0, 0)
    assert (found["accuracy_at_equal_length"], found["slope"]) == (None, None)


@few
@given(columns(credit_or_failure, lengths, lengths), st.data())
def test_length_bias_agrees_with_loops_and_ignores_the_order_of_rows(
    table: tuple[Floats, Floats, Floats, Ints], data: st.DataObject
) -> None:
    won, chosen, rejected, clusters = table
    found = length_bias(won, clusters, chosen, rejected)
    kept = [i for i in range(len(won)) if not np.isnan(won[i])]
    if not kept:
        assert found is None
        return
    longer, shorter = ([i for i in kept if sign * (chosen[i] - rejected[i]) > 0] for sign in (1, -1))
    assert found["chosen_longer"] == share(won[longer], clusters[longer]).as_dict()
    assert found["chosen_shorter"] == share(won[shorter], clusters[shorter]).as_dict()
    ratio = [math.log(chosen[i] / rejected[i]) for i in kept]
    if len(set(ratio)) > 1 and len({won[i] for i in kept}) > 1:
        slow = newton_by_loops(ratio, [won[i] for i in kept])
        assert (found["accuracy_at_equal_length"], found["slope"]) == pytest.approx(slow, abs=2e-3)
    else:
        assert (found["accuracy_at_equal_length"], found["slope"]) == (None, None)
    order = data.draw(orders(len(won)))
    again = length_bias(won[order], clusters[order], chosen[order], rejected[order])
    assert again["chosen_longer"]["value"] == found["chosen_longer"]["value"]
    assert again["slope"] == (None if found["slope"] is None else pytest.approx(found["slope"], abs=2e-3))


@few
@given(columns(credit, lengths, lengths), st.sampled_from((0.01, 4.0)))
def test_length_bias_mirrors_with_the_answers_and_has_no_unit(
    table: tuple[Floats, Floats, Floats, Ints], unit: float
) -> None:
    won, chosen, rejected, clusters = table
    found, turned = length_bias(won, clusters, chosen, rejected), length_bias(1 - won, clusters, rejected, chosen)
    # a win of the longer answer is a win of the longer answer, whichever is called chosen
    longer, shorter = found["chosen_longer"]["value"], turned["chosen_shorter"]["value"]
    assert shorter == (None if longer is None else pytest.approx(1 - longer))
    assert turned["slope"] == (None if found["slope"] is None else pytest.approx(found["slope"], abs=2e-3))
    scaled = length_bias(won, clusters, unit * chosen, unit * rejected)
    assert scaled["chosen_longer"] == found["chosen_longer"]
    assert scaled["slope"] == (None if found["slope"] is None else pytest.approx(found["slope"], abs=2e-3))


def test_position_bias_by_hand() -> None:
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


@pytest.mark.parametrize("verdicts", [[], [("first",)], [(None, "first"), (None, None)]])
def test_without_a_pair_asked_in_both_orders_there_is_no_position_bias(verdicts: list[tuple[str | None, ...]]) -> None:
    assert position_bias(verdicts) is None


def test_only_ties_are_consistent_and_have_no_first_share() -> None:
    assert position_bias([("tie", "tie")] * 3) == {"n": 3, "consistency": 1.0, "first_share": None}


@usual
@given(st.lists(st.tuples(choices, choices), max_size=20), st.randoms(use_true_random=False))
def test_position_bias_agrees_with_a_loop_in_any_order(
    verdicts: list[tuple[str | None, str | None]], random: Random
) -> None:
    n = same = first = decided = 0
    for a, b in verdicts:
        if a is None or b is None:
            continue
        n += 1
        winner_of_a = {"first": "chosen", "second": "rejected", "tie": "nobody"}[a]
        winner_of_b = {"first": "rejected", "second": "chosen", "tie": "nobody"}[b]
        same += winner_of_a == winner_of_b
        for choice in (a, b):
            first += choice == "first"
            decided += choice != "tie"
    shuffled = list(verdicts)
    random.shuffle(shuffled)
    expected = {"n": n, "consistency": same / n if n else 0, "first_share": first / decided if decided else None}
    assert position_bias(verdicts) == position_bias(shuffled) == (expected if n else None)


@usual
@given(st.lists(st.tuples(choices, choices), max_size=20))
def test_position_bias_mirrors_when_first_and_second_are_renamed(verdicts: list[tuple[str | None, str | None]]) -> None:
    turn = {"first": "second", "second": "first", "tie": "tie", None: None}
    found, turned = position_bias(verdicts), position_bias([(turn[a], turn[b]) for a, b in verdicts])
    if found is None:
        assert turned is None
    else:
        assert (turned["n"], turned["consistency"]) == (found["n"], found["consistency"])
        share_first = found["first_share"]
        assert turned["first_share"] == (None if share_first is None else pytest.approx(1 - share_first))
        assert 0 <= found["consistency"] <= 1


@usual
@given(st.lists(st.sampled_from(("first", "second")), min_size=1, max_size=20))
def test_a_consistent_judge_says_first_exactly_half_of_the_time(answers: list[str]) -> None:
    turn = {"first": "second", "second": "first"}
    found = position_bias([(a, turn[a]) for a in answers])
    assert (found["consistency"], found["first_share"]) == (1.0, 0.5)
    stuck = position_bias([(a, a) for a in answers])
    assert stuck["consistency"] == 0.0
