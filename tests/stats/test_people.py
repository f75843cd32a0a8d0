"""How accuracy is spread over people, groups and categories."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prb.stats.estimate import Floats, Ints, share
from prb.stats.people import by_group, by_label, spread, user_means
from tests.stats.strategies import NAN, columns, credit, credit_or_failure, floats, ints, orders, usual

labels = st.sampled_from(("art", "life", "society", "", None))


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Floats, Ints, list[str | None]]:
    values, clusters = draw(columns(credit_or_failure))
    return values, clusters, draw(st.lists(labels, min_size=len(values), max_size=len(values)))


def test_accuracy_by_label_by_hand() -> None:
    found = by_label(floats(1, 0, 1, NAN, 1, 0.5), ints(0, 1, 2, 3, 4, 5), ["b", "b", "a", "a", None, ""])
    assert list(found) == ["a", "b"]
    assert (found["a"].value, found["a"].n, found["a"].failed) == (1.0, 1, 1)
    assert (found["b"].value, found["b"].n, found["b"].failed) == (0.5, 2, 0)
    expected = stats.binomtest(1, 2).proportion_ci(method="wilson")
    assert (found["b"].low, found["b"].high) == pytest.approx((expected.low, expected.high))


def test_a_label_whose_rows_all_failed_is_shown_without_a_value() -> None:
    found = by_label(floats(NAN, NAN), ints(0, 1), ["x", "x"])
    assert (found["x"].value, found["x"].n, found["x"].failed) == (None, 0, 2)


def test_rows_without_labels_have_no_table() -> None:
    assert by_label(floats(1, 0), ints(0, 1), [None, ""]) == {}
    assert by_label(floats(), ints(), []) == {}


@usual
@given(labelled())
def test_accuracy_by_label_agrees_with_a_loop(table: tuple[Floats, Ints, list[str | None]]) -> None:
    values, clusters, names = table
    slow: dict[str, tuple[list[float], list[int], int]] = {}
    for value, cluster, name in zip(values.tolist(), clusters.tolist(), names, strict=True):
        if name:
            kept, codes, failed = slow.get(name, ([], [], 0))
            if np.isnan(value):
                slow[name] = (kept, codes, failed + 1)
            else:
                slow[name] = ([*kept, value], [*codes, cluster], failed)
    expected = {name: share(floats(*v), ints(*c), failed=f) for name, (v, c, f) in slow.items()}
    assert by_label(values, clusters, names) == expected


@usual
@given(labelled())
def test_labels_split_the_rows_without_loss(table: tuple[Floats, Ints, list[str | None]]) -> None:
    values, _, names = table
    found = by_label(*table)
    inside = np.array([bool(name) for name in names])
    assert sum(e.n for e in found.values()) == int((~np.isnan(values))[inside].sum())
    assert sum(e.failed for e in found.values()) == int(np.isnan(values)[inside].sum())
    won = sum(e.n * e.value for e in found.values() if e.value is not None)
    assert won == pytest.approx(np.nansum(values[inside]), abs=1e-9)


@usual
@given(labelled())
def test_failures_of_a_label_never_change_its_accuracy(table: tuple[Floats, Ints, list[str | None]]) -> None:
    values, clusters, names = table
    more = (np.append(values, NAN), np.append(clusters, 999), [*names, "art"])
    before, after = by_label(*table), by_label(*more)
    old = before["art"].as_dict() if "art" in before else share(floats(), ints()).as_dict()
    assert after.pop("art").as_dict() == {**old, "failed": old["failed"] + 1}
    assert after == {name: e for name, e in before.items() if name != "art"}


def test_accuracy_by_group_by_hand() -> None:
    groups = [{"age": "young", "region": "north"}, {"age": "old"}, {"age": "young"}, {"age": "old"}, {}]
    found = by_group(floats(1, 0, 1, 0.5, 0), ints(0, 1, 2, 3, 4), groups)
    assert list(found) == ["age", "region"]
    # young 1, old ¼
    assert (found["age"]["worst"], found["age"]["gap"]) == ("old", 0.75)
    assert found["age"]["groups"]["young"]["value"] == 1.0
    assert found["age"]["groups"]["old"] == share(floats(0, 0.5), ints(1, 3)).as_dict()
    assert (found["region"]["worst"], found["region"]["gap"], found["region"]["groups"]["north"]["n"]) == (
        "north",
        0.0,
        1,
    )


def test_a_group_that_only_failed_is_neither_worst_nor_part_of_the_gap() -> None:
    groups = [{"age": "old"}, {"age": "young"}, {"age": "young"}]
    found = by_group(floats(NAN, 1, 0), ints(0, 1, 2), groups)["age"]
    assert (found["worst"], found["gap"], found["groups"]["old"]["failed"]) == ("young", 0.0, 1)
    nobody = by_group(floats(NAN, NAN, NAN), ints(0, 1, 2), groups)["age"]
    assert (nobody["worst"], nobody["gap"]) == (None, None)


def test_people_without_attributes_have_no_groups() -> None:
    assert by_group(floats(1, 0), ints(0, 1), [{}, {}]) == {}
    assert by_group(floats(), ints(), []) == {}


def test_of_equally_served_groups_the_first_by_name_is_called_worst() -> None:
    assert by_group(floats(1, 1), ints(0, 1), [{"age": "old"}, {"age": "mid"}])["age"]["worst"] == "mid"


@usual
@given(labelled(), st.data())
def test_accuracy_by_group_agrees_with_comparing_all_pairs_of_groups(
    table: tuple[Floats, Ints, list[str | None]], data: st.DataObject
) -> None:
    values, clusters, names = table
    groups = [{"topic": name} if name else {} for name in names]
    found = by_group(values, clusters, groups).get("topic")
    estimates = {n: e.value for n, e in by_label(values, clusters, names).items() if e.value is not None}
    if found is None:
        assert not any(names)
        return
    gaps = [abs(a - b) for a in estimates.values() for b in estimates.values()]
    assert found["gap"] == (max(gaps) if gaps else None)
    assert all(estimates[found["worst"]] <= value for value in estimates.values())
    order = data.draw(orders(len(values)))
    again = by_group(values[order], clusters[order], [groups[i] for i in order])["topic"]
    assert (again["worst"], again["gap"]) == (found["worst"], found["gap"])


def test_user_means_by_hand() -> None:
    # user 4: (1 + ½)/2; user 9: 0; user 2 never answered
    means, n, present = user_means(floats(1, NAN, 0.5, 0, NAN), ints(4, 2, 4, 9, 9))
    assert (means.tolist(), n.tolist(), present.tolist()) == ([0.75, 0.0], [2, 1], [4, 9])


@pytest.mark.parametrize("rows", [0, 3])
def test_users_who_never_answered_have_no_means(rows: int) -> None:
    means, n, present = user_means(np.full(rows, NAN), np.arange(rows))
    assert (means.tolist(), n.tolist(), present.tolist()) == ([], [], [])


@usual
@given(columns(credit_or_failure), st.data())
def test_user_means_agree_with_a_dictionary_in_any_order_of_rows(
    table: tuple[Floats, Ints], data: st.DataObject
) -> None:
    values, users = table
    slow: dict[int, list[float]] = {}
    for value, user in zip(values.tolist(), users.tolist(), strict=True):
        if not np.isnan(value):
            slow.setdefault(user, []).append(value)
    order = data.draw(orders(len(values)))
    means, n, present = user_means(values[order], users[order])
    assert present.tolist() == sorted(slow)
    assert means.tolist() == [statistics.fmean(slow[user]) for user in sorted(slow)]
    assert n.tolist() == [len(slow[user]) for user in sorted(slow)]


@usual
@given(columns(credit))
def test_swapping_the_answers_mirrors_every_user(table: tuple[Floats, Ints]) -> None:
    values, users = table
    assert user_means(1 - values, users)[0] == pytest.approx(1 - user_means(values, users)[0])


def test_spread_by_hand() -> None:
    # mean ½, squared residuals ¼ + 0 + ¼ over 2: standard deviation ½; the worst third person is the decile of one
    assert spread(floats(1, 0, 0.5)) == {"n": 3, "mean": 0.5, "spread": 0.5, "worst_decile": 0.0}


def test_the_worst_decile_of_twenty_is_the_mean_of_two() -> None:
    means = np.arange(20)[::-1] / 20
    assert spread(means)["worst_decile"] == pytest.approx((0 + 0.05) / 2)
    assert spread(means[:19])["worst_decile"] == pytest.approx(0.05)


def test_nobody_has_no_spread_and_one_person_has_only_a_mean() -> None:
    assert spread(floats()) == {"n": 0, "mean": None, "spread": None, "worst_decile": None}
    assert spread(floats(0.7)) == {"n": 1, "mean": 0.7, "spread": None, "worst_decile": 0.7}


@usual
@given(st.lists(st.floats(0, 1), min_size=2, max_size=45), st.data())
def test_spread_agrees_with_the_standard_library_in_any_order(means: list[float], data: st.DataObject) -> None:
    found = spread(floats(*data.draw(st.permutations(means))))
    worst = sorted(means)[: max(1, len(means) // 10)]
    assert found["n"] == len(means)
    assert found["mean"] == pytest.approx(statistics.fmean(means), abs=1e-12)
    assert found["spread"] == pytest.approx(statistics.stdev(means), abs=1e-9)
    assert found["worst_decile"] == pytest.approx(statistics.fmean(worst), abs=1e-12)


@usual
@given(st.lists(st.floats(0, 1), min_size=2, max_size=45), st.floats(0, 2))
def test_serving_everyone_equally_better_moves_the_mean_and_not_the_spread(means: list[float], shift: float) -> None:
    before, after = spread(floats(*means)), spread(floats(*means) + shift)
    assert after["mean"] == pytest.approx(before["mean"] + shift)
    assert after["spread"] == pytest.approx(before["spread"], abs=1e-9)
    assert after["worst_decile"] == pytest.approx(before["worst_decile"] + shift)
    assert before["worst_decile"] <= before["mean"] + 1e-12
