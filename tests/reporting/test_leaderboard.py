"""A model's ranks are all those that the significant differences leave open."""

from __future__ import annotations

import pytest

from prb.reporting.leaderboard import rank_ranges


@pytest.mark.parametrize(
    ("ranked", "better", "expected"),
    [
        ([0], [], [(1, 1), None, None, None]),
        ([0, 1, 2], [], [(1, 3), (1, 3), (1, 3), None]),
        ([0, 1, 2], [(0, 1), (0, 2), (1, 2)], [(1, 1), (2, 2), (3, 3), None]),
        ([0, 1, 2], [(0, 2)], [(1, 2), (1, 3), (2, 3), None]),  # the middle one differs from neither
        ([0, 1, 2, 3], [(0, 2), (0, 3), (1, 3)], [(1, 2), (1, 3), (2, 4), (3, 4)]),
        ([0, 2], [(0, 1), (1, 2)], [(1, 2), None, (1, 2), None]),  # who is not ranked is not counted either
    ],
)
def test_ranks_by_hand(
    ranked: list[int], better: list[tuple[int, int]], expected: list[tuple[int, int] | None]
) -> None:
    tests = [{"a": winner, "b": loser, "value": 1.0, "p_holm": 0.01} for winner, loser in better]
    tests += [{"a": test["b"], "b": test["a"], "value": 1.0, "p_holm": 0.06} for test in tests]  # not significant
    assert rank_ranges(4, ranked, tests) == expected
    turned = [{**test, "a": test["b"], "b": test["a"], "value": -1.0} for test in tests]
    assert rank_ranges(4, ranked, turned) == expected
