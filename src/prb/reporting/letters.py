"""Significance groups: models that cannot be told apart share a letter (compact letter display).

Each letter is a set of models of which no two were told apart, and every such couple has a letter in common: a cover of
the graph of undecided couples by cliques (Piepho 2004, doi:10.1198/1061860043515), here grown greedily from the best
model down, which needs no more than one letter a couple.
"""

from __future__ import annotations

from collections.abc import Collection
from string import ascii_lowercase


def letters(models: int, apart: Collection[tuple[int, int]]) -> list[str]:
    """Of models 0, 1, …, best first: two share a letter exactly if neither (i, j) nor (j, i) is in `apart`."""
    told = {frozenset(couple) for couple in apart}
    groups: list[list[int]] = []
    for i in range(models):
        alike = [j for j in range(i + 1, models) if frozenset((i, j)) not in told]
        waiting = [j for j in alike if not any(i in group and j in group for group in groups)]
        while waiting:
            groups.append(_grow([i, waiting[0]], models, told))
            waiting = [j for j in waiting if j not in groups[-1]]
        if not any(i in group for group in groups):
            groups.append([i])
    groups.sort()
    return ["".join(_letter(n) for n, group in enumerate(groups) if i in group) for i in range(models)]


def _grow(seed: list[int], models: int, told: set[frozenset[int]]) -> list[int]:
    """As many more models as are alike with all so far."""
    group = list(seed)
    for k in range(models):
        if k not in group and all(frozenset((k, member)) not in told for member in group):
            group.append(k)
    return sorted(group)


def _letter(n: int) -> str:
    """a … z, a1 … z1, …: written one after the other they can still be told apart."""
    turn, place = divmod(n, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(turn) if turn else "")
