from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.text.tokens import grams, sentences, words


@pytest.mark.parametrize(
    ("text", "wanted"),
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
def test_words_are_lower_case_and_keep_inner_apostrophes_and_hyphens(text: str, wanted: list[str]) -> None:
    assert words(text) == wanted


@settings(deadline=None)
@given(st.text())
def test_words_of_words_are_the_same_words(text: str) -> None:
    assert words(" ".join(words(text))) == words(text)


def test_grams_are_all_runs_of_n_words() -> None:
    assert grams("One two, three. FOUR!", 2) == {"one two", "two three", "three four"}


def test_a_text_shorter_than_n_words_has_no_grams() -> None:
    assert grams("one two", 3) == set()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=12), st.integers(1, 5))
def test_every_gram_stands_in_the_text(found: list[str], n: int) -> None:
    text = " ".join(found)
    assert all(f" {gram} " in f" {text} " for gram in grams(text, n))
    assert bool(grams(text, n)) == (len(found) >= n)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("No end", ["No end"]),
        ("Costs 3.50 in all. Fine.", ["Costs 3.50 in all.", "Fine."]),
        ("First line\n\n- second line\n", ["First line", "- second line"]),
    ],
)
def test_sentences_end_at_marks_and_at_lines(text: str, wanted: list[str]) -> None:
    assert sentences(text) == wanted


def test_a_closing_quote_ends_the_sentence_before_it() -> None:
    assert len(sentences('He said "No." Then he left.')) == 2
