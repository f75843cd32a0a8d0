"""How large margins are, and whether larger ones are more often right."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.stats.bias import MARGIN_BINS, by_margin, histogram, margin_scale
from tests.stats.strategies import NAN, few, floats, ints


def test_the_scale_is_the_median_size_of_margins_that_say_something() -> None:
    assert margin_scale(floats(-4, 2, 0, 0, NAN, 6)) == 4
    assert margin_scale(floats(0, NAN)) is None
    assert histogram(floats(0, NAN)) is None


def test_a_histogram_by_hand() -> None:
    # the scale is 2, so margins are −0.5, 1, 1 and 50 typical ones; bars are a quarter wide, from −3
    result = histogram(floats(-1, 2, 2, 100, 0))
    assert result is not None
    assert (result["scale"], result["zeros"]) == (2, 1)
    assert {n: count for n, count in enumerate(result["counts"]) if count} == {10: 1, 16: 2, MARGIN_BINS - 1: 1}


def test_accuracy_by_decile_by_hand() -> None:
    # twenty margins of sizes 1 … 20: each decile holds two; the model is right from 11 on
    margin = floats(*(n if n > 10 else -n for n in range(1, 21)))
    bins = by_margin(margin, np.where(margin > 0, 1.0, 0.0), np.arange(20))
    assert [(b["from"], b["to"], b["n"], b["value"]) for b in bins] == [
        (2 * k + 1, 2 * k + 2, 2, float(k >= 5)) for k in range(10)
    ]


def test_equal_margins_stay_together_and_failures_are_left_out() -> None:
    bins = by_margin(floats(0.5, -0.5, 0.5, 0, NAN), floats(1, 0, 1, 0.5, NAN), ints(0, 1, 2, 3, 4))
    assert [(b["from"], b["n"]) for b in bins] == [(0, 1), (0.5, 3)]
    assert bins[1]["value"] == pytest.approx(2 / 3)
    assert by_margin(floats(NAN), floats(NAN), ints(0)) == []


@few
@given(st.lists(st.sampled_from((-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)), min_size=1, max_size=40))
def test_every_margin_is_in_one_bin_and_bins_do_not_overlap(values: list[float]) -> None:
    margin = floats(*values)
    credit = np.where(margin == 0, 0.5, np.where(margin > 0, 1.0, 0.0))
    bins = by_margin(margin, credit, np.arange(len(values)))
    assert sum(b["n"] for b in bins) == len(values)
    assert all(a["to"] < b["from"] for a, b in pairwise(bins))
    counted = histogram(margin)
    if counted:
        assert sum(counted["counts"]) + counted["zeros"] == len(values)
