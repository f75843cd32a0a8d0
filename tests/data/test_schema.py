from __future__ import annotations

from typing import Any

import pytest

from prb.data.schema import Problem, normalize, row_problems, to_pair, to_rating
from prb.types import Aspect, Pair, Post, Rating
from tests.data.broken import REQUIRED, WRONG_TYPE, sound

RATING: dict[str, Any] = {"id": 4, "user": 7, "question": "Tea?", "profile": [], "answer": "Yes.", "rating": 1}


def test_a_sound_row_has_no_problems() -> None:
    assert row_problems(sound(1), "pairs") == []


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_named(field: str) -> None:
    assert row_problems(sound(1, **{field: None}), "pairs") == [f"`{field}` is missing"]


@pytest.mark.parametrize(("field", "value", "what"), WRONG_TYPE)
def test_a_field_of_the_wrong_type_says_what_it_is_and_what_it_should_be(field: str, value: Any, what: str) -> None:
    assert row_problems(sound(1, **{field: value}), "pairs") == [what]


@pytest.mark.parametrize("field", ["id", "question", "category", "chosen", "rejected", "user", "mirror"])
@pytest.mark.parametrize("blank", ["", "  ", "\n\t", "\u00a0"])
def test_blank_text_is_empty(field: str, blank: str) -> None:
    assert row_problems(sound(1, **{field: blank}), "pairs") == [f"`{field}` is empty"]


def test_a_narrative_may_be_empty() -> None:
    assert row_problems(sound(1, narrative=""), "pairs") == []


def test_an_empty_row_lacks_every_required_field() -> None:
    assert row_problems({}, "pairs") == [f"`{field}` is missing" for field in REQUIRED]


@pytest.mark.parametrize(
    ("row", "kind"), [(3, "a number"), ([], "a list"), ("x", "text"), (None, "null"), (True, "true/false")]
)
def test_a_row_that_is_no_object_is_named(row: Any, kind: str) -> None:
    assert row_problems(row, "pairs") == [f"a row must be an object, not {kind}"]


def test_answers_that_differ_in_blanks_only_are_the_same() -> None:
    row = sound(1, chosen="Yes.", rejected="\n Yes. ")
    assert row_problems(row, "pairs") == ["`chosen` and `rejected` are the same text"]


def test_unknown_fields_are_allowed_everywhere() -> None:
    row = sound(1, mood=[1, {"x": None}], profile=[{"text": "Tea.", "stars": 5}])
    row["rubric_aspects"] = [{"aspect": "brevity", "weight": 0.5}]
    assert row_problems(row, "pairs") == []


def test_a_list_profile_is_left_as_it_is() -> None:
    row = sound(1)
    assert normalize(row) is row


def test_an_attribute_map_becomes_posts_and_leaves_the_row_alone() -> None:
    row = sound(1, profile={"likes": "brevity", "age": 61})
    assert normalize(row)["profile"] == [
        {"id": "likes", "category": "", "text": "likes: brevity"},
        {"id": "age", "category": "", "text": "age: 61"},
    ]
    assert row["profile"] == {"likes": "brevity", "age": 61}


def test_null_is_dropped_from_optional_fields_only() -> None:
    row = {**sound(1), "tier": None, "question": None, "mood": None}
    normal = normalize(row)
    assert "tier" not in normal
    assert (normal["question"], normal["mood"]) == (None, None)


def test_a_pair_takes_its_defaults() -> None:
    pair = to_pair(sound(1, user=None, rubric_aspects=[{"aspect": "brevity"}]))
    assert isinstance(pair, Pair)
    assert (pair.user, pair.tier, pair.mirror, pair.split, pair.topic, pair.drift) == (
        "r1",
        None,
        None,
        None,
        None,
        False,
    )
    assert pair.rubric == (Aspect("brevity", "", ""),)
    assert pair.groups == {}


def test_numbers_for_ids_become_text() -> None:
    pair = to_pair(sound(1, id=1, user=2, mirror=3, profile=[{"id": 4, "text": "Tea."}]))
    assert (pair.id, pair.user, pair.mirror) == ("1", "2", "3")
    assert pair.profile[0] == Post("4", "", "Tea.")


def test_a_rating_is_built_with_its_numbers_as_text_and_its_rating_as_a_number() -> None:
    assert row_problems(RATING, "ratings") == []
    rating = to_rating({**RATING, "rubric_aspects": [{"aspect": "warmth"}]})
    assert isinstance(rating, Rating)
    assert (rating.id, rating.user, rating.category) == ("4", "7", "")
    assert isinstance(rating.rating, float)
    assert rating.rubric == (Aspect("warmth"),)


@pytest.mark.parametrize("rating", [0, 1, 0.0, 0.25, 1.0])
def test_ratings_run_from_zero_to_one(rating: float) -> None:
    assert row_problems({**RATING, "rating": rating}, "ratings") == []


def test_a_rating_needs_a_user_and_no_answers_of_a_pair() -> None:
    row = {key: value for key, value in RATING.items() if key != "user"}
    assert row_problems(row, "ratings") == ["`user` is missing"]


def test_a_problem_reads_like_a_compiler_message() -> None:
    assert str(Problem("set.jsonl", 3, "`id` is missing")) == "set.jsonl:3: `id` is missing"
