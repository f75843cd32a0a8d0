from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.text.words import is_list, reading_grade, sentences, syllables, words


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
def test_words_are_lower_case_and_keep_inner_apostrophes_and_hyphens(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@settings(deadline=None)
@given(st.text())
def test_words_of_words_are_the_same_words(text: str) -> None:
    assert words(" ".join(words(text))) == words(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("No end", ["No end"]),
        ("Costs 3.50 in all. Fine.", ["Costs 3.50 in all.", "Fine."]),
        ("First line\n\n- second line\n", ["First line", "- second line"]),
    ],
)
def test_sentences_end_at_marks_and_at_lines(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_closing_quote_ends_the_sentence_before_it() -> None:
    assert len(sentences('He said "No." Then he left.')) == 2


@pytest.mark.parametrize("text", ["- one\n- two", "Thus:\n1. one", "  2) two", "* one"])
def test_bullets_and_numbers_make_a_list(text: str) -> None:
    assert is_list(text)


@pytest.mark.parametrize("text", ["", "One - two.", "3.5 liters", "-5 degrees"])
def test_prose_is_no_list(text: str) -> None:
    assert not is_list(text)


@pytest.mark.parametrize(("word", "n"), [("cat", 1), ("garden", 2), ("remember", 3), ("celebration", 4)])
def test_syllables_are_counted_by_hyphenation(word: str, n: int) -> None:
    assert syllables(word) == n


def test_the_grade_is_that_of_kincaid() -> None:
    # three words of one syllable in one sentence: 0.39 · 3 + 11.8 · 1 − 15.59
    assert reading_grade("The cat sat.") == pytest.approx(-2.62)
    # four words, five syllables, two sentences: 0.39 · 2 + 11.8 · 5 / 4 − 15.59
    assert reading_grade("The cat sat. Garden!") == pytest.approx(-0.06)


def test_long_words_and_sentences_read_harder() -> None:
    easy = "The cat sat. The dog ran. It was fun."
    hard = "Notwithstanding considerable organizational difficulties, administrators adopted international regulations."
    assert reading_grade(hard) > reading_grade(easy) + 10


@pytest.mark.parametrize("text", ["", "…", "🙂"])
def test_a_text_without_words_has_grade_zero(text: str) -> None:
    assert reading_grade(text) == 0.0
