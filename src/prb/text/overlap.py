"""Overlap between texts: near-duplicates by cosine, and wording that is repeated where it must not be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from prb.text.encoders import Matrix
from prb.text.tokens import words
from prb.types import Aspect

NEAR_DUPLICATE = 0.9
"""Texts with a cosine of at least this are near-duplicates."""
LEAK_WORDS = 8
"""A run of this many words is a leak; in long texts, shorter runs are shared by chance."""
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


@lru_cache(maxsize=8192)  # the same posts stand beside many answers
def word_runs(text: str, n: int) -> frozenset[str]:
    """All runs of `n` words; of twice as many characters in scripts that do not separate words."""
    units = words(text)
    if not text.isascii() and len(_SPACELESS.findall(text)) > 0.3 * sum(map(len, units)):
        units, n = list("".join(units)), 2 * n
    return frozenset(" ".join(units[i : i + n]) for i in range(len(units) - n + 1))


def hidden_texts(narrative: str, rubric: Iterable[Aspect]) -> list[str]:
    """What no reward model may read."""
    return [narrative, *(text for aspect in rubric for text in aspect)]


class SharedWording:
    """Runs of `n` words that must not be repeated elsewhere: those of `texts`, except for runs of `allowed`."""

    def __init__(self, texts: Iterable[str], n: int = LEAK_WORDS, *, allowed: str = "") -> None:
        self._n = n
        self._runs = frozenset().union(*(word_runs(text, n) for text in texts)) - word_runs(allowed, n)

    def first_in(self, text: str) -> str | None:
        """The alphabetically first of these runs in `text`, if there is one."""
        shared = self._runs & word_runs(text, self._n) if self._runs else None
        return min(shared) if shared else None
