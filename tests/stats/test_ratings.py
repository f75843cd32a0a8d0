"""How well scores follow a user's own ratings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.ratings import (
    MIN_ROWS,
    RANGES,
    Ratings,
    left_out_line,
    mean_over_users,
    predictable,
    rating_metrics,
    variance_components,
    variance_shares,
)
from prb.types import Estimate
from tests.stats.strategies import NAN, columns, floats, ints, usual

scores = st.integers(-16, 16).map(lambda k: k / 4)
ratings = st.sampled_from((0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 1.0))
scores_or_failures = st.one_of(scores, scores, scores, st.just(NAN))


def line_by_polyfit(score: list[float], rating: list[float]) -> list[float]:
    """Fit the others, turn a falling line flat, read it at the row that was left out."""
    predictions = []
    for i in range(len(score)):
        x, y = np.array(score[:i] + score[i + 1 :]), np.array(rating[:i] + rating[i + 1 :])
        slope = max(0.0, float(np.polyfit(x - x.mean(), y, 1)[0])) if len(set(x.tolist())) > 1 else 0.0
        predictions.append(min(1.0, max(0.0, float(y.mean() + slope * (score[i] - x.mean())))))
    return predictions


def concordance_by_loops(score: list[float], rating: list[float]) -> float | None:
    points = n = 0.0
    for i in range(len(score)):
        for j in range(len(score)):
            if rating[i] > rating[j]:
                n += 1
                points += 1 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0
    return points / n if n else None


def approx(value: float | None) -> object:
    return None if value is None else pytest.approx(value, abs=1e-9)


def test_a_line_through_the_others_by_hand():
    # without (0, 0): slope ¼ through (1, ½) and (2, ¾) gives ¼ at 0; without (1, ½): 3/8; without (2, ¾): 1
    assert left_out_line(floats(0, 1, 2), floats(0, 0.5, 0.75)) == pytest.approx([0.25, 0.375, 1.0])


@pytest.mark.parametrize("outlier", [1.0, 10.0, 1000.0, 1e5, -1e5])
@pytest.mark.parametrize("others", [0.01, 0.1, 0.3, 0.67])
def test_equal_others_beside_a_huge_score_leave_no_slope_made_of_rounding(outlier, others):
    rating = floats(0.12, 0.98, 0.46, 0.35, 0.76, 0.87)
    found = left_out_line(floats(others, others, others, others, others, outlier), rating)
    assert found[-1] == pytest.approx(rating[:-1].mean())


@usual
@given(columns(scores, ratings, min_rows=3))
def test_the_line_agrees_with_polyfit(table):
    score, rating, _ = table
    found = left_out_line(score, rating)
    assert found == pytest.approx(line_by_polyfit(score.tolist(), rating.tolist()), abs=1e-7)
    assert ((found >= 0) & (found <= 1)).all()


def test_scores_in_the_wrong_order_by_hand():
    # others' means ¾, ½, ¼ against 0, ½, 1: error ½, the same as the baseline, so no skill
    found = rating_metrics(floats(2, 1, 0), floats(0, 0.5, 1), ints(4, 4, 4))[4]
    expected = {"n": 3, "alignment": 0.5, "mae": 0.5, "skill": 0.0, "spearman": -1.0, "concordance": 0.0}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("rating", [0.0, 0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("rows", [3, 5, 7])
def test_a_user_who_rates_all_alike_has_no_skill_and_no_order(rating, rows):
    found = rating_metrics(np.arange(rows) * 1.0, np.full(rows, rating), np.zeros(rows, dtype=np.int64))[0]
    assert (found["skill"], found["spearman"], found["concordance"]) == (None, None, None)
    assert found["mae"] == pytest.approx(0.0, abs=1e-12)


@usual
@given(columns(scores_or_failures, ratings, min_rows=3, groups=3))
def test_the_five_numbers_agree_with_the_long_way(table):
    by_user: dict[int, list[tuple[float, float]]] = {}
    for score, rating, user in zip(*(column.tolist() for column in table), strict=True):
        if not np.isnan(score):
            by_user.setdefault(user, []).append((score, rating))
    by_user = {user: rows for user, rows in by_user.items() if len(rows) >= MIN_ROWS}
    found = rating_metrics(*table)
    assert set(found) == set(by_user)
    for user, rows in by_user.items():
        x, y = [row[0] for row in rows], [row[1] for row in rows]
        n = len(rows)
        error = sum(abs(p - r) for p, r in zip(line_by_polyfit(x, y), y, strict=True)) / n
        guess = sum(abs(sum(y[:i] + y[i + 1 :]) / (n - 1) - y[i]) for i in range(n)) / n
        expected = {
            "n": n,
            "alignment": pytest.approx(1 - error, abs=1e-7),
            "mae": pytest.approx(error, abs=1e-7),
            "skill": pytest.approx(1 - error / guess, abs=1e-6) if len(set(y)) > 1 else None,
            "spearman": approx(stats.spearmanr(x, y).statistic) if min(len(set(x)), len(set(y))) > 1 else None,
            "concordance": approx(concordance_by_loops(x, y)),
        }
        assert set(found[user]) == {"n", *RANGES}
        assert found[user] == expected


@pytest.mark.parametrize(("metric", "least"), [("spearman", -1.0), ("concordance", 0.0), ("alignment", 0.0)])
def test_intervals_stay_within_the_range_of_their_metric(metric, least):
    found = mean_over_users(metric, [least, 1.0])
    assert (found.low, found.high) == (least, 1.0)


def test_nobody_has_no_mean_and_one_user_no_interval():
    nothing = Estimate(value=None, low=None, high=None, n=0)
    assert mean_over_users("mae", []) == mean_over_users("mae", [None, None]) == nothing
    assert mean_over_users("mae", [None, 0.3]) == Estimate(value=0.3, low=None, high=None, n=1)


@usual
@given(st.lists(st.one_of(st.none(), st.floats(-1, 1).map(lambda v: round(v, 6))), max_size=30), st.data())
def test_the_mean_over_users_agrees_with_scipys_t_interval(values, data):
    known = [v for v in values if v is not None]
    found = mean_over_users("spearman", data.draw(st.permutations(values)))
    assert found.n == len(known)
    if len(set(known)) > 1:
        expected = stats.ttest_1samp(known, 0.0).confidence_interval(0.95)
        within = max(-1.0, expected.low), min(1.0, expected.high)
        assert (found.low, found.high) == pytest.approx(within, abs=1e-9)
        assert found.low <= found.value <= found.high
    if known:
        total = 0.0
        for value in known:
            total += value
        assert found.value == pytest.approx(total / len(known), abs=1e-12)


# --- parts of the variance of votes: against double loops, and on simulated tables with known parts ---
TRUTH = {"shared": 0.25, "leaning": 0.1, "group": 0.1, "individual": 0.2, "noise": 0.35}


def simulated(seed: int, users: int, items: int, *, again: float = 0.0, individual: float = 0.2) -> Ratings:
    """A table of which 60 % is filled, `again` of it twice; the parts of its variance are `TRUTH`."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 4, users)
    taste = rng.normal(size=(users, 3)) @ rng.normal(size=(3, items)) / np.sqrt(3)
    means = np.sqrt(0.25) * rng.normal(size=items) + np.sqrt(0.1) * rng.normal(size=(users, 1))
    means = means + np.sqrt(0.1) * rng.normal(size=(4, items))[group] + np.sqrt(individual) * taste
    user, item = np.nonzero(rng.random((users, items)) < 0.6)
    twice = rng.random(len(user)) < again
    user, item = np.append(user, user[twice]), np.append(item, item[twice])
    return Ratings(user, item, means[user, item] + np.sqrt(0.35) * rng.normal(size=len(user)), group[user])


def mean_product(ratings: Ratings, linked: Callable[[int, int], bool]) -> float:
    values = ratings.values - ratings.values.mean()
    pairs = [(k, m) for k in range(len(values)) for m in range(len(values)) if k != m and linked(k, m)]
    return float(np.mean([values[k] * values[m] for k, m in pairs]))


def test_components_are_differences_of_mean_products_over_pairs_of_votes():
    ratings = simulated(0, 9, 6, again=0.4)
    assert ratings.groups is not None
    user, item, group = ratings.users.tolist(), ratings.items.tolist(), ratings.groups.tolist()
    nothing = mean_product(ratings, lambda k, m: group[k] != group[m] and item[k] != item[m])
    shared = mean_product(ratings, lambda k, m: group[k] != group[m] and item[k] == item[m])
    within = mean_product(ratings, lambda k, m: group[k] == group[m] and user[k] != user[m] and item[k] == item[m])
    apart = mean_product(ratings, lambda k, m: group[k] == group[m] and user[k] != user[m] and item[k] != item[m])
    leaning = mean_product(ratings, lambda k, m: user[k] == user[m] and item[k] != item[m])
    again = mean_product(ratings, lambda k, m: user[k] == user[m] and item[k] == item[m])
    assert variance_components(ratings) == pytest.approx(
        {
            "total": np.var(ratings.values) - nothing,
            "shared": shared - nothing,
            "leaning": leaning - apart,
            "group": within - shared,
            "repeated": again - nothing,
        }
    )


def test_parts_of_simulated_tables_are_recovered_where_items_repeat():
    tables = [variance_shares(simulated(seed, 100, 60, again=0.2)) for seed in range(12)]
    for part, truth in TRUTH.items():
        shares = [getattr(table, part) for table in tables]
        assert np.mean([share.value for share in shares]) == pytest.approx(truth, abs=0.03)
        assert sum(share.low <= truth <= share.high for share in shares) >= 10
    assert all(table is not None and table.repeated > 0 for table in tables)


def test_without_repeated_votes_the_individual_part_is_a_lower_bound():
    some, none = (variance_shares(simulated(1, 150, 60, individual=part)) for part in (0.2, 0.0))
    assert 0.03 < some.individual.low < some.individual.value < 0.2
    assert (none.individual.low, none.individual.value < 0.01) == (0, True)
    assert sum(
        share.value for share in (some.shared, some.leaning, some.group, some.individual, some.noise) if share
    ) == (pytest.approx(1))
    assert some.individual.detectable < some.individual.value


def test_nobody_is_predicted_from_the_vote_itself():
    noise = Ratings(*np.nonzero(np.ones((60, 20))), np.random.default_rng(0).normal(size=1200))
    value, error = predictable(noise)
    assert value < 2 * error


@pytest.mark.parametrize(
    ("users", "items", "values"), [(3, 20, "noise"), (20, 3, "noise"), (20, 20, "equal"), (0, 0, "noise")]
)
def test_too_little_to_tell_is_none(users, items, values):
    at = np.nonzero(np.ones((users, items)))
    rng = np.random.default_rng(0)
    assert (
        variance_shares(Ratings(*at, rng.normal(size=len(at[0])) if values == "noise" else np.ones(len(at[0])))) is None
    )
