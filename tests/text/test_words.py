from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.text.words import (
    SharedWording,
    hidden_texts,
    is_list,
    near_duplicates,
    reading_grade,
    sentences,
    word_runs,
    words,
)
from prb.types import Aspect


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" … — !", []),
        ("Tea, please!", ["tea", "please"]),
        ("It's a well-known café.", ["it's", "a", "well-known", "café"]),
        ("It’s late", ["it's", "late"]),
        ("'quoted' -dashed-", ["quoted", "dashed"]),
        ("snake_case 42 3.5", ["snake", "case", "42", "3", "5"]),
        ("ÄRGER Straße", ["ärger", "straße"]),
    ],
)
def test_words_are_lower_case_and_keep_inner_apostrophes_and_hyphens(text, expected) -> None:
    assert words(text) == expected


@settings(deadline=None)
@given(st.text())
def test_words_of_words_are_the_same_words(text) -> None:
    assert words(" ".join(words(text))) == words(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("No end", ["No end"]),
        ("Costs 3.50 in all. Fine.", ["Costs 3.50 in all.", "Fine."]),
        ("First line\n\n- second line\n", ["First line", "- second line"]),
        ('He said "No." Then he left.', ['He said "No.', "Then he left."]),
    ],
)
def test_sentences_end_at_marks_and_at_lines(text, expected) -> None:
    assert sentences(text) == expected


def test_bullets_and_numbers_make_a_list() -> None:
    assert all(map(is_list, ["- one\n- two", "Thus:\n1. one", "  2) two", "* one"]))
    assert not any(map(is_list, ["", "One - two.", "3.5 liters", "-5 degrees"]))


def test_the_grade_is_that_of_kincaid() -> None:
    # three words of one syllable in one sentence: 0.39 · 3 + 11.8 · 1 − 15.59
    assert reading_grade("The cat sat.") == pytest.approx(-2.62)
    # four words, five syllables, two sentences: 0.39 · 2 + 11.8 · 5 / 4 − 15.59
    assert reading_grade("The cat sat. Garden!") == pytest.approx(-0.06)
    # four words with 1, 2, 3 and 4 syllables
    assert reading_grade("Cat garden remember celebration") == pytest.approx(0.39 * 4 + 11.8 * 10 / 4 - 15.59)


def test_near_duplicates_are_found_across_blocks() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(50, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    slow = {(i, j) for i in range(50) for j in range(i) if rows[i] @ rows[j] >= 0.8}
    assert slow
    for block in (7, 50, 1024):
        assert set(near_duplicates(rows, 0.8, block=block)) == slow


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=12), st.integers(1, 5))
def test_every_run_stands_in_the_text(units, n) -> None:
    text = " ".join(units)
    assert all(f" {run} " in f" {text} " for run in word_runs(text, n))
    assert bool(word_runs(text, n)) == (len(units) >= n)


def test_scripts_that_do_not_separate_words_are_read_by_characters() -> None:
    assert word_runs("我喜欢喝茶。", 2) == {"我 喜 欢 喝", "喜 欢 喝 茶"}
    assert word_runs("tea 茶 is the best drink", 2) >= {"tea 茶", "best drink"}


def test_the_first_shared_run_is_named_and_allowed_ones_are_not() -> None:
    hidden = SharedWording(hidden_texts("Please be very brief today.", [Aspect("tone", "never shout at me", "")]), 3)
    assert hidden.first_in("Never SHOUT at anyone; be very brief.") == "be very brief"
    assert hidden.first_in("Please, be brief.") is None
    asked = SharedWording(["Please be very brief today."], 3, allowed="Could you be very brief today?")
    assert asked.first_in("I will be very brief today.") is None
    assert asked.first_in("please be very") == "please be very"
