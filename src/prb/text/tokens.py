"""Words and sentences, counted the same way everywhere."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n+")


def words(text: str) -> list[str]:
    """Lower-case words; an apostrophe or hyphen inside a word belongs to it."""
    return _WORD.findall(text.lower().replace("’", "'"))


def grams(text: str, n: int) -> set[str]:
    """All runs of n words."""
    found = words(text)
    return {" ".join(found[i : i + n]) for i in range(len(found) - n + 1)}


def sentences(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in _SENTENCE.split(text)) if part]
