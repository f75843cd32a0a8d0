"""Statistics of mirror twins, and of rows that the history must not decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.estimate import Floats, Ints, share
from prb.stats.paired import (
    Twins,
    average_user_share,
    mirror_accuracy,
    misapplied,
    person_effect,
    pull,
)
from tests.stats.strategies import floats, ints, usual
from tests.stats.test_estimate import share_by_steps

Rows = tuple[Ints, Ints, np.ndarray, Floats]

margins = st.one_of(st.sampled_from((0.0, 1.0, -1.0, 0.1, 0.2, -0.3)), st.floats(-50, 50).map(lambda m: round(m, 3)))


@st.composite
def rows(draw: st.DrawFn, *, max_twins: int = 10, blind: bool = False, all_answered: bool = False) -> Rows:
    """Twins and single rows in any order: position of the twin, cluster, answered, margin."""
    halves = st.booleans() if not all_answered else st.just(True)
    twin = st.tuples(st.integers(0, 5), margins, margins, halves, halves)
    couples = draw(st.lists(twin, max_size=max_twins))
    singles = draw(st.integers(0, 3))
    n = 2 * len(couples) + singles
    place = draw(st.permutations(range(n)))
    twins, clusters = np.full(n, -1), np.arange(n) + 100
    answered, margin = np.ones(n, dtype=bool), np.zeros(n)
    for k, (cluster, m_a, m_b, has_a, has_b) in enumerate(couples):
        a, b = place[2 * k], place[2 * k + 1]
        twins[a], twins[b], clusters[[a, b]] = b, a, cluster
        answered[a], answered[b] = has_a, has_b
        margin[a], margin[b] = m_a, -m_a if blind else m_b
    return twins, clusters, answered, margin


def credits_of(margin: Floats) -> Floats:
    return (np.sign(margin) + 1) / 2


def found_by_loops(twins: Ints, answered: np.ndarray) -> set[frozenset[int]]:
    couples = set()
    for i in range(len(twins)):
        for j in range(len(twins)):
            if twins[i] == j and twins[j] == i and i != j and answered[i] and answered[j]:
                couples.add(frozenset((i, j)))
    return couples


TWINS = Twins(ints(0, 2, 4, 6), ints(1, 3, 5, 7), ints(0, 0, 1, 2))
"""Four couples in three clusters: rows 0-1 and 2-3 together, 4-5, 6-7."""


def test_twins_are_found_once_each_and_only_where_both_answered() -> None:
    # rows 0-3 and 1-4 are twins, 2 is single; row 4 failed
    found = Twins.find(ints(3, 4, -1, 0, 1), ints(7, 8, 9, 7, 8), np.array([True, True, True, True, False]))
    assert (found.first.tolist(), found.second.tolist(), found.clusters.tolist()) == ([0], [3], [7])
    assert len(found) == 1


@usual
@given(rows())
def test_twins_agree_with_a_double_loop(table: Rows) -> None:
    twins, clusters, answered, _ = table
    found = Twins.find(twins, clusters, answered)
    couples = {frozenset(c) for c in zip(found.first.tolist(), found.second.tolist(), strict=True)}
    assert couples == found_by_loops(twins, answered)
    assert len(found) == len(couples)
    assert found.clusters.tolist() == clusters[found.second].tolist()


def test_mirror_accuracy_by_hand() -> None:
    credit = floats(1, 1, 1, 0, 1, 0.5, 1, 0.75)
    # only the first couple is strictly right twice: 1 of 4, over three clusters
    found = mirror_accuracy(credit, TWINS)
    assert (found.value, found.n) == (0.25, 4)
    assert (found.low, found.high) == pytest.approx(share_by_steps([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 2]), abs=1e-6)


def test_person_effect_by_hand() -> None:
    margin = floats(3, -1, 1, -2, 0.5, -0.5, 4, 4)
    # sums 2 > 0, −1 < 0, 0, 8 > 0: (1 + 0 + ½ + 1)/4; cluster sums of ±½: ½ − ½ = 0, 0, ½: one moved cluster, p = 1
    found = person_effect(margin, TWINS)
    assert (found.value, found.n, found.ties, found.p) == (0.625, 4, 1, 1.0)
    # now the couples of one cluster agree: cluster sums 1, ½, ½; |Σ| = 2 by two of eight patterns
    found = person_effect(floats(3, -1, 2, -1, 0.5, 0.5, 4, 4), TWINS)
    assert (found.value, found.p, found.test) == (1.0, 2 / 8, "sign-flip")


def test_no_twins_have_no_person_effect() -> None:
    assert person_effect(floats(1, 0), Twins(ints(), ints(), ints())) is None


@usual
@given(rows(max_twins=8))
def test_person_effect_agrees_with_a_loop_and_a_permutation_test(table: Rows) -> None:
    twins, clusters, answered, margin = table
    found = person_effect(margin, Twins.find(*table[:3]))
    won, sums = [], {}
    for a, b in (tuple(c) for c in found_by_loops(twins, answered)):
        total = round(1000 * margin[a]) + round(1000 * margin[b])  # margins have three decimals
        won.append(1.0 if total > 0 else 0.5 if total == 0 else 0.0)
        sums[clusters[a]] = sums.get(clusters[a], 0.0) + won[-1] - 0.5
    assert (found.n if found else 0) == len(won)
    if found:
        assert found.value == pytest.approx(sum(won) / len(won))
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert 0 < found.p <= 1
    if len(sums) >= 2:
        other = stats.permutation_test(
            (np.array(list(sums.values())), np.zeros(len(sums))),
            lambda x, y, axis: (x - y).sum(axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=np.inf,
        )
        assert found.p == pytest.approx(other.pvalue)


@usual
@given(rows(), st.floats(-100, 100).map(lambda m: round(m, 3)))
def test_a_taste_everyone_shares_leaves_the_person_effect_alone(table: Rows, taste: float) -> None:
    margin, twins = table[3].copy(), Twins.find(*table[:3])
    clear = np.abs(margin[twins.first] + margin[twins.second]) > 1e-6
    twins = Twins(twins.first[clear], twins.second[clear], twins.clusters[clear])
    before = person_effect(margin, twins)
    margin[twins.first] += taste
    margin[twins.second] -= taste
    assert person_effect(margin, twins) == before


def test_average_user_share_by_hand() -> None:
    # one couple with margins 3 and 1: p = 2, g = 1: 1/(1 + 4)
    one = Twins(ints(0), ints(1), ints(0))
    assert average_user_share(floats(3, 1), one) == 0.2
    # margins (3, 1) and (1, −1): Σg² = 1 + 1, Σp² = 4 + 0
    two = Twins(ints(0, 2), ints(1, 3), ints(0, 1))
    assert average_user_share(floats(3, 1, 1, -1), two) == pytest.approx(2 / 6)


@usual
@given(rows(), st.floats(0.01, 100))
def test_average_user_share_agrees_with_a_loop_and_has_no_unit(table: Rows, unit: float) -> None:
    twins, _, answered, margin = table
    general = personal = 0.0
    for a, b in (tuple(c) for c in found_by_loops(twins, answered)):
        general += ((margin[a] - margin[b]) / 2) ** 2
        personal += ((margin[a] + margin[b]) / 2) ** 2
    found = average_user_share(margin, Twins.find(*table[:3]))
    if general + personal == 0:
        assert found is None
    else:
        assert found == pytest.approx(general / (general + personal), abs=1e-12)
        assert 0 <= found <= 1
        assert average_user_share(-unit * margin, Twins.find(*table[:3])) == pytest.approx(found, abs=1e-9)


@usual
@given(rows(blind=True))
def test_a_user_blind_model_is_exactly_at_one_half_zero_and_one(table: Rows) -> None:
    twins, clusters, answered, margin = table
    pairs = Twins.find(twins, clusters, answered)
    if not len(pairs):
        return
    effect = person_effect(margin, pairs)
    assert (effect.value, effect.p, effect.test) == (0.5, 1.0, "none")
    assert mirror_accuracy(credits_of(margin), pairs).value == 0
    assert average_user_share(margin, pairs) == (1.0 if margin[pairs.first].any() else None)
    halves = np.concatenate([pairs.first, pairs.second])
    assert share(credits_of(margin)[halves], clusters[halves]).value == 0.5
    assert (effect.low, effect.high) == (0.5, 0.5)


def test_scores_that_cancel_only_up_to_rounding_still_count_as_user_blind() -> None:
    # (0.1 + 0.2) − 0.3 leaves 6e−17
    margin = floats(0.1 + 0.2, -0.3, 0.7, -0.7)
    twins = Twins(ints(0, 2), ints(1, 3), ints(0, 1))
    assert margin[0] + margin[1] != 0
    effect = person_effect(margin, twins)
    assert (effect.value, effect.low, effect.high, effect.p) == (0.5, 0.5, 0.5, 1.0)
    assert average_user_share(margin, twins) == 1.0


def test_a_small_but_real_effect_of_the_user_is_not_rounded_away() -> None:
    twins = Twins(ints(0, 2), ints(1, 3), ints(0, 1))
    effect = person_effect(floats(100, -100 + 1e-6, 5, -5 + 1e-6), twins)
    assert effect.value == 1.0


# --- rows that the history must not decide ---
def test_misapplied_rows_by_hand() -> None:
    own = floats(0, 0, 0, 0.25, 0.5, 1, 0, np.nan)
    without = floats(1, 0.5, 0, 0.5, 1, 0, np.nan, 1)
    # right → wrong, tied → wrong, wrong → wrong, tied → mostly wrong, right → tied, wrong → right; two unanswered
    lost = floats(1, 0.5, 0, 0.25, 0.5, 0)
    found = misapplied(own, without, np.arange(8))
    assert (found.value, found.n) == (2.25 / 6, 6)
    assert share_by_steps(lost, np.arange(6)) == pytest.approx((found.low, found.high))


def test_a_model_that_decides_only_by_a_coin_with_a_history_loses_a_quarter() -> None:
    found = misapplied(floats(*[0, 1] * 20), np.full(40, 0.5), np.arange(40))
    assert found.value == 0.25


def test_what_cannot_be_misapplied_has_no_uncertainty() -> None:
    found = misapplied(floats(0, 1, 0.5), floats(0, 1, 0.5), ints(1, 2, 3), exact=True)
    assert (found.value, found.low, found.high, found.n) == (0, 0, 0, 3)
    assert misapplied(floats(), floats(), ints(), exact=True).value is None


def test_pull_by_hand() -> None:
    own, others = floats(-1, 2, 0.1 + 0.2, 4, np.nan), floats(1, 1, 0.3, 4.5, 0)
    # falls, rises, the same but for rounding, falls: (1 + 0 + ½ + 1)/4; cluster sums ½ − ½ = 0 and ½: p = 1
    found = pull(own, others, ints(1, 1, 2, 2, 3))
    assert found is not None
    assert (found.value, found.n, found.p) == (0.625, 4, 1.0)
    assert pull(floats(np.nan), floats(1), ints(1)) is None


@usual
@given(rows(all_answered=True), st.integers(0, 3))
def test_the_pull_of_a_model_that_ignores_the_history_is_one_half(table: Rows, seed: int) -> None:
    _, clusters, _, margin = table
    found = pull(margin, margin, clusters, seed=seed)
    assert found is None or (found.value, found.low, found.high, found.test) == (0.5, 0.5, 0.5, "none")
