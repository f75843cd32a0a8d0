"""Models share a letter exactly if they do not differ significantly."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.reporting.pages.leaderboard import significance_letters


@pytest.mark.parametrize(
    ("models", "differing", "wanted"),
    [
        (0, [], []),
        (1, [], ["a"]),
        (3, [], ["a", "a", "a"]),
        (3, [(0, 1), (0, 2), (1, 2)], ["a", "b", "c"]),
        (3, [(0, 2)], ["a", "ab", "b"]),  # the middle one differs from neither
        (4, [(0, 2), (0, 3), (1, 3)], ["a", "ab", "bc", "c"]),
        (4, [(0, 1), (2, 3)], ["ab", "cd", "ac", "bd"]),  # a ring: no three are alike
    ],
)
def test_small_cases_by_hand(models: int, differing: list[tuple[int, int]], wanted: list[str]) -> None:
    assert significance_letters(models, differing) == wanted


def single(text: str) -> set[str]:
    return set(re.findall(r"[a-z]\d*", text))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    models = draw(st.integers(1, 12))
    twos = list(combinations(range(models), 2))
    return models, draw(st.lists(st.sampled_from(twos), unique=True)) if twos else []


@given(graphs())
def test_two_models_share_a_letter_exactly_if_they_do_not_differ(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    models, differing = graph
    found = [single(text) for text in significance_letters(models, differing)]
    assert all(found)
    for i, j in combinations(range(models), 2):
        assert bool(found[i] & found[j]) == ((i, j) not in differing)


@given(graphs())
def test_the_order_of_two_models_does_not_matter(graph: tuple[int, list[tuple[int, int]]]) -> None:
    models, differing = graph
    assert significance_letters(models, differing) == significance_letters(
        models, [(j, i) for i, j in reversed(differing)]
    )


def test_more_than_26_groups_are_still_unambiguous() -> None:
    everybody = significance_letters(60, list(combinations(range(60), 2)))
    assert everybody[25:28] == ["z", "a1", "b1"]
    assert len(set(everybody)) == 60
