"""Words, sentences and tokens; near-duplicates and leaks between texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from prb.text.encoders import Matrix
from prb.types import Aspect

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n+")
_LIST = re.compile(r"(?m)^\s*(?:[-*•]|\d+[.)])\s")


def words(text: str) -> list[str]:
    """Lower-case words; an apostrophe or hyphen inside a word belongs to it."""
    return _WORD.findall(text.lower().replace("’", "'"))


def normalized(text: str) -> str:
    """For comparing texts: without differences in case and white space."""
    return " ".join(text.casefold().split())


def sentences(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in _SENTENCE.split(text)) if part]


def style_rates(text: str) -> list[float]:
    """Sentences, commas, distinct words and letters of words, each per word."""
    tokens = words(text)
    counts = [len(sentences(text)), text.count(","), len(set(tokens)), sum(map(len, tokens))]
    return [count / max(len(tokens), 1) for count in counts]


def is_list(text: str) -> bool:
    """Whether a line starts with a bullet or a number."""
    return bool(_LIST.search(text))


def reading_grade(text: str) -> float:
    """Flesch-Kincaid grade of English prose (Kincaid et al. 1975), with syllables counted by hyphenation."""
    tokens = words(text)
    if not tokens:
        return 0.0
    from pyphen import Pyphen

    hyphens = Pyphen(lang="en_US").positions
    per_sentence = len(tokens) / max(1, len(sentences(text)))
    syllables = sum(len(hyphens(token)) + 1 for token in tokens)
    return 0.39 * per_sentence + 11.8 * syllables / len(tokens) - 15.59


NEAR_DUPLICATE = 0.9
"""Texts with a cosine of at least this are near-duplicates."""
LEAK_WORDS = 8
"""A run of this many words is a leak; long texts share shorter runs by chance."""
BLOCK = 1024
"""Rows compared with all others at a time, to bound memory."""
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Letters of scripts that do not separate words: Thai, Lao, Khmer, kana, Han."""


def similarity_blocks(rows: Matrix, block: int = BLOCK) -> Iterator[tuple[int, Matrix]]:
    """Cosines of unit rows with all rows, as (number of the first row, block × all)."""
    for start in range(0, len(rows), block):
        yield start, rows[start : start + block] @ rows.T


def near_duplicates(rows: Matrix, limit: float = NEAR_DUPLICATE, block: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Positions (later, earlier) of unit rows with a cosine of at least `limit`, in ascending order."""
    for start, cosines in similarity_blocks(rows, block):
        yield from ((start + int(i), int(j)) for i, j in np.argwhere(cosines >= limit) if j < start + i)


@lru_cache(maxsize=8192)  # the same posts are compared with many answers
def word_runs(text: str, n: int) -> frozenset[str]:
    """All runs of `n` words, or of 2n characters in scripts that do not separate words."""
    units = words(text)
    if not text.isascii() and len(_SPACELESS.findall(text)) > 0.3 * sum(map(len, units)):
        units, n = list("".join(units)), 2 * n
    return frozenset(" ".join(units[i : i + n]) for i in range(len(units) - n + 1))


def hidden_texts(narrative: str, rubric: Iterable[Aspect]) -> list[str]:
    """What no reward model may read."""
    return [narrative, *(text for aspect in rubric for text in (aspect.aspect, aspect.evidence, aspect.reason))]


class SharedWording:
    """Runs of `n` words in `texts`, except those in `allowed`, that must not be repeated elsewhere."""

    def __init__(self, texts: Iterable[str], n: int = LEAK_WORDS, *, allowed: str = "") -> None:
        self._n = n
        self._runs = frozenset().union(*(word_runs(text, n) for text in texts)) - word_runs(allowed, n)

    def first_in(self, text: str) -> str | None:
        """The alphabetically first of these runs in `text`, if there is one."""
        shared = self._runs & word_runs(text, self._n) if self._runs else None
        return min(shared) if shared else None
