"""People linked by mirror rows form one cluster, named after its smallest member."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from prb.stats.clusters import components
from tests.stats.strategies import usual

names = st.sampled_from([f"u{n:02d}" for n in range(14)])
links = st.lists(st.tuples(names, names), max_size=20)


def by_walking(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """From each name, walk to all that can be reached and take the smallest."""
    found = {}
    for start in {name for pair in pairs for name in pair}:
        reached = {start}
        for _ in pairs:
            for a, b in pairs:
                if a in reached or b in reached:
                    reached |= {a, b}
        found[start] = min(reached)
    return found


def test_two_islands_are_named_after_their_smallest_members() -> None:
    # ada-bob and cid-bob make one island of three, eve-dan another
    assert components([("bob", "ada"), ("cid", "bob"), ("eve", "dan")]) == {
        "ada": "ada",
        "bob": "ada",
        "cid": "ada",
        "dan": "dan",
        "eve": "dan",
    }


def test_a_late_link_joins_two_islands_that_were_already_named() -> None:
    assert components([("b", "c"), ("d", "e"), ("e", "c"), ("a", "d")]) == dict.fromkeys("abcde", "a")


def test_nobody_linked_means_no_components() -> None:
    assert components([]) == {}


def test_a_person_linked_to_themselves_stays_alone() -> None:
    assert components([("a", "a")]) == {"a": "a"}


def test_a_very_long_chain_needs_no_recursion() -> None:
    chain = [(f"{n:06d}", f"{n + 1:06d}") for n in range(50_000)]
    assert set(components(reversed(chain)).values()) == {"000000"}


@usual
@given(links)
def test_components_agree_with_walking_from_everyone(pairs: list[tuple[str, str]]) -> None:
    assert components(pairs) == by_walking(pairs)


@usual
@given(links.filter(bool))
def test_components_agree_with_scipy(pairs: list[tuple[str, str]]) -> None:
    people = sorted({name for pair in pairs for name in pair})
    rows, cols = ([people.index(pair[k]) for pair in pairs] for k in (0, 1))
    graph = coo_array((np.ones(len(pairs)), (rows, cols)), shape=(len(people), len(people)))
    _, label = connected_components(graph, directed=False)
    first = {int(k): people[int(np.flatnonzero(label == k)[0])] for k in set(label.tolist())}
    assert components(pairs) == {name: first[int(k)] for name, k in zip(people, label, strict=True)}


@usual
@given(links, st.randoms(use_true_random=False))
def test_neither_the_order_of_links_nor_their_direction_matters(pairs: list[tuple[str, str]], random: Random) -> None:
    turned = [(b, a) for a, b in pairs]
    random.shuffle(turned)
    assert components(turned) == components(pairs)


@usual
@given(links)
def test_linking_everyone_to_their_component_again_changes_nothing(pairs: list[tuple[str, str]]) -> None:
    found = components(pairs)
    assert components([*pairs, *found.items()]) == found
    assert components(found.items()) == found


@usual
@given(links)
def test_the_name_of_a_component_is_a_member_and_no_member_is_smaller(pairs: list[tuple[str, str]]) -> None:
    found = components(pairs)
    assert all(found[name] == name for name in found.values())
    assert all(cluster <= name for name, cluster in found.items())
