from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.giveaway import Giveaway, giveaways
from tests.stats.strategies import usual

Answers = list[tuple[frozenset[str], frozenset[str]]]
WORDS = st.frozensets(st.sampled_from("abcd"), max_size=4)


def pair(chosen: str, rejected: str) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(chosen), frozenset(rejected)


def test_a_word_that_only_chosen_answers_have_is_found_by_a_sign_test() -> None:
    answers = [pair("xy", "y")] * 14 + [pair("y", "xy")] * 2
    found, looked_at = giveaways(answers, [str(n) for n in range(16)])
    # y stands in both answers of each pair and tells nothing; x: 14 against 2, z = 12 / 4
    assert looked_at == 1
    assert found == [Giveaway("x", 14, 2, pytest.approx(2 * stats.norm.sf(3)))]


def test_rows_of_one_person_count_as_one_voice() -> None:
    answers = [pair("x", "")] * 16
    alone, _ = giveaways(answers, [str(n) for n in range(16)])
    together, _ = giveaways(answers, [str(n % 2) for n in range(16)])
    assert alone[0].p == pytest.approx(2 * stats.norm.sf(4))
    assert together[0].p == pytest.approx(2 * stats.norm.sf(np.sqrt(2)))


def test_rare_words_are_not_looked_at_and_many_are_corrected_for() -> None:
    answers = [pair("x", "")] * 9 + [pair("ab", "")] * 10
    found, looked_at = giveaways(answers, [str(n) for n in range(19)])
    assert (looked_at, {g.word for g in found}) == (2, {"a", "b"})
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
        found, looked_at = giveaways(answers, [str(n) for n in range(60)])
        assert looked_at == 20
        wrong += found[0].p < 0.05
    assert wrong <= 12
