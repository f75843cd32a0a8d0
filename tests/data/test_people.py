from __future__ import annotations

from typing import Any

import pytest

from prb.data.people import People
from prb.types import Post

TEA: list[dict[str, Any]] = [{"id": "p1", "category": "Food", "text": "Tea at four, naïvely."}]
RAIN: list[dict[str, Any]] = [{"text": "Rain again."}, {"id": 7, "text": "Still rain."}]


def test_posts_come_back_as_they_went_in() -> None:
    people = People(keep_posts=True)
    people.add("bo", None, TEA)
    people.add("al", None, RAIN)
    people.of_split(None, {})
    assert tuple(people.posts("bo")) == (Post("p1", "Food", "Tea at four, naïvely."),)
    assert tuple(people.posts("al")) == (Post("1", "", "Rain again."), Post("7", "", "Still rain."))
    assert tuple(people.posts("bo")) == (Post("p1", "Food", "Tea at four, naïvely."),)


def test_names_are_sorted_whatever_the_order_of_the_file() -> None:
    people = People(keep_posts=True)
    for user in ("zoe", "al", "mo"):
        people.add(user, None, TEA)
    assert people.of_split(None, {}).names == ["al", "mo", "zoe"]


def test_a_split_holds_its_own_people_only() -> None:
    people = People(keep_posts=True)
    people.add("al", "train", TEA)
    people.add("bo", "test", TEA)
    assert people.of_split("test", {}).names == ["bo"]


def test_a_person_of_two_splits_has_the_posts_of_the_split_asked_for() -> None:
    people = People(keep_posts=True)
    people.add("al", "train", TEA)
    people.add("al", "test", RAIN)
    assert people.of_split("test", {}).names == ["al"]
    assert len(people.posts("al")) == 2


def test_the_first_history_of_a_person_stays() -> None:
    people = People(keep_posts=True)
    people.add("al", None, TEA)
    people.add("al", None, RAIN)
    people.of_split(None, {})
    assert [post.id for post in people.posts("al")] == ["p1"]


def test_people_without_posts_are_no_donors() -> None:
    people = People(keep_posts=True)
    people.add("al", None, [])
    assert people.of_split(None, {}).names == []


def test_nothing_is_kept_unless_asked_for() -> None:
    people = People()
    people.add("al", None, TEA)
    assert people.of_split(None, {}).names == []
    with pytest.raises(KeyError):
        people.posts("al")


def test_a_person_without_links_is_a_cluster() -> None:
    people = People(keep_posts=True).of_split(None, {"bo": "al"})
    assert (people.cluster("bo"), people.cluster("zoe")) == ("al", "zoe")


def test_a_history_may_outgrow_the_memory_it_is_given() -> None:
    people = People(keep_posts=True)
    long = [{"id": "p", "text": "x" * (1 << 20)}] * 70
    people.add("al", None, long)
    people.add("bo", None, TEA)
    people.of_split(None, {})
    assert len(people.posts("al")) == 70
    assert people.posts("bo")[0].text == "Tea at four, naïvely."
