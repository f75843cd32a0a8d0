"""Parts of the variance of votes: against double loops, and on simulated tables with known parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prb.stats.variance import Ratings, components, predictable, variance_shares

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


def test_components_are_differences_of_mean_products_over_pairs_of_votes() -> None:
    ratings = simulated(0, 9, 6, again=0.4)
    assert ratings.groups is not None
    user, item, group = ratings.users.tolist(), ratings.items.tolist(), ratings.groups.tolist()
    nothing = mean_product(ratings, lambda k, m: group[k] != group[m] and item[k] != item[m])
    shared = mean_product(ratings, lambda k, m: group[k] != group[m] and item[k] == item[m])
    within = mean_product(ratings, lambda k, m: group[k] == group[m] and user[k] != user[m] and item[k] == item[m])
    apart = mean_product(ratings, lambda k, m: group[k] == group[m] and user[k] != user[m] and item[k] != item[m])
    leaning = mean_product(ratings, lambda k, m: user[k] == user[m] and item[k] != item[m])
    again = mean_product(ratings, lambda k, m: user[k] == user[m] and item[k] == item[m])
    assert components(ratings) == pytest.approx(
        {
            "total": np.var(ratings.values) - nothing,
            "shared": shared - nothing,
            "leaning": leaning - apart,
            "group": within - shared,
            "repeated": again - nothing,
        }
    )


def test_parts_of_simulated_tables_are_recovered_where_items_repeat() -> None:
    tables = [variance_shares(simulated(seed, 100, 60, again=0.2)) for seed in range(12)]
    for part, truth in TRUTH.items():
        shares = [getattr(table, part) for table in tables]
        assert np.mean([share.value for share in shares]) == pytest.approx(truth, abs=0.03)
        assert sum(share.low <= truth <= share.high for share in shares) >= 10
    assert all(table is not None and table.repeated > 0 for table in tables)


def test_without_repeated_votes_the_individual_part_is_a_lower_bound() -> None:
    some, none = (variance_shares(simulated(1, 150, 60, individual=part)) for part in (0.2, 0.0))
    assert some is not None
    assert none is not None
    assert 0.03 < some.individual.low < some.individual.value < 0.2
    assert (none.individual.low, none.individual.value < 0.01) == (0, True)
    assert sum(
        share.value for share in (some.shared, some.leaning, some.group, some.individual, some.noise) if share
    ) == (pytest.approx(1))
    assert some.individual.detectable < some.individual.value


def test_fewer_users_show_only_larger_effects() -> None:
    few, many = (variance_shares(simulated(2, users, 40, again=0.2)) for users in (20, 160))
    assert few is not None
    assert many is not None
    assert few.individual.detectable > 1.5 * many.individual.detectable


def test_nobody_is_predicted_from_the_vote_itself() -> None:
    noise = Ratings(*np.nonzero(np.ones((60, 20))), np.random.default_rng(0).normal(size=1200))
    value, error = predictable(noise)
    assert value < 2 * error


@pytest.mark.parametrize(
    ("users", "items", "values"), [(3, 20, "noise"), (20, 3, "noise"), (20, 20, "equal"), (0, 0, "noise")]
)
def test_too_little_to_tell_is_none(users: int, items: int, values: str) -> None:
    at = np.nonzero(np.ones((users, items)))
    rng = np.random.default_rng(0)
    assert (
        variance_shares(Ratings(*at, rng.normal(size=len(at[0])) if values == "noise" else np.ones(len(at[0])))) is None
    )
