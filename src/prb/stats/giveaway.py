"""Which words give the chosen answer away: those that stand in it and not in its rival more often than chance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import sqrt

from prb.stats.paired import holm

LEAST = 10
"""A word must tell the two answers apart in so many pairs to be looked at."""


@dataclass(frozen=True)
class Giveaway:
    word: str
    chosen: int
    """Pairs where only the chosen answer has it."""
    rejected: int
    p: float
    """Two-sided, after Holm's correction over all words looked at."""


def giveaways(
    answers: Iterable[tuple[AbstractSet[str], AbstractSet[str]]], clusters: Sequence[str], least: int = LEAST
) -> tuple[list[Giveaway], int]:
    """Words by p, and how many were looked at.

    Sign test on cluster sums s of ±1 (only in chosen, only in rejected): z = Σs / √Σs², normal under the hypothesis
    that within each cluster either side could have had the word. Mirror twins cancel exactly.
    """
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    only: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for (chosen, rejected), cluster in zip(answers, clusters, strict=True):
        for side, words, sign in ((0, chosen - rejected, 1), (1, rejected - chosen, -1)):
            only[side].update(words)
            for word in words:
                sums[word][cluster] += sign
    looked_at = sorted(word for word in sums if only[0][word] + only[1][word] >= least)
    ps = holm([_p(sums[word].values()) for word in looked_at])
    found = [Giveaway(word, only[0][word], only[1][word], p) for word, p in zip(looked_at, ps, strict=True)]
    return sorted(found, key=lambda g: (g.p, -abs(g.chosen - g.rejected), g.word)), len(looked_at)


def _p(sums: Iterable[int]) -> float:
    from scipy.stats import norm

    values = list(sums)
    spread = sqrt(sum(value * value for value in values))
    return float(2 * norm.sf(abs(sum(values)) / spread)) if spread else 1.0
