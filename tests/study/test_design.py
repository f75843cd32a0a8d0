"""Who judges what is balanced by construction, and fixed by the seed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.errors import BadInput
from prb.study.design import assign, balance_loads, balance_orders

SIZES = st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(1, 8), st.integers(0, 5)).filter(
    lambda s: s[2] <= s[1]
)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_every_item_has_its_annotators_and_loads_differ_by_at_most_one(size: tuple[int, int, int, int]) -> None:
    items, annotators, overlap, seed = size
    edges = balance_loads([str(n) for n in range(items)], annotators=annotators, overlap=overlap, seed=seed)
    assert len(set(edges)) == len(edges) == items * overlap
    assert set(Counter(item for _, item in edges).values()) == {overlap}
    load = Counter(dict.fromkeys(range(annotators), 0))
    load.update(a for a, _ in edges)
    assert max(load.values()) - min(load.values()) <= 1


@settings(max_examples=80, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1), st.integers(0, 3))
def test_both_orders_are_balanced_for_every_annotator_and_every_item(edges: set[tuple[int, int]], seed: int) -> None:
    flipped = balance_orders(sorted(edges), seed=seed)
    for side in (0, 1):
        for node in {edge[side] for edge in edges}:
            sides = [1 if flipped[e] else -1 for e in edges if e[side] == node]
            assert abs(sum(sides)) <= 1, (side, node)


def test_orders_look_like_coins_and_differ_with_the_seed() -> None:
    edges = [(a, i) for a in range(4) for i in range(50)]
    one, two = balance_orders(edges, seed=1), balance_orders(edges, seed=2)
    assert balance_orders(edges, seed=1) == one
    assert 0.3 < sum(one[e] != two[e] for e in edges) / len(edges) < 0.7
    runs = sum(one[0, i] != one[0, i + 1] for i in range(49))
    assert 10 < runs < 40  # neither blocks nor strict alternation


def test_twins_go_to_different_annotators_while_there_are_enough() -> None:
    groups = [str(n // 2) for n in range(40)]
    edges = balance_loads(groups, annotators=6, overlap=2, seed=0)
    seen = Counter((a, groups[i]) for a, i in edges)
    assert sum(n > 1 for n in seen.values()) <= 4  # balance of loads comes first


def test_annotator_pairs_share_about_equally_many_items() -> None:
    edges = balance_loads([str(n) for n in range(100)], annotators=5, overlap=2, seed=0)
    who = [sorted(a for a, i in edges if i == item) for item in range(100)]
    met = Counter(map(tuple, who))
    assert len(met) == 10
    assert max(met.values()) - min(met.values()) <= 3  # a hundred items, ten annotator pairs


def test_an_overlap_needs_as_many_annotators() -> None:
    with pytest.raises(BadInput, match="--overlap 3 needs at least 3 annotators"):
        balance_loads(["x"], annotators=2, overlap=3, seed=0)


def test_everybody_meets_every_check_in_the_middle_of_the_work() -> None:
    tasks = assign([str(n) for n in range(30)], annotators=5, overlap=2, checks=2, seed=3)
    for annotator in range(5):
        own = sorted((t for t in tasks if t.annotator == annotator), key=lambda t: t.position)
        assert [t.position for t in own] == list(range(14))
        places = [t.position for t in own if t.item >= 30]
        assert len(places) == 2
        assert 0 not in places
        assert places[1] - places[0] > 2
