from __future__ import annotations

import pytest

from prb.prompts import fill, render
from prb.types import Post, Query

POSTS = (Post("p1", "Food", "I like {aspects}."), Post("p2", "", "Rain again."))


def test_each_slot_is_filled_once_and_other_braces_stay():
    assert fill("{a} and {b}, {a}", a="{b}", b="{a}") == "{b} and {a}, {b}"
    assert fill('{"score": {n}} { x } {}', n="1") == '{"score": 1} { x } {}'


def test_a_slot_nobody_fills_is_an_error_and_not_a_blank():
    with pytest.raises(KeyError, match="aspects"):
        fill("{question} {aspects}", question="Why?")


def test_a_bare_question_leaves_no_trace_of_posts_or_plan():
    assert render(Query(question=" Tea or rain?\n")) == " Tea or rain?\n"


def test_posts_come_first_then_the_plan_then_the_question():
    text = render(Query(question="Tea or {posts}?", user="u1", posts=POSTS, plan=("brevity", "warmth")))
    parts = ["I like {aspects}.\n\nRain again.", "- brevity\n- warmth", "Tea or {posts}?"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.endswith("Question:\nTea or {posts}?")


def test_the_user_and_the_ids_of_posts_are_not_shown():
    text = render(Query(question="Tea?", user="somebody", posts=POSTS))
    assert "somebody" not in text
    assert "p1" not in text
    assert "Food" not in text
