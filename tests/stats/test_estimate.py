"""Clusters; shares, their clustered standard errors and intervals; accuracy by label, group and user."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prb.stats.estimate import (
    Z95,
    Floats,
    Ints,
    average,
    by_group,
    by_label,
    cancels,
    chance_spread,
    clustered_stderr,
    components,
    crossed,
    effective_clusters,
    share,
    small_sample_factor,
    spread,
    user_means,
    wilson,
)
from tests.stats.strategies import NAN, columns, credit, credit_or_failure, floats, ints, usual

T1 = math.tan(0.475 * math.pi)
"""The 97.5 % quantile of t with one degree of freedom (Cauchy): tan(π(0.975 − ½))."""


def stderr_by_loops(values: list[float], clusters: list[int]) -> float | None:
    """√(G/(G−1) Σ over all pairs of rows in one cluster of their residuals' product) / n, with G = n² / Σ sizes²."""
    n = len(values)
    if len(set(clusters)) < 2:
        return None
    groups = effective_by_loops(clusters)
    mean, total = sum(values) / n, 0.0
    for i in range(n):
        for j in range(n):
            if clusters[i] == clusters[j]:
                total += (values[i] - mean) * (values[j] - mean)
    return math.sqrt(max(0.0, groups / (groups - 1) * total)) / n


def effective_by_loops(clusters: list[int]) -> float:
    return len(clusters) ** 2 / sum(a == b for a in clusters for b in clusters)


def share_by_steps(values: list[float], clusters: list[int]) -> tuple[float, float]:
    """The interval of a share, one thought after the other."""
    n, mean, names = len(values), sum(values) / len(values), sorted(set(clusters))
    if len(names) == n:
        return wilson_by_bisection(mean, n, Z95)
    if len(names) == 1:
        return 0.0, 1.0
    flipped = [1 - value for value in values]
    return min(mean, lower_by_loops(values, clusters)), max(mean, 1 - lower_by_loops(flipped, clusters))


def lower_by_loops(values: list[float], clusters: list[int]) -> float:
    """The lowest end over all results in which some clusters are all right."""
    names = sorted(set(clusters))
    sets = [set(chosen) for k in range(len(names) + 1) for chosen in combinations(names, k)]
    better = ([1.0 if c in right else v for v, c in zip(values, clusters, strict=True)] for right in sets)
    return min(end_by_steps(result, clusters) for result in better)


def end_by_steps(values: list[float], clusters: list[int]) -> float:
    """Wilson's lower end with t²/4 rows more, at the design effect of an intra-class correlation of ⅔."""
    n, mean, groups = len(values), sum(values) / len(values), effective_by_loops(clusters)
    quantile = min(1e6, stats.t.ppf(0.975, max(0.01, groups - 1)))
    assumed = 1 + 2 / 3 * (n / groups - 1)
    observed, added = (n * (stderr_by_loops(values, clusters) or 0.0)) ** 2, quantile**2 / 4
    design_effect = (observed + added * assumed) / (n * mean * (1 - mean) + added)
    return wilson_by_bisection(mean, n / design_effect, quantile)[0]


def wilson_by_bisection(value: float, n: float, quantile: float) -> tuple[float, float]:
    """The interval's own definition: all p that a score test of H₀: p does not reject."""

    def accepted(p: float) -> bool:
        return abs(value - p) <= quantile * math.sqrt(p * (1 - p) / n)

    def edge(inside: float, outside: float) -> float:
        if accepted(outside):
            return outside
        for _ in range(200):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if accepted(middle) else (inside, middle)
        return inside

    return edge(value, 0.0), edge(value, 1.0)


def test_standard_error_of_uneven_clusters_by_hand():
    # mean ¾; residuals 3 − 3·¾ = ¾ and 0 − ¾ = −¾; 16/10 = 1.6 effective clusters: √(1.6/0.6 · 9/8)/4 = √3/4
    assert clustered_stderr(floats(1, 1, 1, 0), ints(5, 5, 5, 9)) == pytest.approx(math.sqrt(3) / 4)


def test_effective_clusters_by_hand():
    assert effective_clusters(np.repeat(np.arange(7), 5)) == 7
    # one user with half of 40 rows and 20 with one each: 1600 / (400 + 20)
    assert effective_clusters(np.append(np.arange(20), np.full(20, 99))) == pytest.approx(1600 / 420)


@usual
@given(columns(credit))
def test_standard_error_agrees_with_a_double_loop_over_rows(table):
    values, clusters = table
    slow = stderr_by_loops(values.tolist(), clusters.tolist())
    assert clustered_stderr(values, clusters) == (None if slow is None else pytest.approx(slow, abs=1e-7))


@usual
@given(st.lists(st.tuples(credit, st.integers(0, 4)), min_size=2, max_size=20))
def test_clusters_whose_rows_cancel_have_a_standard_error_of_exactly_zero(twins):
    values = np.array([half for c, _ in twins for half in (c, 1 - c)])
    clusters = np.array([[group] * 2 for _, group in twins]).ravel()
    assert clustered_stderr(values, clusters) == (0.0 if len(set(clusters.tolist())) > 1 else None)


def test_residuals_that_cancel_only_up_to_rounding_still_give_exactly_zero():
    # one win in 49 rows each: 49 · (1/49) is not 1 in floating point
    values, clusters = floats(*[1, *[0] * 48] * 3), np.repeat(np.arange(3), 49)
    assert 49 * (1 / 49) != 1
    assert clustered_stderr(values, clusters) == 0.0


def test_wilson_by_hand():
    # at p = ½ the half width is z / (2√(n + z²)): z = 2, n = 12 gives 2/8
    assert wilson(0.5, 12, 2.0) == pytest.approx((0.25, 0.75))
    # at p = 0 the upper end is z² / (n + z²): 4/16; at p = 1 it is mirrored
    assert wilson(0.0, 12, 2.0) == (0.0, pytest.approx(0.25))
    assert wilson(1.0, 12, 2.0) == (pytest.approx(0.75), 1.0)


@usual
@given(st.floats(0, 1), st.floats(0.5, 5000), st.floats(0.1, 13))
def test_wilson_is_the_set_of_shares_a_score_test_accepts(value, n, quantile):
    assert wilson(value, n, quantile) == pytest.approx(wilson_by_bisection(value, n, quantile), abs=1e-6)


def test_rounding_never_moves_an_end_past_a_share_of_0_or_1():
    assert {(wilson(0.0, n)[0], wilson(1.0, n)[1]) for n in range(1, 500)} == {(0.0, 1.0)}


def test_a_share_of_independent_tie_free_rows_is_plain_wilson():
    found = share(floats(1, 0, 1, 1, 1, 0, 1, 1), ints(8, 7, 6, 5, 4, 3, 2, 1), failed=3)
    expected = stats.binomtest(6, 8).proportion_ci(method="wilson")
    assert (found.value, found.n, found.failed, found.ties) == (0.75, 8, 3, 0)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_perfect_score_by_hand():
    # 20 clusters of 12 rows, design effect 1 + ⅔ · 11 = 25/3: worth 28.8 rows; Wilson's end is worth / (worth + t²)
    found = share(np.ones(240), np.repeat(np.arange(20), 12))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(28.8 / (28.8 + stats.t.ppf(0.975, 19) ** 2))
    # two clusters of two rows, design effect 5/3: t on one degree of freedom
    assert share(np.ones(4), ints(0, 0, 1, 1)).low == pytest.approx(2.4 / (2.4 + T1**2))


@usual
@given(columns(credit, max_rows=20, groups=5))
def test_a_share_agrees_with_the_long_way(table):
    found, (values, clusters) = share(*table), (column.tolist() for column in table)
    assert found.value == pytest.approx(sum(values) / len(values))
    assert (found.low, found.high) == pytest.approx(share_by_steps(values, clusters), abs=1e-6)


@st.composite
def missed_once_more(draw: st.DrawFn) -> tuple[Floats, Floats, Ints]:
    """Credits, the same with one row worse, and clusters of any size, or all of one size."""
    equal = st.tuples(st.integers(2, 30), st.integers(1, 9)).map(lambda pair: [pair[1]] * pair[0])
    sizes = draw(st.lists(st.integers(1, 9) | st.integers(1, 60), min_size=2, max_size=20) | equal)
    rates = [draw(st.sampled_from((0.0, 0.1, 0.3, 0.5, 0.9, 1.0))) for _ in sizes]
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    before = rng.choice([1.0, 0.5], len(clusters)) if draw(st.booleans()) else np.ones(len(clusters))
    before[rng.random(len(clusters)) < np.repeat(rates, sizes)] = 0.0
    after = before.copy()
    row = draw(st.sampled_from(np.flatnonzero(before > 0).tolist() or [0]))
    after[row] = draw(st.sampled_from((0.0, before[row] / 2)))
    return before, after, clusters


@settings(max_examples=300)
@given(missed_once_more())
def test_one_more_miss_never_raises_a_limit(table):
    before, after = (share(values, table[2]) for values in table[:2])
    assert after.low <= before.low + 1e-9
    assert after.high <= before.high + 1e-9


def test_one_user_with_half_of_the_rows_does_not_make_the_interval_too_narrow():
    rng, clusters = np.random.default_rng(4), np.repeat(np.arange(20), [190, *[10] * 19])
    held = 0
    for _ in range(200):
        chance = rng.beta(0.7 * 7 / 3, 0.3 * 7 / 3, 20)  # mean 0.7, intra-class correlation 0.3
        found = share((rng.random(380) < chance[clusters]) * 1.0, clusters)
        held += found.low <= 0.7 <= found.high
    assert held >= 186  # it was 77 %


def test_nothing_answered_has_no_value_but_counts_its_failures():
    found = share(floats(), ints(), failed=4)
    assert (found.value, found.low, found.high, found.n, found.failed) == (None, None, None, 0, 4)


@pytest.mark.parametrize("values", [(1.0, 0.0), (1.0, 1.0, 1.0), (0.5, 0.5)])
def test_one_cluster_says_nothing_about_the_next_one(values):
    found = share(floats(*values), np.zeros(len(values), dtype=np.int64))
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.value == pytest.approx(sum(values) / len(values))


def test_a_share_known_by_construction_has_no_width():
    found = share(floats(1, 0, 0.5, 0.5), ints(0, 0, 1, 1), exact=True)
    assert (found.value, found.low, found.high, found.n, found.ties) == (0.5, 0.5, 0.5, 4, 2)


def test_margins_cancel_only_if_every_row_has_its_twin_and_the_opposite_margin():
    margins, twins = floats(0.3, -0.3, 2, -2, 1), ints(1, 0, 3, 2, -1)
    assert cancels(margins[:4], twins[:4])
    assert not cancels(margins, twins)  # the last row has no twin
    assert not cancels(floats(0.3, -0.2, 2, -2), twins[:4])
    assert cancels(floats(0.3, NAN, 2, -2), twins[:4])  # a row whose twin failed cannot say otherwise
    assert cancels(floats(NAN, NAN, 2, -2), twins[:4])
    assert not cancels(floats(0.3, NAN, NAN, -2), twins[:4])  # but not if there is nothing else
    assert not cancels(floats(), ints())
    assert cancels(margins, twins, np.array([True, True, False, False, False]))
    assert not cancels(margins, twins, np.array([True, False, True, True, False]))  # a twin outside the rows


@usual
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 6), st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_failed_rows_leave_a_user_blind_column_at_one_half(twins):
    margins = np.array([m for margin, _, *lost in twins for m in (margin, -margin)])
    failed = np.array([lost for *_, first, second in twins for lost in (first, second)])
    both = 2 * sum(not (first or second) for *_, first, second in twins)
    margins[failed] = NAN
    exact = cancels(margins, np.arange(len(margins)) ^ 1)
    assert exact == (0 < both >= (~failed).sum() / 2)
    if exact:
        credit, clusters = ((np.sign(margins) + 1) / 2)[~failed], np.repeat([c for _, c, *_ in twins], 2)[~failed]
        found = share(credit, clusters, failed=int(failed.sum()), exact=exact)
        assert (found.value, found.low, found.high, found.n + found.failed) == (0.5, 0.5, 0.5, len(margins))


def test_the_interval_holds_the_truth_about_95_times_in_100_when_clusters_move_together():
    rng = np.random.default_rng(11)
    clusters = np.repeat(np.arange(25), 4)
    held, held_if_independent = [], []
    for _ in range(1500):
        skill = rng.beta(3, 2, 25)  # mean 3/5
        values = (rng.random(100) < skill[clusters]).astype(np.float64)
        for answers, codes_ in ((held, clusters), (held_if_independent, np.arange(100))):
            found = share(values, codes_)
            answers.append(found.low <= 0.6 <= found.high)
    # the standard error of such a frequency is √(0.95 · 0.05 / 1500) = 0.0056
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)
    assert np.mean(held_if_independent) < 0.92


names = st.sampled_from([f"u{n:02d}" for n in range(14)])
links = st.lists(st.tuples(names, names), max_size=20)


def by_walking(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """From each name, walk to all that can be reached and take the smallest."""
    found = {}
    for start in {name for pair in pairs for name in pair}:
        reached = {start}
        for _ in pairs:
            for a, b in pairs:
                if a in reached or b in reached:
                    reached |= {a, b}
        found[start] = min(reached)
    return found


def test_a_very_long_chain_needs_no_recursion():
    chain = [(f"{n:06d}", f"{n + 1:06d}") for n in range(50_000)]
    assert set(components(reversed(chain)).values()) == {"000000"}


@usual
@given(links)
def test_components_agree_with_walking_from_everyone(pairs):
    assert components(pairs) == by_walking(pairs)


labels = st.sampled_from(("art", "life", "society", "", None))


@st.composite
def labeled(draw: st.DrawFn) -> tuple[Floats, Ints, list[str | None]]:
    values, clusters = draw(columns(credit_or_failure))
    return values, clusters, draw(st.lists(labels, min_size=len(values), max_size=len(values)))


@usual
@given(labeled())
def test_accuracy_by_label_agrees_with_a_loop(table):
    values, clusters, names = table
    slow: dict[str, tuple[list[float], list[int], int]] = {}
    for value, cluster, name in zip(values.tolist(), clusters.tolist(), names, strict=True):
        if name:
            kept, numbers, failed = slow.get(name, ([], [], 0))
            if np.isnan(value):
                slow[name] = (kept, numbers, failed + 1)
            else:
                slow[name] = ([*kept, value], [*numbers, cluster], failed)
    expected = {name: share(floats(*v), ints(*c), failed=f) for name, (v, c, f) in slow.items()}
    assert by_label(values, clusters, names) == expected


def test_accuracy_by_group_by_hand():
    groups = [{"age": "young", "region": "north"}, {"age": "old"}, {"age": "young"}, {"age": "old"}, {}]
    found = by_group(floats(1, 0, 1, 0.5, 0), ints(0, 1, 2, 3, 4), groups)
    assert list(found) == ["age", "region"]
    # young 1, old ¼
    assert (found["age"]["worst"], found["age"]["gap"]) == ("old", 0.75)
    assert found["age"]["groups"]["young"]["value"] == 1.0
    assert found["age"]["groups"]["old"] == share(floats(0, 0.5), ints(1, 3)).as_dict()
    assert (found["region"]["worst"], found["region"]["gap"], found["region"]["groups"]["north"]["n"]) == (
        "north",
        0.0,
        1,
    )


def test_a_group_that_only_failed_is_neither_worst_nor_part_of_the_gap():
    groups = [{"age": "old"}, {"age": "young"}, {"age": "young"}]
    found = by_group(floats(NAN, 1, 0), ints(0, 1, 2), groups)["age"]
    assert (found["worst"], found["gap"], found["groups"]["old"]["failed"]) == ("young", 0.0, 1)
    nobody = by_group(floats(NAN, NAN, NAN), ints(0, 1, 2), groups)["age"]
    assert (nobody["worst"], nobody["gap"]) == (None, None)


def test_user_means_by_hand():
    # user 4: (1 + ½)/2; user 9: 0; user 2 never answered
    means, n, present = user_means(floats(1, NAN, 0.5, 0, NAN), ints(4, 2, 4, 9, 9))
    assert (means.tolist(), n.tolist(), present.tolist()) == ([0.75, 0.0], [2, 1], [4, 9])


def test_spread_by_hand():
    # mean ½, squared residuals ¼ + 0 + ¼ over 2: standard deviation ½; the worst of three users is the decile of one
    assert spread(floats(1, 0, 0.5)) == {"n": 3, "mean": 0.5, "spread": 0.5, "worst_decile": 0.0}
    assert spread(floats(0.7)) == {"n": 1, "mean": 0.7, "spread": None, "worst_decile": 0.7}
    assert spread(floats()) == {"n": 0, "mean": None, "spread": None, "worst_decile": None}
    # 6 of 8 rows won: ¾ · ¼ times the mean of ¼, ½ and ½
    assert chance_spread(floats(1, 0.5, 0.5), ints(4, 2, 2)) == pytest.approx((3 / 16 * 5 / 12) ** 0.5)
    assert chance_spread(floats(1), ints(4)) is None


def test_one_cluster_has_no_interval_and_nothing_has_no_average():
    assert average(floats(0.2, 0.4), ints(7, 7)).low is None
    none = average(floats(NAN, NAN), ints(0, 1))
    assert (none.value, none.low, none.n, none.failed) == (None, None, 0, 2)


# users and questions, or users and answers, crossed


@st.composite
def couples(draw: st.DrawFn) -> tuple[Floats, Ints]:
    """Credits of votes: rows of two users, some of one only, on a question or on two answers."""
    user, text = st.integers(0, 5), st.integers(0, 4)
    second = draw(st.sampled_from([st.just(-1), text]))
    row = st.tuples(credit, user, st.one_of(user, st.just(-1)), text, second)
    rows = draw(st.lists(row, min_size=1, max_size=25))
    return np.array([row[0] for row in rows]), np.array([row[1:] for row in rows], dtype=np.int64)


def crossed_by_loops(values: list[float], rows: list[list[int]]) -> tuple[float, float, float]:
    """Σ of residual products over pairs of rows that share a user or a text, a user, a text."""
    mean, sums = sum(values) / len(values), [0.0, 0.0, 0.0]
    for x, one in zip(values, rows, strict=True):
        for y, other in zip(values, rows, strict=True):
            user, text = (bool({*one[side]} & {*other[side]} - {-1}) for side in (slice(0, 2), slice(2, 4)))
            for n, linked in enumerate((user or text, user, text)):
                sums[n] += (x - mean) * (y - mean) * linked
    return sums[0], sums[1], sums[2]


@usual
@given(couples())
def test_the_crossed_standard_error_agrees_with_a_double_loop_over_rows(table):
    values, rows = table
    error = clustered_stderr(values, rows)
    users, texts = ({*rows[:, side].ravel().tolist()} - {-1} for side in (slice(0, 2), slice(2, 4)))
    if min(len(users), len(texts)) < 2:
        assert error is None
    else:
        factor, expected = small_sample_factor(rows), max(0.0, *crossed_by_loops(values.tolist(), rows.tolist()))
        assert error == pytest.approx(math.sqrt(factor * expected) / len(values), abs=1e-7)
        found = share(values, rows)
        assert 0 <= found.low <= found.value <= found.high <= 1


def test_users_are_crossed_where_few_clusters_hold_nearly_all_rows():
    row, one = np.arange(24), np.zeros(24, np.int64)
    users, questions, answers = row % 12, row // 2, np.stack([row, -row - 1], axis=1)
    twins = np.where(row < 20, row ^ 1, -1)
    facts = users, twins, questions, answers
    assert crossed(row // 4, *facts, complete=True).ndim == 1
    assert crossed(row // 8, *facts, complete=True).ndim == 1  # users are worth only four times as many
    assert crossed(one, users % 3, *facts[1:], complete=True).ndim == 1  # too few users
    table = crossed(one, *facts, complete=True)
    assert table[[0, 1, 13, 23]].tolist() == [[0, 1, 0, -1], [1, 0, 0, -1], [1, 0, 6, -1], [11, -1, 11, -1]]
    # one question: the answers are crossed instead
    assert crossed(one, users, twins, one, answers, complete=True)[[0, 23]].tolist() == [
        [0, 1, 24, 23],
        [11, -1, 47, 0],
    ]
    # links that were not followed
    assert crossed(users, *facts, complete=False).tolist() == table.tolist()


def test_the_small_sample_factor_by_hand():
    single, six = np.arange(6), np.array([[a, b] for a in range(4) for b in range(a)])
    assert small_sample_factor(single) == pytest.approx(6 / 5)
    # users once each; four items in all couples: 4/3 · (3/2)²
    assert small_sample_factor(np.column_stack([single, single * 0 - 1, six])) == pytest.approx(3)
