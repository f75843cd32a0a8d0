"""How rows of many shapes are read. What is wrong with a row is in the table of `broken`."""

from __future__ import annotations

from typing import Any

import pytest

from prb.data.load import load
from prb.data.schema import normalize, row_problems, to_pair
from prb.data.source import MemorySource
from prb.types import Aspect, Post, Turn
from tests.data.broken import sound

SMALLEST = {"question": "Tea?", "chosen": "Yes.", "rejected": "No."}


def test_question_and_two_answers_are_enough() -> None:
    dataset = load(MemorySource("mine", [SMALLEST, {**SMALLEST, "category": "", "profile": "", "user": None}]))
    first, second = dataset
    assert (first.id, first.user, second.id) == ("mine:1", "mine:1", "mine:2")
    assert (first.answers, first.profile, first.rubric, first.category) == (("Yes.", "No."), (), (), "")  # type: ignore[union-attr]
    assert dataset.notes == []


@pytest.mark.parametrize(
    ("profile", "texts"),
    [
        ("I am brief.", ["I am brief."]),
        (["I am brief.", "I hate lists."], ["I am brief.", "I hate lists."]),
        ({"likes": "brevity", "age": 61}, ["likes: brevity", "age: 61"]),
        ([{"text": "Tea.", "stars": 5}, "Sun."], ["Tea.", "Sun."]),
        ('["I am brief."]', ["I am brief."]),
        ('[{"text": "Tea."}]', ["Tea."]),
        ("[draft] I am brief.", ["[draft] I am brief."]),
        ([], []),
        ("  ", []),
        ({}, []),
    ],
)
def test_a_profile_may_be_a_text_texts_attributes_or_posts(profile, texts) -> None:
    pair = to_pair(normalize({**SMALLEST, "id": 1, "profile": profile}))
    assert [post.text for post in pair.profile] == texts


def test_posts_keep_their_ids_or_are_numbered_and_attributes_are_named() -> None:
    posts = [{"text": "Tea."}, {"text": "Rain.", "id": 9, "category": "Weather"}]
    assert to_pair(sound(1, profile=posts)).profile == (Post("1", "", "Tea."), Post("9", "Weather", "Rain."))
    assert to_pair(normalize(sound(1, profile={"likes": "tea"}))).profile == (Post("likes", "", "likes: tea"),)


@pytest.mark.parametrize(
    "columns",
    [
        {"user_id": "ann", "prompt": "Tea?", "history": "I am brief."},
        {"user": "ann", "question": "Tea?", "posts": ["I am brief."], "prompt": "Coffee?"},
        {"user": "ann", "prompt": [{"role": "user", "content": "Tea?"}], "profile": {"x": "I am brief."}},
    ],
)
def test_a_few_columns_have_another_name_which_yields_to_our_own(columns) -> None:
    (item,) = load(MemorySource("mine", [{**columns, "chosen": "Yes.", "rejected": "No."}]))
    assert (item.user, item.question, len(item.profile)) == ("ann", "Tea?", 1)


def test_columns_of_ordinary_preference_data_are_no_users_and_no_histories() -> None:
    names = "prompt_id messages score_chosen score_rejected source chosen_model rejected_model num_correct"
    row = {**SMALLEST, **dict.fromkeys(names.split(), 1), "user_age": 30, "story": "x", "rate": 2, "post": "y"}
    assert load_pairs_of([row])[0].user == "mine:1"


def load_pairs_of(rows: list[dict[str, Any]]) -> list[Any]:
    return list(load(MemorySource("mine", rows)))


PROMPT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"content": "Help"}]


@pytest.mark.parametrize("name", ["question", "prompt"])
def test_messages_become_context_question_and_answers(name) -> None:
    row = {
        key: [*PROMPT, {"role": "assistant", "content": text}] for key, text in (("chosen", "A."), ("rejected", "B."))
    }
    (pair,) = load_pairs_of([{**row, name: PROMPT, "user": "ann", "profile": "I am brief."}])
    assert (pair.question, pair.answers) == ("Help", ("A.", "B."))
    assert pair.context == (Turn("system", "Be kind."), Turn("user", "Hi"))
    assert (pair.user, len(pair.profile)) == ("ann", 1)


def test_a_text_that_looks_like_a_list_stays_a_text() -> None:
    (pair,) = load_pairs_of([{"question": "[1, 2]", "chosen": '["a"]', "rejected": "{}"}])
    assert (pair.question, pair.answers) == ("[1, 2]", ('["a"]', "{}"))


def test_a_rubric_may_be_texts_and_structured_fields_may_be_json() -> None:
    row = {
        **SMALLEST,
        "id": 1,
        "rubric_aspects": ["brevity", "warmth"],
        "groups": '{"age": "60+"}',
        "context": "",
        "choices": "[]",
    }
    pair = to_pair(normalize(row))
    assert pair.rubric == (Aspect("brevity"), Aspect("warmth"))
    assert (pair.groups, pair.context, pair.choices) == ({"age": "60+"}, (), ())


def test_a_row_in_our_form_is_left_as_it_is_and_unknown_fields_are_allowed_everywhere() -> None:
    row = sound(1, mood=[1, {"x": None}], profile=[{"text": "Tea.", "stars": 5}])
    row["rubric_aspects"] = [{"aspect": "brevity", "weight": 0.5}]
    assert normalize(row) == row
    assert row_problems(row, "pairs") == []
