"""Words, sentences, lists and reading level, computed in the same way everywhere."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n+")
_LIST = re.compile(r"(?m)^\s*(?:[-*•]|\d+[.)])\s")


def words(text: str) -> list[str]:
    """Lower-case words; an apostrophe or hyphen inside a word belongs to it."""
    return _WORD.findall(text.lower().replace("’", "'"))


def sentences(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in _SENTENCE.split(text)) if part]


def is_list(text: str) -> bool:
    """Whether a line starts with a bullet or a number."""
    return bool(_LIST.search(text))


def reading_grade(text: str) -> float:
    """Flesch-Kincaid grade of English prose (Kincaid et al. 1975), with syllables counted by hyphenation."""
    spoken = words(text)
    if not spoken:
        return 0.0
    per_sentence = len(spoken) / max(1, len(sentences(text)))
    return 0.39 * per_sentence + 11.8 * sum(map(syllables, spoken)) / len(spoken) - 15.59


def syllables(word: str) -> int:
    return len(_hyphenation().positions(word)) + 1


@cache
def _hyphenation() -> Any:
    from pyphen import Pyphen

    return Pyphen(lang="en_US")
