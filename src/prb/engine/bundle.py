"""Token sequences that begin alike, and how they are packed into forward passes. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Tokens = Sequence[int]


@dataclass(frozen=True)
class Bundle:
    """The answers to one query: what they share is computed once."""

    prefix: Tokens
    suffixes: tuple[Tokens, ...]

    @property
    def repeated(self) -> int:
        """Tokens a plain loop computes."""
        return sum(len(self.prefix) + len(suffix) for suffix in self.suffixes)

    @property
    def unique(self) -> int:
        return len(self.prefix) + sum(map(len, self.suffixes))


def bundle(sequences: Sequence[Tokens], at_most: int | None = None) -> Bundle:
    """Split after the longest common beginning, which leaves every sequence at least one token of its own."""
    shared = common_prefix(sequences)
    shared = min(shared, *(len(s) - 1 for s in sequences), shared if at_most is None else at_most)
    return Bundle(sequences[0][:shared], tuple(s[shared:] for s in sequences))


def common_prefix(sequences: Sequence[Tokens]) -> int:
    first = sequences[0]
    shared = min(map(len, sequences))
    for other in sequences[1:]:
        n = 0
        while n < shared and first[n] == other[n]:
            n += 1
        shared = n
    return shared


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions in groups whose padded size, rows × longest, stays within the budget; alike lengths go together."""
    group: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            yield group
            group = []
        group.append(position)
    if group:
        yield group
