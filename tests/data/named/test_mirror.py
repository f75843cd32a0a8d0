"""The embedded benchmark: how couples become rows, its size and balance, the authoring rules, the recorded review."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from prb.data.check import CATEGORIES, check, describe
from prb.data.load import load_pairs
from prb.data.named.mirror import read_bank
from prb.data.source import open_source
from prb.errors import BadSpec
from prb.types import Pair
from tests.data.named.mirror_rules import HARD, RESTRAINED, row_rules, set_rules


@cache
def rows(*splits: str) -> list[Pair]:
    return [pair for split in splits for pair in load_pairs("mirror", split=split)]


def test_the_datasheet_names_this_version_and_these_very_rows() -> None:
    sheet = (Path(__file__).parents[3] / "docs" / "mirror.md").read_text("utf-8")
    figures = describe("mirror")
    assert f"`mirror` {figures['version']}" in sheet
    assert figures["fingerprint"] in sheet


def test_it_breaks_no_rule_and_gives_no_warning() -> None:
    assert check(open_source("mirror")) == []
    everything = load_pairs("mirror", split="all")
    assert [(pair.id, rule) for pair in everything for rule in row_rules(pair)] == []
    assert list(set_rules(everything)) == []


# --- hard ---


def test_hard_has_240_rows_of_24_users_with_long_histories() -> None:
    assert len(rows("hard")) == 240
    users = {pair.user: pair for pair in rows("hard")}
    assert len(users) == 24
    assert not set(users) & {pair.user for pair in rows("dev", "test")}
    assert all(80 <= len(pair.profile) <= 160 for pair in users.values())
    counts = Counter(pair.tier for pair in rows("hard"))
    assert set(counts) == set(HARD.tiers)
    assert min(counts.values()) >= 20


def test_a_user_blind_model_scores_half_on_hard_rows_with_two_answers() -> None:
    by_id = {pair.id: pair for pair in rows("hard")}
    for pair in rows("hard"):
        twin = by_id[str(pair.mirror)]
        assert set(twin.answers) == set(pair.answers)
        assert twin.chosen != pair.chosen
        assert len(pair.answers) == (4 if pair.tier == "one-of-four" else 2)


# --- restraint ---


def test_restraint_has_120_rows_of_the_users_of_test_in_five_kinds() -> None:
    assert len(rows("restraint")) == 120
    assert {pair.user for pair in rows("restraint")} == {pair.user for pair in rows("test")}
    assert Counter(pair.tier for pair in rows("restraint")) == dict.fromkeys(RESTRAINED.tiers, 24)
    assert Counter(pair.category for pair in rows("restraint")) == dict.fromkeys(CATEGORIES, 40)


def test_a_couple_has_the_same_right_answer_and_a_wrong_one_each() -> None:
    asked: dict[str, list[Pair]] = {}
    for pair in rows("restraint"):
        asked.setdefault(pair.question, []).append(pair)
    assert len(asked) == 60
    couple = {pair.user: pair.id.split("-")[0] for pair in rows("dev", "test")}
    for first, second in asked.values():
        assert first.chosen == second.chosen
        assert first.rejected != second.rejected
        assert couple[first.user] == couple[second.user]
        assert (first.rubric, first.narrative) == (second.rubric, second.narrative)


def test_a_history_differs_from_that_of_test_only_by_posts_that_withdraw_a_taste() -> None:
    before = {pair.user: list(pair.profile) for pair in rows("dev", "test")}
    added = {pair.user: list(pair.profile)[len(before[pair.user]) :] for pair in rows("restraint")}
    for pair in rows("restraint"):
        assert list(pair.profile) == [*before[pair.user], *added[pair.user]]
    withdrawn = {pair.user for pair in rows("restraint") if pair.tier == "restraint/withdrawn"}
    assert {user for user, posts in added.items() if posts} == withdrawn


# --- composed ---


def test_composed_rows_are_mirror_rows_that_keep_every_rule() -> None:
    for split, users in (("train", 120), ("validation", 24)):
        pairs = load_pairs(f"mirror?split={split}&users={users}")
        assert len(pairs) == 2 * users
        assert [problem for pair in pairs for problem in row_rules(pair)] == []
        assert {pair.split for pair in pairs} == {split}


def test_composition_depends_on_the_seed_and_the_number_of_the_couple_alone() -> None:
    few, many, other = (
        [row.raw for row in open_source(f"mirror?split=train&{options}").rows()]
        for options in ("users=20", "users=40", "users=20&seed=1")
    )
    assert many[: len(few)] == few
    assert not set(few) & set(other)


def test_twins_disagree_on_the_asked_axis_and_mostly_agree_elsewhere() -> None:
    bank = read_bank("train")
    pole_of = {
        post["text"]: (name, side)
        for name, axis in bank.axes.items()
        for side, pole in enumerate(axis["poles"])
        for post in pole["evidence"]
    }
    couples: dict[str, list[dict[str, int]]] = {}
    asked: dict[str, str] = {}
    for row in open_source("mirror?split=train&users=400").rows():
        if row.data["id"].endswith(("q1-a", "q1-b")) and row.data["tier"] != "situational":
            couple = row.data["id"].rsplit("-", 2)[0]
            poles = dict(pole_of[post["text"]] for post in row.data["profile"] if post["text"] in pole_of)
            couples.setdefault(couple, []).append(poles)
            asked[couple] = row.data["axis"]
    shared = []
    for couple, (first, second) in couples.items():
        assert (first[asked[couple]], second[asked[couple]]) == (0, 1)
        others = (set(first) & set(second)) - {asked[couple]}
        shared += [first[name] == second[name] for name in others]
        assert 4 <= len(first) - 1 <= 7
    assert 0.72 < sum(shared) / len(shared) < 0.88


def test_of_twins_with_the_same_pole_one_makes_an_exception_in_the_situation_asked_about() -> None:
    situational = 0
    rows = [row.data for row in open_source("mirror?split=train&users=240").rows()]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        if first["tier"] != "situational":
            continue
        situational += 2
        poles = read_bank("train").axes[first["axis"]]["poles"]
        excepted = {
            post["text"]: (post["question"]["question"], side)
            for side, pole in enumerate(poles)
            for post in pole["exceptions"]
        }
        made, others = (
            [excepted[post["text"]] for post in row["profile"] if post["text"] in excepted] for row in (first, second)
        )
        assert not others
        side = dict(made)[first["question"]]
        assert first["rubric_aspects"] == poles[1 - side]["aspects"]
        assert second["rubric_aspects"] == poles[side]["aspects"]
        assert (first["chosen"], first["rejected"]) == (second["rejected"], second["chosen"])
    assert 0.2 < situational / len(rows) < 0.45


def test_users_come_in_couples() -> None:
    with pytest.raises(BadSpec, match="must be even, not 3"):
        open_source("mirror?split=train&users=3")


def test_fewer_axes_are_part_of_more_and_make_up_all_rows() -> None:
    few, more = ({row.data["axis"] for row in open_source(f"mirror?split=train&users=40&axes={n}").rows()}
                 for n in (5, 15))  # fmt: skip
    assert len(few) == 5
    assert len(more) == 15
    assert few < more


def test_the_halves_of_a_bank_share_neither_posts_nor_questions() -> None:
    halves = [list(open_source(f"mirror?split=train&users=40&half={half}").rows()) for half in (1, 2)]
    for texts in (lambda row: {post["text"] for post in row["profile"]}, lambda row: {row["question"], row["chosen"]}):
        first, second = (set().union(*(texts(row.data) for row in half)) for half in halves)
        assert first
        assert not first & second
    lesson = next(open_source("mirror?split=train&users=2&half=2").lessons())  # type: ignore[attr-defined]
    assert [len(posts) for posts in lesson.posts] == [6, 6]
    assert len(lesson.answers) == 4
