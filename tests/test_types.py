from __future__ import annotations

import dataclasses

import pytest

from prb.types import Failure, Query, Reward, visible


def test_a_query_has_no_place_for_rubric_or_narrative():
    assert {field.name for field in dataclasses.fields(Query)} == {
        "question",
        "user",
        "context",
        "posts",
        "choices",
        "plan",
    }
    with pytest.raises(TypeError, match="unexpected keyword argument 'rubric'"):
        Query(question="Tea?", rubric=("warmth",))
    with pytest.raises((AttributeError, TypeError)):
        Query(question="Tea?").narrative = "x"


def test_a_failure_reads_as_reason_and_detail():
    assert str(Failure("no verdict")) == "no verdict"
    assert str(Failure("no verdict", "I cannot say.")) == "no verdict: I cannot say."
    for failure in (Failure("no verdict"), Failure("no verdict", "I said: no.")):
        assert Failure.parse(str(failure)) == failure
    assert (Failure.parse("x").kind, Failure.parse("x", "fatal").kind) == ("row", "fatal")


def test_a_reward_is_a_number_that_knows_what_it_cost():
    reward = Reward(0.5, tokens=12, cut=1, cost=0.01, text="fine")
    assert reward == 0.5
    assert reward + 1 == 1.5
    assert (reward.tokens, reward.cut, reward.cost, reward.text) == (12, 1, 0.01, "fine")
    assert (Reward(1).tokens, Reward(1).text) == (0, "")


def test_what_hides_reorders_or_commands_is_shown_by_its_code():
    assert visible("a\u202eb\u0007\x1b[2J\u200f") == "a⟨U+202E⟩b⟨U+0007⟩⟨U+001B⟩[2J⟨U+200F⟩"
    for text in ("plain", "two\nlines\tand a tab", "שלום مرحبا 你好 é 👩‍💻"):
        assert visible(text) == text
