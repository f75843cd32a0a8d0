"""The embedded benchmark: how couples become rows, its size and balance, the authoring rules, the recorded review."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from prb.data.check import CATEGORIES, TIERS, check, describe
from prb.data.load import load, load_pairs
from prb.data.named.mirror import load_reviews, quality_gap, review_figures, unfold_couple
from prb.data.source import MemorySource, open_source
from prb.types import Pair


@cache
def rows() -> list[Pair]:
    return [pair for split in ("train", "test") for pair in load_pairs("mirror", split=split)]


def want(answer: str, **more: Any) -> dict[str, Any]:
    return {"aspects": [{"aspect": "pace"}], "narrative": "Slowly.", "answer": answer, "bearing": [2], **more}


COUPLE: dict[str, Any] = {
    "couple": "c99",
    "split": "test",
    "people": {
        "ann": {"posts": [{"category": "Food", "text": "Tea."}, {"category": "Art", "text": "Rain."}]},
        "bob": {"posts": [{"category": "Food", "text": "Beer."}, {"category": "Art", "text": "Sun."}]},
    },
    "questions": [
        {
            "question": "Walk or run?",
            "category": "Society_and_Culture",
            "tier": "stated",
            "topic": "sport",
            "wants": {"ann": want("Walk."), "bob": want("Run.", drift=True)},
        }
    ],
}


def test_the_embedded_set_loads() -> None:
    assert len(load("mirror")) > 0
    assert {pair.id for pair in load_pairs("mirror")} <= {pair.id for pair in rows()}


def test_every_row_has_a_twin_with_the_answers_swapped() -> None:
    by_id = {pair.id: pair for pair in rows()}
    for pair in rows():
        assert pair.mirror is not None
        twin = by_id[pair.mirror]
        assert (twin.mirror, twin.question, twin.split) == (pair.id, pair.question, pair.split)
        assert (twin.chosen, twin.rejected) == (pair.rejected, pair.chosen)
        assert twin.user != pair.user


def test_no_user_is_in_two_splits() -> None:
    homes = {(pair.user, pair.split) for pair in rows()}
    assert len(homes) == len({user for user, _ in homes})


def test_reading_it_twice_gives_the_same_bytes() -> None:
    assert [row.raw for row in open_source("mirror").rows()] == [row.raw for row in open_source("mirror").rows()]


def test_a_couple_unfolds_into_two_sound_rows() -> None:
    ann, bob = unfold_couple(COUPLE)
    assert (ann["id"], ann["mirror"], ann["user"]) == ("c99-q1-ann", "c99-q1-bob", "ann")
    assert (ann["chosen"], ann["rejected"]) == ("Walk.", "Run.")
    assert (bob["chosen"], bob["rejected"]) == ("Run.", "Walk.")
    assert [post["id"] for post in bob["profile"]] == ["bob-01", "bob-02"]
    assert bob["bearing_posts"] == ["bob-02"]
    assert "drift" not in ann
    assert bob["drift"] is True
    assert load(MemorySource("couple", [ann, bob])).index.clusters == ["ann", "ann"]


def test_the_datasheet_names_this_version_and_these_very_rows() -> None:
    sheet = (Path(__file__).parents[3] / "docs" / "mirror.md").read_text("utf-8")
    figures = describe("mirror")
    assert f"`mirror` {figures['version']}" in sheet
    assert figures["fingerprint"] in sheet


def test_it_has_the_promised_size_and_splits_by_user() -> None:
    assert len(rows()) == 384
    splits = {pair.user: pair.split for pair in rows()}
    assert Counter(splits.values()) == {"train": 24, "test": 40}
    assert Counter(pair.split for pair in rows()) == {"train": 144, "test": 240}


@pytest.mark.parametrize("split", ["train", "test"])
def test_categories_and_tiers_are_even_in_each_split(split: str) -> None:
    here = [pair for pair in rows() if pair.split == split]
    assert Counter(pair.category for pair in here) == dict.fromkeys(CATEGORIES, len(here) // 3)
    assert Counter(pair.tier for pair in here) == dict.fromkeys(TIERS, len(here) // 3)


def test_topics_are_many_and_histories_are_short_or_long() -> None:
    assert len({pair.topic for pair in rows()}) >= 40
    posts = Counter(
        "long" if len(pair.profile) >= 30 else len(pair.profile) for pair in {p.user: p for p in rows()}.values()
    )
    assert posts == {10: 48, "long": 16}


def test_drift_is_found_in_every_long_history_couple() -> None:
    drifting = [pair for pair in rows() if pair.drift]
    assert len({pair.id.split("-")[0] for pair in drifting}) == 8


def test_it_breaks_no_rule_and_gives_no_warning() -> None:
    assert check(open_source("mirror"), rules="mirror") == []


def test_every_row_was_picked_blind_in_the_final_round_and_at_least_97_percent_rightly() -> None:
    final = [r for r in load_reviews() if r["kind"] == "pick" and r["round"] == "final"]
    assert Counter(r["row"] for r in final) == Counter(pair.id for pair in rows())
    assert sum(r["picked"] == "chosen" for r in final) >= 0.97 * len(final)


def test_no_reader_saw_both_twins_of_a_question() -> None:
    mirror = {pair.id: pair.mirror for pair in rows()}
    seen = {(r["round"], r["reader"], r["row"]) for r in load_reviews() if r["kind"] == "pick"}
    both = [row for name, reader, row in seen if (name, reader, mirror[row]) in seen]
    assert not both


def test_the_latest_ratings_cover_every_question_and_are_even() -> None:
    latest = {r["question"]: r for r in load_reviews() if r["kind"] == "rating"}
    assert set(latest) == {pair.id.rsplit("-", 1)[0] for pair in rows()}
    gaps = [quality_gap(r) for r in latest.values()]
    assert sum(gaps) / len(gaps) <= 0.4
    assert max(gaps) <= 1


def test_the_figures_of_the_review_are_those_of_the_file() -> None:
    figures = review_figures(rows())
    assert figures["solved_final_round"]["all"].endswith("/384")
    assert figures["quality_gap_latest"]["mean"] < figures["quality_gap_first_round"]["mean"]
