from __future__ import annotations

import numpy as np
import pytest

from prb.stats.blind import alike, apart, blind_margins, bradley_terry, credits_of


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


def test_rows_alike_are_found_across_blocks() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(50, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    slow = {(i, j) for i in range(50) for j in range(i) if rows[i] @ rows[j] >= 0.8}
    assert slow
    for block in (7, 50, 1024):
        assert set(alike(rows, 0.8, block=block)) == slow


def test_people_and_near_duplicate_questions_stay_together() -> None:
    people, questions = ["a", "a", "b", "c", "d"], ["q1", "q2", "q2'", "q3", "q4"]
    found = apart(people, questions, [("q2", "q2'")], least=3)
    assert found is not None
    groups, what = found
    assert what == "person and question"
    assert groups[0] == groups[1] == groups[2]
    assert len(set(groups)) == 3


def test_where_everybody_asks_the_same_questions_only_those_are_kept_whole() -> None:
    people = [p for p in "abcd" for _ in range(6)]
    questions = [f"q{n}" for _ in range(4) for n in range(6)]
    found = apart(people, questions, [], least=4)
    assert found is not None
    assert found[1] == "question"
    assert len(set(found[0])) == 6
    assert [found[0][n] == found[0][n + 6] for n in range(6)] == [True] * 6
    assert apart(people, questions, [], least=7) is None
