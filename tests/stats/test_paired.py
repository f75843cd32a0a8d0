"""Two columns of credits on the same rows: differences, permutation tests, resampling, Holm; mirror twins."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.bias import credits_of
from prb.stats.estimate import Floats, Ints, Totals, share, totals
from prb.stats.paired import (
    DRAWS,
    Twins,
    average_user_share,
    bootstrap_interval,
    corrected,
    difference,
    flip_rate,
    holm,
    inverted_interval,
    mcnemar_midp,
    mirror_accuracy,
    misapplied,
    paired_p,
    person_effect,
    pull,
    sign_flip,
)
from tests.stats.strategies import NAN, columns, credit, few, floats, ints, orders, relabeled, usual
from tests.stats.test_estimate import share_by_steps

quarters = st.sampled_from((-2.0, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 1.5))
probabilities = st.floats(1e-6, 1.0)


def flips_by_convolution(sums: list[float]) -> float:
    """The whole distribution of the flipped total, one cluster at a time."""
    chance = {0.0: 1.0}
    for s in sums:
        grown: dict[float, float] = {}
        for total, p in chance.items():
            for moved in (total + s, total - s):
                grown[moved] = grown.get(moved, 0.0) + p / 2
        chance = grown
    return sum(p for total, p in chance.items() if abs(total) >= abs(sum(sums)))


def midp_by_counting(wins: int, losses: int) -> float:
    """Twice the lower tail, with half of the observed outcome's own probability."""
    n, k = wins + losses, min(wins, losses)
    below = sum(math.comb(n, i) for i in range(k))
    return float(Fraction(2 * below + math.comb(n, k), 2**n))


def clusters_one_by_one(sums: list[float], sizes: list[float], draws: int, seed: int) -> list[float]:
    rng, means = random.Random(seed), []
    for _ in range(draws):
        picked = [rng.randrange(len(sums)) for _ in sums]
        means.append(sum(sums[i] for i in picked) / sum(sizes[i] for i in picked))
    return means


def holm_by_closed_testing(ps: list[float]) -> list[float]:
    """Reject one only if Bonferroni rejects every set that holds it (Marcus, Peritz & Gabriel 1976)."""
    sets = [s for k in range(1, len(ps) + 1) for s in itertools.combinations(range(len(ps)), k)]
    return [max(min(1.0, len(s) * min(ps[j] for j in s)) for s in sets if i in s) for i in range(len(ps))]


@pytest.mark.parametrize(
    ("sums", "p"),
    [
        ((1, 1, 1), 2 / 8),  # only +++ and −−− reach 3
        ((3, 1), 2 / 4),  # ±4 of ±4, ±2
        ((3, -1), 4 / 4),  # |2| is reached by all four
        ((1, -1), 1.0),
        ((2, 2, 2, 2, -1), 4 / 32),  # |7| is reached by 9 and 7, each with either sign
        ((0.5,), 1.0),
        ((0.0, -0.0), 1.0),
        ((), 1.0),
    ],
)
def test_sign_flips_by_hand(sums, p):
    assert sign_flip(floats(*sums)) == p


@pytest.mark.parametrize("rows", [4, 8])
def test_a_difference_is_detectable_from_2_8_standard_errors_if_it_can_be_significant_at_all(rows):
    # half of the rows move by 1, the others by 0: every residual is ½, so se = √(n/(n−1) · n/4) / n
    moved = np.arange(rows) % 2.0
    found = difference(moved, np.zeros(rows), np.arange(rows))
    error = math.sqrt(rows / (rows - 1) * rows / 4) / rows
    # of 4 users even the best possible outcome has a mid-p of 2⁻⁴ > .05
    assert found.smallest_detectable == (pytest.approx(2.8 * error) if rows == 8 else None)


@usual
@given(st.lists(quarters, max_size=9))
def test_sign_flips_agree_with_every_pattern_tried_in_turn(sums):
    assert sign_flip(floats(*sums)) == flips_by_convolution(sums)


def test_thirds_that_add_up_differently_in_another_order_still_count_as_equal():
    # ±⅓ three times and ±1: |Σ| = 2 is reached by two of sixteen patterns, whatever the rounding
    assert sign_flip(floats(1 / 3, 1 / 3, 1 / 3, 1)) == 2 / 16
    assert sign_flip(floats(0.1, 0.2, -0.3)) == 1.0


@few
@given(st.lists(quarters, min_size=15, max_size=60), st.sampled_from((1.0, 1 / 3, 0.1, 7.0, 1e9, 1e-15)))
def test_flips_of_any_common_unit_are_exact_and_need_no_seed(sums, unit):
    assert sign_flip(floats(*sums) * unit) == pytest.approx(flips_by_convolution(sums), abs=1e-12)
    assert sign_flip(floats(*sums), seed=1) == sign_flip(floats(*sums), seed=2)


def test_flips_without_a_common_unit_are_drawn_and_the_seed_decides():
    sums = np.random.default_rng(1).normal(0.1, 1, 40)
    assert sign_flip(sums, seed=1) == sign_flip(sums, seed=1)
    drawn = [sign_flip(sums, seed=seed) for seed in range(5)]
    assert len(set(drawn)) > 1
    # far out in the tails normal: Σ / √Σs², whose two-sided p is close for 40 clusters
    normal = 2 * stats.norm.sf(abs(sums.sum()) / np.sqrt(np.square(sums).sum()))
    assert drawn == pytest.approx([normal] * 5, abs=0.02)


@pytest.mark.parametrize(("clusters", "most"), [(60, 1e-15), (400, 1e-80), (100_000, 1e-300)])
def test_a_p_is_never_zero_and_never_too_small(clusters, most):
    # in truth 2^(1−clusters); a float that holds no such number gets the smallest one
    p = sign_flip(np.ones(clusters))
    assert max(0.0, 2.0 ** max(1 - clusters, -1000)) <= p <= most


def test_a_drawn_p_is_never_zero():
    # 2^−59 in truth; 100,000 draws can only say less than 1 in 100,001
    assert sign_flip(np.linspace(1, math.sqrt(2), 60) ** 0.3) == 1 / (DRAWS + 1)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 0.5),  # 2·½ − ½
        (2, 0, 0.25),
        (1, 7, 10 / 256),  # 2·(1 + 8)/256 − 8/256; Fagerland et al. print 0.039 for this table
        (5, 5, 1.0),
    ],
)
def test_mcnemar_by_hand(wins, losses, p):
    assert mcnemar_midp(wins, losses) == pytest.approx(p, abs=1e-12)


@usual
@given(st.integers(0, 120), st.integers(0, 120))
def test_mcnemar_agrees_with_counting_and_has_no_side(wins, losses):
    assert mcnemar_midp(wins, losses) == pytest.approx(midp_by_counting(wins, losses), rel=1e-9)
    assert mcnemar_midp(wins, losses) == mcnemar_midp(losses, wins)
    assert 0 < mcnemar_midp(wins, losses) <= 1


@usual
@given(columns(credit, credit, max_rows=14))
def test_a_paired_p_has_no_side_and_agrees_with_the_long_way(table):
    a, b, clusters = table
    p, test = paired_p(a, b, clusters)
    assert paired_p(b, a, clusters) == (p, test)
    assert paired_p(1 - a, 1 - b, clusters) == (p, test)
    assert 0 < p <= 1
    singles = len(set(clusters.tolist())) == len(a)
    if not any((a - b)[clusters == c].sum() for c in set(clusters.tolist())):
        assert (p, test) == (1.0, "none")
    elif singles and {*a.tolist(), *b.tolist()} <= {0.0, 1.0}:
        won = [x - y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert (p, test) == (pytest.approx(midp_by_counting(won.count(1), won.count(-1))), "mcnemar-midp")
    else:
        sums = [sum((a - b)[clusters == c].tolist()) for c in set(clusters.tolist())]
        assert (p, test) == (flips_by_convolution(sums), "sign-flip")


UNEVEN = Totals(floats(3, 0, 1, 2, 4, 1, 0.5, 2, 2, 5), floats(4, 2, 2, 2, 6, 1, 1, 3, 4, 5))


def test_the_bootstrap_agrees_with_drawing_clusters_one_by_one():
    slow = clusters_one_by_one(UNEVEN.sums.tolist(), UNEVEN.sizes.tolist(), 20_000, seed=2)
    fast = bootstrap_interval(UNEVEN, draws=20_000, seed=1)
    assert fast == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.02)


def test_the_bootstrap_interval_of_two_clusters_is_their_two_means():
    # each mean alone has chance ¼, far above 2.5 %
    assert bootstrap_interval(Totals(floats(1, 0), floats(2, 2))) == (0.0, 0.5)


def shifted_p(sums: list[Fraction], sizes: list[int], shift: Fraction) -> float:
    """The sign-flip p of the residuals that a shift leaves, every pattern in turn."""
    residuals = [s - shift * n for s, n in zip(sums, sizes, strict=True)]
    flips = [abs(sum(x * s for x, s in zip(residuals, signs, strict=True))) for signs in patterns(len(sums))]
    return sum(flip >= abs(sum(residuals)) for flip in flips) / len(flips)


def patterns(n: int) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=n))


def test_an_inverted_interval_by_hand():
    # six clusters: p of the extreme patterns is 2/64, so only the smallest and the largest subset mean are cut at
    sums = Totals(floats(1, 2, 3, 4, 5, 6), np.ones(6))
    assert inverted_interval(sums, 2 / 64) == (1.0, 6.0)
    # seven: 128 · 0.025 = 3.2, so the third smallest of the means 1, 1½, 2, 2, 2, 2⅓ … and the third largest
    assert inverted_interval(Totals(floats(1, 2, 3, 4, 5, 6, 7), np.ones(7)), 2 / 128) == (2.0, 6.0)


@pytest.mark.parametrize("clusters", [2, 3, 4, 5])
def test_up_to_five_clusters_nothing_is_significant_and_the_interval_is_the_whole_range(clusters):
    found = difference(np.ones(2 * clusters), np.full(2 * clusters, 0.25), np.arange(2 * clusters) // 2)
    assert (found.value, found.low, found.high, found.p) == (0.75, -1.0, 1.0, 2.0 ** (1 - clusters))
    # of numbers without a range nothing is known
    rewards = difference(np.arange(clusters) + 3.0, np.zeros(clusters), np.arange(clusters))
    assert (rewards.low, rewards.high) == (None, None)


def test_one_cluster_has_a_difference_and_no_interval():
    found = difference(floats(1, 1, 0), floats(0, 0, 0), ints(5, 5, 5))
    assert (found.value, found.p, found.low, found.smallest_detectable) == (pytest.approx(2 / 3), 1.0, None, None)


def test_five_tie_free_wins_are_significant_by_mid_p_and_the_interval_says_so():
    found = difference(np.ones(5), np.zeros(5), np.arange(5))
    assert (found.p, found.test) == (pytest.approx(1 / 32), "mcnemar-midp")
    # 0 of 5 were no wins: at most Wilson's z²/(5 + z²) of all are ties
    z2 = stats.norm.ppf(0.975) ** 2
    assert (found.low, found.high) == pytest.approx((1 - z2 / (5 + z2), 1.0))


def test_a_column_that_never_differs_only_bounds_how_often_it_could():
    values, clusters = np.tile([1.0, 0.0], 20), np.arange(40) // 2
    found = difference(values, values, clusters)
    bound = stats.binomtest(0, 20).proportion_ci(method="wilson").high
    assert (found.value, found.p) == (0.0, 1.0)
    assert (found.low, found.high) == pytest.approx((-bound, bound))
    # by construction, and only then, there is nothing to be uncertain about
    assert (difference(values, values, clusters, exact=True).low, found.smallest_detectable) == (0.0, 0.0)
    # numbers without a range: what the others could be is unknown
    beyond = difference(7 + values, 7 + values, clusters)
    assert (beyond.low, beyond.high) == (None, None)


@few
@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 4)), min_size=6, max_size=7))
def test_an_inverted_interval_holds_exactly_the_shifts_that_are_not_rejected(clusters):
    sums, sizes = [Fraction(s, 4) for s, _ in clusters], [n for _, n in clusters]
    if len({s / n for s, n in zip(sums, sizes, strict=True)}) == 1:
        return
    table = Totals(floats(*map(float, sums)), floats(*sizes))
    low, high = inverted_interval(table, sign_flip(table.sums))
    candidates = sorted(
        {
            sum((s for s, keep in zip(sums, chosen, strict=True) if keep > 0), Fraction(0))
            / sum(n for n, keep in zip(sizes, chosen, strict=True) if keep > 0)
            for chosen in patterns(len(sums))
            if max(chosen) > 0
        }
    )
    kept = [shift for shift in candidates if shifted_p(sums, sizes, shift) >= 0.05]
    assert (low, high) == pytest.approx((float(kept[0]), float(kept[-1])), abs=1e-12)


@usual
@given(columns(credit, credit, min_rows=2, max_rows=40, groups=24))
def test_an_interval_excludes_zero_exactly_if_p_is_below_five_percent(table):
    a, b, clusters = table
    for x, y in ((a, b), (np.ones(len(a)), b), (np.round(a), np.round(b))):
        found = difference(x, y, clusters)
        if found.low is not None:
            assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
            assert found.low <= found.value <= found.high


@pytest.mark.parametrize("rows", [24, 60, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["tie-free", "credits", "rewards", "uneven"])
def test_interval_and_p_agree_in_every_kind_of_table(kind, rows):
    rng = np.random.default_rng(rows)
    significant, trials = 0, 12 if rows == 400 else 40
    for trial in range(trials):
        shift = rng.normal(0, 3 / math.sqrt(rows))
        clusters = rng.integers(0, rows // 3, rows) if kind == "uneven" else np.arange(rows)
        if kind == "rewards":
            a, b = rng.normal(shift, 1, rows), rng.normal(0, 1, rows)
        else:
            steps = 1 if kind == "tie-free" else 4
            a = rng.binomial(steps, np.clip(0.5 + shift / 2, 0, 1), rows) / steps
            b = rng.binomial(steps, 0.5, rows) / steps
        found = difference(a, b, clusters, seed=trial)
        assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
        significant += found.p < 0.05
    assert 0 < significant < trials


def test_a_difference_of_clustered_rows_by_hand():
    found = difference(floats(1, 1, 0.5, 1, 0, 1), floats(0, 0, 0.5, 0.5, 0.5, 1), ints(0, 0, 1, 1, 2, 2))
    # cluster sums 2, ½, −½: mean 2/6; |Σ| = 2 is reached by ±(2 ½ ½), ±(2 ½ −½), ±(2 −½ ½): 6 of 8
    assert (found.value, found.test) == (pytest.approx(1 / 3), "sign-flip")
    assert found.p == 6 / 8
    assert found.smallest_detectable is None  # the best p of three clusters is 2/8
    # three clusters cannot exclude anything
    assert (found.low, found.high) == (-1.0, 1.0)


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_answered_on_both_sides_is_no_difference_at_all(rows):
    found = difference(np.full(rows, NAN), np.ones(rows), np.arange(rows))
    expected = dict.fromkeys(("value", "low", "high", "p", "smallest_detectable"))
    assert asdict(found) == {**expected, "n": 0, "dropped": rows, "test": "none"}


@usual
@given(columns(credit, credit, max_rows=14), st.data())
def test_order_and_codes_do_not_change_a_difference(table, data):
    a, b, clusters = table
    order, other = data.draw(orders(len(a))), data.draw(relabeled(clusters))
    found, again = difference(a, b, clusters), difference(a[order], b[order], other[order])
    assert asdict(again) == pytest.approx(asdict(found))


@usual
@given(columns(credit, credit, max_rows=12), columns(credit, min_rows=0, max_rows=6), st.booleans())
def test_failed_rows_are_dropped_and_counted(table, failed, left):
    a, b, clusters = table
    extra, codes = failed
    lost = np.full(len(extra), NAN)
    more_a, more_b = (lost, extra) if left else (extra, lost)
    found = difference(np.append(a, more_a), np.append(b, more_b), np.append(clusters, codes))
    assert found == replace(difference(a, b, clusters), dropped=len(extra))


def test_holm_by_hand():
    # sorted 0.005·4, 0.01·3, 0.03·2, then 0.04·1 is raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@usual
@given(st.lists(probabilities, min_size=1, max_size=6))
def test_holm_agrees_with_closed_testing(ps):
    assert holm(ps) == pytest.approx(holm_by_closed_testing(ps))


def test_only_rows_that_could_be_significant_are_corrected_for():
    ps = [0.01, None, 0.04, *[1.0] * 8]
    rows = [{"p": p, "test": "none" if p == 1 else "sign-flip"} for p in ps]
    assert [row["p_holm"] for row in corrected(rows)] == [0.02, None, 0.04, *[1.0] * 8]


def test_rounding_leaves_no_cluster_that_should_cancel():
    # thirds of a credit: 1/3 + 2/3 − 1 and its like leave 1e-16, which is no 21st cluster
    a = np.tile([1 / 3, 1 / 3, 1 / 3, 0.1, 0.2], 30) + np.repeat([1.0] * 8 + [0.0] * 22, 5)
    b = np.tile([1 / 9, 3 / 9, 5 / 9, 0.3, 0.0], 30)
    found = difference(a, b, np.repeat(np.arange(30), 5))
    assert found.p == 2 / 2**8
    assert sign_flip(floats(*[1e-16] * 40, 1, 1, 1)) == 2 / 8


@pytest.mark.parametrize("kind", ["credits", "rewards"])
def test_up_to_twenty_clusters_no_seed_moves_the_interval(kind):
    rng = np.random.default_rng(5)
    delta = rng.integers(-4, 7, 60) / 4 if kind == "credits" else rng.normal(0.2, 1, 60)
    table = totals(delta, np.arange(60) % 20)
    exact = {inverted_interval(table, sign_flip(table.sums), seed=seed) for seed in range(3)}
    assert len(exact) == 1
    # every subset in turn
    chosen = (np.arange(1, 1 << 20)[:, None] >> np.arange(20)) & 1
    means = np.sort((chosen @ table.sums) / (chosen @ table.sizes))
    beyond = math.floor(0.025 * 2**20 - 1)
    assert exact.pop() == pytest.approx((means[beyond], means[-1 - beyond]), abs=1e-12)


def test_flip_rate_by_hand():
    # verdicts won/won (¾ is a win), won/lost, tied/won, lost/lost, and one failure each side: 2 of 4
    assert flip_rate(floats(1, 1, 0.5, 0, NAN, 1), floats(0.75, 0.25, 1, 0, 1, NAN)) == 0.5


# --- mirror twins, and rows that the history must not decide ---
Rows = tuple[Ints, Ints, np.ndarray, Floats]

margins = st.one_of(st.sampled_from((0.0, 1.0, -1.0, 0.1, 0.2, -0.3)), st.floats(-50, 50).map(lambda m: round(m, 3)))


@st.composite
def mirror_rows(draw: st.DrawFn, *, max_twins: int = 10, blind: bool = False, all_answered: bool = False) -> Rows:
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


def found_by_loops(twins: Ints, answered: np.ndarray) -> set[frozenset[int]]:
    couples = set()
    for i in range(len(twins)):
        for j in range(len(twins)):
            if twins[i] == j and twins[j] == i and i != j and answered[i] and answered[j]:
                couples.add(frozenset((i, j)))
    return couples


TWINS = Twins(ints(0, 2, 4, 6), ints(1, 3, 5, 7), ints(0, 0, 1, 2))
"""Four couples in three clusters: rows 0-1 and 2-3 together, 4-5, 6-7."""


@usual
@given(mirror_rows())
def test_twins_agree_with_a_double_loop(table):
    twins, clusters, answered, _ = table
    found = Twins.find(twins, clusters, answered)
    couples = {frozenset(c) for c in zip(found.first.tolist(), found.second.tolist(), strict=True)}
    assert couples == found_by_loops(twins, answered)
    assert len(found) == len(couples)
    assert found.clusters.tolist() == clusters[found.second].tolist()


def test_mirror_accuracy_by_hand():
    credit = floats(1, 1, 1, 0, 1, 0.5, 1, 0.75)
    # only the first couple is strictly right twice: 1 of 4, over three clusters
    found = mirror_accuracy(credit, TWINS)
    assert (found.value, found.n) == (0.25, 4)
    assert (found.low, found.high) == pytest.approx(share_by_steps([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 2]), abs=1e-6)


def test_person_effect_by_hand():
    margin = floats(3, -1, 1, -2, 0.5, -0.5, 4, 4)
    # sums 2 > 0, −1 < 0, 0, 8 > 0: (1 + 0 + ½ + 1)/4; cluster sums of ±½: ½ − ½ = 0, 0, ½: one moved cluster, p = 1
    found = person_effect(margin, TWINS)
    assert (found.value, found.n, found.ties, found.p) == (0.625, 4, 1, 1.0)
    # now the couples of one cluster agree: cluster sums 1, ½, ½; |Σ| = 2 by two of eight patterns
    found = person_effect(floats(3, -1, 2, -1, 0.5, 0.5, 4, 4), TWINS)
    assert (found.value, found.p, found.test) == (1.0, 2 / 8, "sign-flip")


@usual
@given(mirror_rows(max_twins=8))
def test_person_effect_agrees_with_a_loop_and_a_permutation_test(table):
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
@given(mirror_rows(), st.floats(-100, 100).map(lambda m: round(m, 3)))
def test_a_taste_everyone_shares_leaves_the_person_effect_alone(table, taste):
    margin, twins = table[3].copy(), Twins.find(*table[:3])
    clear = np.abs(margin[twins.first] + margin[twins.second]) > 1e-6
    twins = Twins(twins.first[clear], twins.second[clear], twins.clusters[clear])
    before = person_effect(margin, twins)
    margin[twins.first] += taste
    margin[twins.second] -= taste
    assert person_effect(margin, twins) == before


def test_average_user_share_by_hand():
    # one couple with margins 3 and 1: p = 2, g = 1: 1/(1 + 4)
    one = Twins(ints(0), ints(1), ints(0))
    assert average_user_share(floats(3, 1), one) == 0.2
    # margins (3, 1) and (1, −1): Σg² = 1 + 1, Σp² = 4 + 0
    two = Twins(ints(0, 2), ints(1, 3), ints(0, 1))
    assert average_user_share(floats(3, 1, 1, -1), two) == pytest.approx(2 / 6)


@usual
@given(mirror_rows(), st.floats(0.01, 100))
def test_average_user_share_agrees_with_a_loop_and_has_no_unit(table, unit):
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
@given(mirror_rows(blind=True))
def test_a_user_blind_model_is_exactly_at_one_half_zero_and_one(table):
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


def test_scores_that_cancel_only_up_to_rounding_still_count_as_user_blind():
    # (0.1 + 0.2) − 0.3 leaves 6e−17
    margin = floats(0.1 + 0.2, -0.3, 0.7, -0.7)
    twins = Twins(ints(0, 2), ints(1, 3), ints(0, 1))
    assert margin[0] + margin[1] != 0
    effect = person_effect(margin, twins)
    assert (effect.value, effect.low, effect.high, effect.p) == (0.5, 0.5, 0.5, 1.0)
    assert average_user_share(margin, twins) == 1.0


def test_a_small_but_real_effect_of_the_user_is_not_rounded_away():
    twins = Twins(ints(0, 2), ints(1, 3), ints(0, 1))
    effect = person_effect(floats(100, -100 + 1e-6, 5, -5 + 1e-6), twins)
    assert effect.value == 1.0


# --- rows that the history must not decide ---
def test_misapplied_rows_by_hand():
    own = floats(0, 0, 0, 0.25, 0.5, 1, 0, np.nan)
    without = floats(1, 0.5, 0, 0.5, 1, 0, np.nan, 1)
    # right → wrong, tied → wrong, wrong → wrong, tied → mostly wrong, right → tied, wrong → right; two unanswered
    lost = floats(1, 0.5, 0, 0.25, 0.5, 0)
    found = misapplied(own, without, np.arange(8))
    assert (found.value, found.n) == (2.25 / 6, 6)
    assert share_by_steps(lost, np.arange(6)) == pytest.approx((found.low, found.high))


def test_what_cannot_be_misapplied_has_no_uncertainty():
    found = misapplied(floats(0, 1, 0.5), floats(0, 1, 0.5), ints(1, 2, 3), exact=True)
    assert (found.value, found.low, found.high, found.n) == (0, 0, 0, 3)
    assert misapplied(floats(), floats(), ints(), exact=True).value is None


def test_pull_by_hand():
    own, others = floats(-1, 2, 0.1 + 0.2, 4, np.nan), floats(1, 1, 0.3, 4.5, 0)
    # falls, rises, the same but for rounding, falls: (1 + 0 + ½ + 1)/4; cluster sums ½ − ½ = 0 and ½: p = 1
    found = pull(own, others, ints(1, 1, 2, 2, 3))
    assert (found.value, found.n, found.p) == (0.625, 4, 1.0)
    assert pull(floats(np.nan), floats(1), ints(1)) is None


@usual
@given(mirror_rows(all_answered=True), st.integers(0, 3))
def test_the_pull_of_a_model_that_ignores_the_history_is_one_half(table, seed):
    _, clusters, _, margin = table
    found = pull(margin, margin, clusters, seed=seed)
    assert found is None or (found.value, found.low, found.high, found.test) == (0.5, 0.5, 0.5, "none")
