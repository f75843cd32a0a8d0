"""Reading level of English prose: Flesch-Kincaid grade (Kincaid et al. 1975), syllables counted by hyphenation."""

from __future__ import annotations

from functools import cache
from typing import Any

from prb.text.tokens import sentences, words


@cache
def _hyphenation() -> Any:
    from pyphen import Pyphen

    return Pyphen(lang="en_US")


def syllables(word: str) -> int:
    return len(_hyphenation().positions(word)) + 1


def grade(text: str) -> float:
    found = words(text)
    if not found:
        return 0.0
    per_sentence = len(found) / max(1, len(sentences(text)))
    return 0.39 * per_sentence + 11.8 * sum(map(syllables, found)) / len(found) - 15.59
