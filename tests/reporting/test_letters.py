"""Significance letters say exactly who can be told apart."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.reporting.letters import letters


@pytest.mark.parametrize(
    ("models", "apart", "wanted"),
    [
        (0, [], []),
        (1, [], ["a"]),
        (3, [], ["a", "a", "a"]),
        (3, [(0, 1), (0, 2), (1, 2)], ["a", "b", "c"]),
        (3, [(0, 2)], ["a", "ab", "b"]),  # the middle one cannot be told from either
        (4, [(0, 2), (0, 3), (1, 3)], ["a", "ab", "bc", "c"]),
        (4, [(0, 1), (2, 3)], ["ab", "cd", "ac", "bd"]),  # a ring: no three are alike
    ],
)
def test_small_cases_by_hand(models: int, apart: list[tuple[int, int]], wanted: list[str]) -> None:
    assert letters(models, apart) == wanted


def single(text: str) -> set[str]:
    return set(re.findall(r"[a-z]\d*", text))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    models = draw(st.integers(1, 12))
    couples = list(combinations(range(models), 2))
    return models, draw(st.lists(st.sampled_from(couples), unique=True)) if couples else []


@given(graphs())
def test_two_models_share_a_letter_exactly_if_they_cannot_be_told_apart(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    models, apart = graph
    found = [single(text) for text in letters(models, apart)]
    assert all(found)
    for i, j in combinations(range(models), 2):
        assert bool(found[i] & found[j]) == ((i, j) not in apart)


@given(graphs())
def test_the_order_of_a_couple_does_not_matter(graph: tuple[int, list[tuple[int, int]]]) -> None:
    models, apart = graph
    assert letters(models, apart) == letters(models, [(j, i) for i, j in reversed(apart)])


def test_more_than_26_groups_can_still_be_told_apart() -> None:
    everybody = letters(60, list(combinations(range(60), 2)))
    assert everybody[25:28] == ["z", "a1", "b1"]
    assert len(set(everybody)) == 60
