from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.blind import (
    Giveaway,
    blind_margins,
    bradley_terry,
    credits_of,
    fold_groups,
    giveaways,
    room_above,
    widened,
)
from prb.stats.estimate import share
from prb.stats.paired import Difference
from prb.types import Estimate
from tests.stats.strategies import usual

Answers = list[tuple[frozenset[str], frozenset[str]]]
WORDS = st.frozensets(st.sampled_from("abcd"), max_size=4)


def test_too_few_clusters_are_not_measured() -> None:
    rows = np.ones((9, 2))
    assert blind_margins(rows, -rows, [str(n) for n in range(9)], folds=5) is None


def test_a_feature_that_gives_chosen_away_is_found_out_of_fold() -> None:
    rng = np.random.default_rng(0)
    chosen, rejected = rng.normal(size=(60, 8)), rng.normal(size=(60, 8))
    chosen[:, 3] += 5
    margins = blind_margins(chosen, rejected, [str(n) for n in range(60)])
    assert margins is not None
    assert np.mean(credits_of(margins)) > 0.95


def test_mirror_twins_in_one_cluster_stand_at_exactly_half() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(30, 5)), rng.normal(size=(30, 5))
    chosen, rejected = np.concatenate([a, b]), np.concatenate([b, a])
    margins = blind_margins(chosen, rejected, [str(n % 30) for n in range(60)])
    assert margins is not None
    assert np.mean(credits_of(margins)) == 0.5


def test_twins_split_over_folds_would_push_it_below_chance() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(40, 60)), rng.normal(size=(40, 60))
    chosen, rejected = np.concatenate([a, b]), np.concatenate([b, a])
    margins = blind_margins(chosen, rejected, [str(n) for n in range(80)], strength=10.0)
    assert margins is not None
    assert np.mean(credits_of(margins)) < 0.4


def test_weights_agree_with_a_slow_gradient_descent() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 3)) + np.array([0.5, 0, 0])
    scale = np.sqrt((x**2).mean(axis=0))
    z, w = x / scale, np.zeros(3)
    for _ in range(20_000):
        # scikit-learn: ½|w|² + C Σ log(1 + exp(-w·z)), every difference there twice
        w -= 0.01 * (w - 2 * 0.1 * (z / (1 + np.exp(z @ w))[:, None]).sum(axis=0))
    assert bradley_terry(x, 0.1) == pytest.approx(w / scale, abs=1e-3)


def test_ties_count_half() -> None:
    assert credits_of(np.array([0.2, 0.0, -1.0])) == [1.0, 0.5, 0.0]


def test_users_and_near_duplicate_questions_stay_together() -> None:
    users, questions = ["a", "a", "b", "c", "d"], ["q1", "q2", "q2'", "q3", "q4"]
    found = fold_groups(users, questions, [("q2", "q2'")], least=3)
    assert found is not None
    groups, what = found
    assert what == "person and question"
    assert groups[0] == groups[1] == groups[2]
    assert len(set(groups)) == 3


def test_where_everybody_asks_the_same_questions_only_those_are_kept_whole() -> None:
    users = [p for p in "abcd" for _ in range(6)]
    questions = [f"q{n}" for _ in range(4) for n in range(6)]
    found = fold_groups(users, questions, [], least=4)
    assert found is not None
    assert found[1] == "question"
    assert len(set(found[0])) == 6
    assert [found[0][n] == found[0][n + 6] for n in range(6)] == [True] * 6
    assert fold_groups(users, questions, [], least=7) is None


def pair(chosen: str, rejected: str) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(chosen), frozenset(rejected)


def test_a_word_that_only_chosen_answers_have_is_found_by_a_sign_test() -> None:
    answers = [pair("xy", "y")] * 14 + [pair("y", "xy")] * 2
    found, tested = giveaways(answers, [str(n) for n in range(16)])
    # y stands in both answers of each pair and tells nothing; x: 14 against 2, z = 12 / 4
    assert tested == 1
    assert found == [Giveaway("x", 14, 2, pytest.approx(2 * stats.norm.sf(3)))]


def test_rows_of_one_user_count_as_one_voice() -> None:
    answers = [pair("x", "")] * 16
    alone, _ = giveaways(answers, [str(n) for n in range(16)])
    together, _ = giveaways(answers, [str(n % 2) for n in range(16)])
    assert alone[0].p == pytest.approx(2 * stats.norm.sf(4))
    assert together[0].p == pytest.approx(2 * stats.norm.sf(np.sqrt(2)))


def test_rare_words_are_not_tested_and_many_are_corrected_for() -> None:
    answers = [pair("x", "")] * 9 + [pair("ab", "")] * 10
    found, tested = giveaways(answers, [str(n) for n in range(19)])
    assert (tested, {g.word for g in found}) == (2, {"a", "b"})
    assert found[0].p == pytest.approx(2 * 2 * stats.norm.sf(np.sqrt(10)))


@usual
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30))
def test_mirror_twins_cancel(answers: Answers) -> None:
    twins = [*answers, *((rejected, chosen) for chosen, rejected in answers)]
    clusters = [str(n) for n in range(len(answers))] * 2
    found, _ = giveaways(twins, clusters, least=1)
    assert all(g.p == 1 and g.chosen == g.rejected for g in found)


@usual
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30))
def test_swapping_the_sides_changes_nothing_but_the_side(answers: Answers) -> None:
    clusters = [str(n // 2) for n in range(len(answers))]
    forward, _ = giveaways(answers, clusters, least=1)
    backward, _ = giveaways([(b, a) for a, b in answers], clusters, least=1)
    assert {(g.word, g.chosen, g.rejected, g.p) for g in forward} == {
        (g.word, g.rejected, g.chosen, g.p) for g in backward
    }


def test_words_that_mean_nothing_are_found_no_more_often_than_chance_allows() -> None:
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(100):
        sides = rng.integers(0, 2, (60, 20))
        answers = [
            (frozenset(map(str, np.flatnonzero(row))), frozenset(map(str, np.flatnonzero(1 - row)))) for row in sides
        ]
        found, tested = giveaways(answers, [str(n) for n in range(60)])
        assert tested == 20
        wrong += found[0].p < 0.05
    assert wrong <= 12


def test_a_fitted_learner_has_a_wider_interval_by_hand() -> None:
    # five folds: 1 + 5/4 = 9/4 times the variance, so 3/2 times the width
    found = widened(Estimate(value=0.6, low=0.5, high=0.66, n=80), 5)
    assert (found.value, found.low, found.high, found.n) == (0.6, pytest.approx(0.45), pytest.approx(0.69), 80)
    assert widened(Estimate(value=0.9, low=0.1, high=1.0, n=8), 2).low == 0.0
    exact = Estimate(value=0.5, low=0.5, high=0.5, n=80)
    assert widened(exact, 5) == exact


def test_the_room_above_a_learner_is_as_uncertain_as_the_learner() -> None:
    gap = Difference(value=0.2, low=0.1, high=0.3, p=0.01, n=80, dropped=0, test="sign-flip")
    found = room_above(gap, Estimate(value=0.6, low=0.5, high=0.66, n=80), 5)
    # below: 0.1² and what 3/2 of the learner's upper half width 0.06 adds to it, 5/4 · 0.06²
    assert found.low == pytest.approx(0.2 - (0.01 + 1.25 * 0.0036) ** 0.5)
    assert found.high == pytest.approx(0.2 + (0.01 + 1.25 * 0.01) ** 0.5)
    assert (found.value, found.p, found.test) == (0.2, None, "none")


@usual
@given(st.floats(0, 1), st.floats(0, 0.3), st.floats(0, 0.3), st.integers(2, 20))
def test_a_widened_interval_holds_the_narrow_one(value: float, below: float, above: float, folds: int) -> None:
    narrow = Estimate(value=value, low=max(0.0, value - below), high=min(1.0, value + above), n=9)
    wide = widened(narrow, folds)
    assert 0 <= wide.low <= narrow.low + 1e-12
    assert narrow.high - 1e-12 <= wide.high <= 1


def test_on_pure_noise_the_learner_is_held_to_be_at_one_half() -> None:
    rng, held, narrow = np.random.default_rng(1), 0, 0
    for trial in range(40):
        features = rng.normal(size=(60, 40)) + np.outer(rng.normal(size=60), np.ones(40))
        margins = blind_margins(features, np.zeros((60, 40)), [str(n) for n in range(60)], strength=1e-3, seed=trial)
        estimate = share(np.array(credits_of(margins)), np.arange(60))
        wide = widened(estimate, 5)
        held += wide.low <= 0.5 <= wide.high
        narrow += estimate.low <= 0.5 <= estimate.high
    assert held >= 36  # 95 % of 40 is 38, with a standard error of 1.4
    assert narrow < held
