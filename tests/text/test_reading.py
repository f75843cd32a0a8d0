from __future__ import annotations

import pytest

from prb.text.reading import grade, syllables


@pytest.mark.parametrize(("word", "n"), [("cat", 1), ("garden", 2), ("remember", 3), ("celebration", 4)])
def test_syllables_are_counted_by_hyphenation(word: str, n: int) -> None:
    assert syllables(word) == n


def test_the_grade_is_that_of_kincaid() -> None:
    # three words of one syllable in one sentence: 0.39 · 3 + 11.8 · 1 − 15.59
    assert grade("The cat sat.") == pytest.approx(-2.62)
    # four words, five syllables, two sentences: 0.39 · 2 + 11.8 · 5 / 4 − 15.59
    assert grade("The cat sat. Garden!") == pytest.approx(-0.06)


def test_long_words_and_sentences_read_harder() -> None:
    easy = "The cat sat. The dog ran. It was fun."
    hard = "Notwithstanding considerable organisational difficulties, administrators adopted international regulations."
    assert grade(hard) > grade(easy) + 10


@pytest.mark.parametrize("text", ["", "…", "🙂"])
def test_a_text_without_words_has_grade_zero(text: str) -> None:
    assert grade(text) == 0.0
