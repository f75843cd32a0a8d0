from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.data.load import load
from prb.data.named.simulate import LEVELS, World, bayes_accuracy, contest, fragments, preference, taste, truth
from prb.data.schema import row_problems
from prb.data.source import open_source
from prb.errors import BadInput, BadSpec

SMALL = "simulate?persons=40&pairs=4"


def rows_of(spec: str, count: int | None = None) -> list[dict[str, Any]]:
    return [row.data for row in islice(open_source(spec).rows(), count)]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    groups = draw(st.sampled_from([1, 2, 4, 6, 16]))
    return World(
        groups=groups,
        persons=max(2, groups) * draw(st.integers(1, 3)),
        pairs=draw(st.integers(3, 6)),
        posts=draw(st.integers(0, 9)),
        noise=draw(st.sampled_from([0.0, 0.1, 0.25, 2.0])),
        individual=draw(st.sampled_from([0.0, 0.3, 1.0])),
        mirror=draw(st.booleans()) and groups > 1,
        split=draw(st.sampled_from(["persons", "seen"])),
        seed=draw(st.integers(0, 5)),
    )


def spec_of(world: World) -> str:
    return "simulate?" + "&".join(f"{key}={value}" for key, value in vars(world).items())


# --- rows


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_every_world_makes_sound_rows(world) -> None:
    source = open_source(spec_of(world))
    rows = [row.data for row in source.rows()]
    assert [row_problems(row, "pairs") for row in rows] == [[]] * len(rows)
    assert len({row["id"] for row in rows}) == len(rows) == world.persons * world.pairs
    assert {len(row["profile"]) for row in rows} == {world.posts}
    assert not any("{" in row["chosen"] + row["question"] for row in rows)
    for row in rows:
        assert all(aspect["evidence"] in row["narrative"] for aspect in row["rubric_aspects"])


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_the_name_of_a_world_makes_it_again(world) -> None:
    name = open_source(spec_of(world)).name
    assert open_source(name) == open_source(spec_of(world))


def test_a_row_depends_on_the_seed_and_its_index_alone() -> None:
    few, many = rows_of("simulate?persons=8"), rows_of("simulate?persons=800", 64)
    assert few == many
    assert few == rows_of("simulate?persons=8")
    assert few != rows_of("simulate?persons=8&seed=1")


# --- users


@pytest.mark.parametrize("groups", [2, 4, 6, 16])
@pytest.mark.parametrize("individual", [0, 0.4, 1])
def test_tastes_cancel_exactly_in_every_split(groups, individual) -> None:
    world = World(persons=groups * 20, groups=groups, individual=individual)
    tastes = truth(world)
    splits = np.array([world.split_of(user, 0) for user in range(world.persons)])
    assert set(splits) == {"train", "validation", "test"}
    for split in set(splits):
        np.testing.assert_allclose(tastes[splits == split].sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(tastes, axis=1), 1)


def test_four_groups_are_two_orthogonal_axes_with_two_signs() -> None:
    first, second, third, fourth = truth("simulate?persons=4")
    np.testing.assert_array_equal(first, -second)
    np.testing.assert_array_equal(third, -fourth)
    assert first @ third == 0
    # by hand: 1, -3/4, 9/16, -27/64 over the root of the sum of their squares
    weights = np.array([1, -0.75, 0.5625, -0.421875])
    np.testing.assert_allclose(first[::2], weights / np.sqrt((weights**2).sum()))
    assert not first[1::2].any()


def test_posts_take_the_users_side() -> None:
    for row in rows_of("simulate?persons=8&pairs=1&posts=12"):
        weights = taste(World(persons=8), int(row["user"][1:]))
        shown = Counter(_attribute(post["text"]) for post in row["profile"])
        for (index, pole), count in shown.items():
            assert weights[index] * pole > 0
            share = 12 * abs(weights[index]) / sum(map(abs, weights))
            assert abs(count - share) < 1


def _attribute(text: str) -> tuple[int, int]:
    """By looking through all fragments: which attribute this post is about, and which pole it wants."""
    for index, manner in enumerate(fragments().manners):
        for pole, forms in ((1, manner.posts[0]), (-1, manner.posts[1])):
            if any(text == form.replace("{topic}", topic.name) for form in forms for topic in fragments().topics):
                return index, pole
    raise AssertionError(text)


# --- labels


@given(
    st.lists(st.floats(-1, 1), min_size=8, max_size=8),
    st.lists(st.sampled_from(LEVELS), min_size=16, max_size=16),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_opposite_tastes_make_opposite_choices(weights, values, noise) -> None:
    """So a model that ignores the user is at chance in expectation, whatever it says."""
    first, second = values[:8], values[8:]
    p = preference(tuple(weights), first, second, noise)
    assert p + preference(tuple(-w for w in weights), first, second, noise) == pytest.approx(1)
    assert p + preference(tuple(weights), second, first, noise) == pytest.approx(1)


def test_probabilities_are_those_of_bradley_and_terry() -> None:
    weights = (0.5, -0.25, 0, 0, 0, 0, 0, 0.125)
    first, second = (1, 0, 1, 0, 0, 0, 0, 1), (-1, 1, 0, 0, 0, 0, 0, -1)
    # gain: 0.5·2 + 0.25·1 + 0.125·2 = 1.5
    assert preference(weights, first, second, 0.5) == pytest.approx(1 / (1 + np.exp(-3)))
    assert preference(weights, first, second, 0) == 1
    assert preference(weights, second, first, 1e-9) == 0


def test_labels_follow_their_probabilities() -> None:
    """The first-drawn answer wins as often as it should, in every band of probability."""
    world = World(persons=1000, noise=0.6)
    drawn = [contest(world, user, n, taste(world, user)) for user in range(world.persons) for n in range(world.pairs)]
    first_wins = [(1 - c.probability if c.swapped else c.probability, not c.swapped) for c in drawn]
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        band = [(p, won) for p, won in first_wins if low <= p < low + 0.2]
        surplus = sum(won - p for p, won in band)
        assert abs(surplus) < 3.5 * sum(p * (1 - p) for p, _ in band) ** 0.5
        assert len(band) > 500


@settings(max_examples=15, deadline=None)
@given(worlds())
def test_the_bayes_accuracy_is_that_of_the_rows(world) -> None:
    """Second implementation: from the attributes written in the rows, and the truth."""
    best = defaultdict(list)
    tastes = truth(world)
    for row in rows_of(spec_of(world)):
        chosen, rejected = (np.array(list(row["attributes"][name].values())) for name in ("chosen", "rejected"))
        gain = tastes[int(row["user"][1:])] @ (chosen - rejected)
        if world.noise:
            best[row["split"]].append(1 / (1 + np.exp(-abs(gain) / world.noise)))
        else:
            best[row["split"]].append(1.0 if abs(gain) > 1e-12 else 0.5)
    for split, values in best.items():
        assert bayes_accuracy(world, split) == pytest.approx(np.mean(values))


def test_mirror_twins_swap_labels_so_that_any_user_blind_score_is_exactly_at_chance() -> None:
    dataset = load("simulate?persons=40&mirror=true")
    assert min(dataset.index.twins) >= 0
    clusters = dataset.index.clusters
    assert [clusters[twin] for twin in dataset.index.twins] == clusters
    longer = [len(pair.chosen) > len(pair.rejected) for pair in dataset]  # type: ignore[union-attr]
    ties = sum(len(pair.chosen) == len(pair.rejected) for pair in dataset)  # type: ignore[union-attr]
    assert sum(longer) + ties / 2 == len(dataset) / 2


# --- splits


def test_by_persons_nobody_is_in_two_splits_and_groups_balance() -> None:
    rows = rows_of("simulate?persons=80&pairs=2")
    homes = {row["user"]: row["split"] for row in rows}
    assert all(homes[row["user"]] == row["split"] for row in rows)
    counted = Counter((row["split"], row["groups"]["taste"]) for row in rows)
    balanced = {split: {counted[split, f"g{g}"] for g in range(4)} for split in set(homes.values())}
    assert balanced == {"train": {28}, "validation": {4}, "test": {8}}


def test_seen_users_get_new_topics_in_the_test_split() -> None:
    rows = rows_of("simulate?persons=80&split=seen")
    counted = Counter((row["user"], row["split"]) for row in rows)
    assert {n for (_, split), n in counted.items() if split == "train"} == {5}
    assert {n for (_, split), n in counted.items() if split == "test"} == {2}
    by_split = defaultdict(set)
    for row in rows:
        by_split[row["split"]].add(row["topic"])
    assert not by_split["train"] & by_split["test"]
    assert not (by_split["train"] | by_split["test"]) & by_split["validation"]


# --- wrong settings


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("groups=3", "even number"),
        ("groups=18", "less than or equal to 16"),
        ("persons=10", "multiple of 4"),
        ("persons=0", "greater than or equal to 1"),
        ("pairs=2&split=seen", "pairs must be at least 3"),
        ("noise=nan", "finite number"),
        ("individual=1.5", "less than or equal to 1"),
        ("groups=1&mirror=true", "opposite tastes"),
        ("split=topic", "split='topic'"),
        ("people=3", "no option"),
    ],
)
def test_impossible_worlds_are_refused_with_a_reason(options, says) -> None:
    with pytest.raises(BadInput, match=says):
        open_source(f"simulate?{options}")


def test_the_truth_about_real_users_is_unknown() -> None:
    with pytest.raises(BadSpec, match="not simulated"):
        truth("mirror")
    with pytest.raises(BadSpec, match="no rows in split"):
        bayes_accuracy("simulate", "dev")
