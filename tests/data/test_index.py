"""Which rows a limit takes."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from prb.data.load import load, sample_rows

LAYOUTS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30)
"""Per group of rows: its cluster, and whether it is a pair of twins."""


def rows_of(layout: list[tuple[int, bool]]) -> tuple[list[str], list[str]]:
    rows = [(f"g{n}", f"c{cluster}") for n, (cluster, twins) in enumerate(layout) for _ in range(1 + twins)]
    return [name for name, _ in rows], [cluster for _, cluster in rows]


def test_a_few_rows_of_mirror_come_from_many_clusters() -> None:
    index = load("mirror", limit=12).index
    assert len(index) == 12
    assert set(Counter(index.clusters).values()) == {2}
    assert len(set(index.tiers)) > 1
    assert len(set(index.categories)) > 1


def test_every_row_of_mirror_is_within_the_reach_of_its_size() -> None:
    assert load("mirror", limit=240).index.ids == load("mirror").index.ids
    clusters = Counter(load("mirror", limit=60).index.clusters)
    assert max(clusters.values()) - min(clusters.values()) <= 2


@given(LAYOUTS, st.integers(1, 40))
def test_groups_are_whole_and_no_cluster_is_far_ahead(layout, limit) -> None:
    together, clusters = rows_of(layout)
    sample = sample_rows(together, clusters, limit)
    names = {together[n] for n in sample}
    assert sample == [n for n, name in enumerate(together) if name in names]
    assert len(sample) <= limit or len(names) == 1
    if not any(twins for _, twins in layout):
        assert len(sample) == min(limit, len(together))
        taken, there = Counter(clusters[n] for n in sample), Counter(clusters)
        behind = [taken[c] for c in there if taken[c] < there[c]]
        assert max(taken.values()) - min(behind, default=max(taken.values())) <= 1


@given(LAYOUTS, st.integers(1, 40), st.randoms())
def test_the_order_of_the_rows_does_not_matter(layout, limit, random) -> None:
    together, clusters = rows_of(layout)
    sample = {together[n] for n in sample_rows(together, clusters, limit)}
    order = list(range(len(together)))
    random.shuffle(order)
    again = sample_rows([together[n] for n in order], [clusters[n] for n in order], limit)
    assert {together[order[n]] for n in again} == sample


@given(LAYOUTS)
def test_a_smaller_sample_is_part_of_a_larger_one(layout) -> None:
    layout = [(cluster, False) for cluster, _ in layout]
    together, clusters = rows_of(layout)
    samples = [set(sample_rows(together, clusters, limit)) for limit in range(1, len(together) + 1)]
    assert all(small < large for small, large in itertools.pairwise(samples))


def test_another_seed_draws_another_sample() -> None:
    together = [f"g{n // 2}" for n in range(40)]
    assert len({tuple(sample_rows(together, together, 6, seed)) for seed in range(20)}) > 10
