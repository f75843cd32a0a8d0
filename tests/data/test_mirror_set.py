"""The shipped benchmark itself: its size, its balance, the authoring rules, the recorded review."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from prb.data.check import CATEGORIES, check
from prb.data.load import load_pairs
from prb.data.reviews import load_reviews, quality_gap, review_figures
from prb.data.rules import TIERS
from prb.data.source import open_source
from prb.data.stats import stats
from prb.types import Pair


@cache
def pairs() -> list[Pair]:
    return [pair for split in ("train", "test") for pair in load_pairs("mirror", split=split)]


def test_the_datasheet_names_this_version_and_these_very_rows() -> None:
    sheet = (Path(__file__).parents[2] / "docs" / "mirror.md").read_text("utf-8")
    figures = stats("mirror")
    assert f"`mirror` {figures['version']}" in sheet
    assert figures["fingerprint"] in sheet


def test_it_has_the_promised_size_and_splits_by_person() -> None:
    assert len(pairs()) == 384
    people = {pair.user: pair.split for pair in pairs()}
    assert Counter(people.values()) == {"train": 24, "test": 40}
    assert Counter(pair.split for pair in pairs()) == {"train": 144, "test": 240}


@pytest.mark.parametrize("split", ["train", "test"])
def test_categories_and_tiers_are_even_in_each_split(split: str) -> None:
    rows = [pair for pair in pairs() if pair.split == split]
    assert Counter(pair.category for pair in rows) == dict.fromkeys(CATEGORIES, len(rows) // 3)
    assert Counter(pair.tier for pair in rows) == dict.fromkeys(TIERS, len(rows) // 3)


def test_topics_are_many_and_histories_are_short_or_long() -> None:
    assert len({pair.topic for pair in pairs()}) >= 40
    posts = Counter(
        "long" if len(pair.profile) >= 30 else len(pair.profile) for pair in {p.user: p for p in pairs()}.values()
    )
    assert posts == {10: 48, "long": 16}


def test_drift_is_found_in_every_long_history_couple() -> None:
    drifting = [pair for pair in pairs() if pair.drift]
    assert len({pair.id.split("-")[0] for pair in drifting}) == 8


def test_it_breaks_no_rule_and_gives_no_warning() -> None:
    assert check(open_source("mirror"), rules="mirror") == []


def test_every_row_was_picked_blind_in_the_final_round_and_at_least_97_percent_rightly() -> None:
    final = [r for r in load_reviews() if r["kind"] == "pick" and r["round"] == "final"]
    assert Counter(r["row"] for r in final) == Counter(pair.id for pair in pairs())
    assert sum(r["picked"] == "chosen" for r in final) >= 0.97 * len(final)


def test_no_reader_saw_both_twins_of_a_question() -> None:
    mirror = {pair.id: pair.mirror for pair in pairs()}
    seen = {(r["round"], r["reader"], r["row"]) for r in load_reviews() if r["kind"] == "pick"}
    both = [row for name, reader, row in seen if (name, reader, mirror[row]) in seen]
    assert not both


def test_the_latest_ratings_cover_every_question_and_are_even() -> None:
    latest = {r["question"]: r for r in load_reviews() if r["kind"] == "rating"}
    assert set(latest) == {pair.id.rsplit("-", 1)[0] for pair in pairs()}
    gaps = [quality_gap(r) for r in latest.values()]
    assert sum(gaps) / len(gaps) <= 0.4
    assert max(gaps) <= 1


def test_the_figures_of_the_review_are_those_of_the_file() -> None:
    figures = review_figures(pairs())
    assert figures["solved_final_round"]["all"].endswith("/384")
    assert figures["quality_gap_latest"]["mean"] < figures["quality_gap_first_round"]["mean"]
