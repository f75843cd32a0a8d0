from __future__ import annotations

import string
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prb.building.run import (
    aspects_gate,
    find_duplicates,
    form_gate,
    leaking_posts,
    length_gap,
    length_gate,
    quality_gate,
    refusal_gate,
    wording_gate,
)
from prb.building.stages import UserRecord
from prb.text.words import words
from prb.types import Aspect, Post

TEXT = st.text(string.ascii_lowercase + " ", min_size=1, max_size=80)
GRADE = st.integers(0, 2)
RATING = st.floats(1, 5)
RUBRIC = (Aspect("prefers a fixed weekly plan", "every single week the same", "Change tires them."),)


def a_record(**changes) -> UserRecord:
    known = {"question": "When should I water the plants?", "narrative": "I do it every single week the same way."}
    return UserRecord(**{"id": "r", "user": "u", "posts": (Post("1", "", "Hello."),), **known, **changes})


@given(st.lists(GRADE, max_size=6), st.lists(GRADE, max_size=6))
def test_the_aspects_gate_passes_exactly_when_all_are_met_here_and_none_there(chosen, rejected) -> None:
    passed = aspects_gate(chosen, rejected) is None
    assert passed == (all(grade >= 1 for grade in chosen) and all(grade == 0 for grade in rejected))


@given(TEXT, TEXT, st.floats(0, 1))
def test_the_length_gate_does_not_care_which_answer_is_longer(a, b, most) -> None:
    assert (length_gate(a, b, most) is None) == (length_gate(b, a, most) is None)
    assert 0 <= length_gap(a, b) <= 1
    assert length_gate(a, a, 0.0) is None


@given(RATING, RATING, RATING, st.floats(0, 4))
def test_the_quality_gate_is_symmetric_and_keeps_floor_and_margin(a, b, floor, margin) -> None:
    passed = quality_gate(a, b, floor, margin) is None
    assert passed == (quality_gate(b, a, floor, margin) is None)
    if passed:
        assert min(a, b) >= floor
        assert abs(a - b) <= margin + 1e-6


@given(st.data())
def test_any_run_of_five_hidden_words_in_an_answer_is_found(data) -> None:
    hidden = words(a_record().narrative)
    start = data.draw(st.integers(0, len(hidden) - 5))
    answer = f"Well, {' '.join(hidden[start : start + 5]).upper()}!"
    assert "shares" in str(wording_gate(answer, a_record(), RUBRIC, 5))


def test_four_words_are_not_five_and_words_of_the_question_may_be_repeated() -> None:
    assert wording_gate("It is every single week the.", a_record(), RUBRIC, 6) is None
    record = a_record(narrative="When should I water the plants? I never know.")
    assert wording_gate("When should I water the plants is easy to say.", record, (), 5) is None


def test_hidden_words_are_found_where_words_are_not_written_apart() -> None:
    record = a_record(question="怎么养花？", narrative="我每天早上都很忙没有时间照顾它们")
    assert wording_gate("因为我每天早上都很忙没有时间所以", record, (), 5)
    assert wording_gate("这种植物很容易照顾", record, (), 5) is None
    clauses = a_record(narrative="我下班晚，所以只有二十分钟做饭，而且家里没有烤箱。")
    assert wording_gate("建议煮面，所以只有二十分钟做饭，而且家里没有烤箱，也行。", clauses, (), 5)


def test_posts_leak_by_eight_words_and_not_by_five() -> None:
    record = a_record(
        narrative="After the long winter I only trust tools that my father used.",
        posts=(
            Post("a", "", "I only trust tools that hold."),
            Post("b", "", "Now I only trust tools that my father used."),
        ),
    )
    assert [post.id for post in leaking_posts(record, ())] == ["b"]


REFUSALS = """I'm sorry, but I can't help with that.
I am sorry, but I cannot provide that.
I cannot help with that
As an AI, I have no plants.
Unfortunately, I am unable to assist.
I'm afraid I can't answer this."""
ANSWERS = """Sorrel grows anywhere.
I can tell you how.
The AI of the game is weak.
I'm sorry to hear about your dog. Start slowly.
I can't stress enough how much light it needs.
Sorry state of the roof aside, begin with the gutters."""


def test_refusals_are_seen_and_answers_are_not_taken_for_refusals() -> None:
    assert [text for text in REFUSALS.splitlines() if not refusal_gate(text)] == []
    assert [text for text in ANSWERS.splitlines() if refusal_gate(text)] == []


def test_a_list_beside_prose_is_told_by_its_form() -> None:
    assert form_gate("- one\n- two", "One and two.")
    assert form_gate("- one\n- two", "1. one\n2. two") is None


class Letters:
    """Twelve directions; texts with the same first letter are the same."""

    fingerprint = "letters"

    def encode(self, texts):
        return np.eye(26, dtype=np.float32)[[ord(text[0].lower()) - 97 for text in texts]]


@given(st.lists(st.sampled_from("abcd"), max_size=9), st.integers(1, 4))
def test_every_repetition_is_a_duplicate_of_the_first_whatever_the_block(letters, block) -> None:
    records = [a_record(id=str(n), question=f"{letter} question") for n, letter in enumerate(letters)]
    found = find_duplicates(records, Letters(), 0.95, block)
    assert found == {
        j: letters.index(letters[j]) for i, j in combinations(range(len(letters)), 2) if letters[i] == letters[j]
    }
