"""Texts that begin alike → token ids, with what they share tokenized once.

A tokenizer first splits a text at its special tokens, leftmost and longest first, and tokenizes what lies between them
separately. So a text can be cut in front of a special token, and the ids of its parts are the ids of the whole. Which
special tokens are found up to the cut depends on the text up to the cut plus the length of the longest special token;
if the texts agree that far, they have the same ids before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Encoded(NamedTuple):
    ids: list[int]
    offsets: list[tuple[int, int]]
    """First character of each token and the one after its last."""


class Encoder:
    """Exactly what the tokenizer makes of each text alone."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        found_first = {number: token for number, token in added.items() if not token.normalized}
        self._reach = max((len(token.content) for token in found_first.values()), default=0)
        depends_on_neighbors = any(token.single_word for token in found_first.values())
        whole = depends_on_neighbors or getattr(tokenizer, "split_special_tokens", False)
        self._cuts = {} if whole else {n: token.content for n, token in found_first.items()}

    def one(self, text: str, *, add_special_tokens: bool = False) -> Encoded:
        made = self._tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
        return Encoded(list(made["input_ids"]), list(made["offset_mapping"]))

    def alike(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[Encoded]:
        first = self.one(texts[0], add_special_tokens=add_special_tokens)
        # special tokens that the tokenizer adds belong to the whole text
        cut = 0 if add_special_tokens or len(texts) == 1 else self._cut(texts, first)
        if not cut:
            return [first, *(self.one(text, add_special_tokens=add_special_tokens) for text in texts[1:])]
        start = first.offsets[cut][0]
        made = [first]
        for text in texts[1:]:
            tail = self.one(text[start:])
            offsets = [*first.offsets[:cut], *((a + start, b + start) for a, b in tail.offsets)]
            made.append(Encoded([*first.ids[:cut], *tail.ids], offsets))
        return made

    def _cut(self, texts: Sequence[str], first: Encoded) -> int:
        """The last token of the first text in front of which all texts may be cut, or 0.

        A token that has taken the space before it does not start with its content, so it is passed over.
        """
        decided = common_prefix(texts) - self._reach
        for position in range(len(first.ids) - 1, 0, -1):
            start = first.offsets[position][0]
            content = self._cuts.get(first.ids[position])
            if content and start <= decided and texts[0].startswith(content, start):
                return position
        return 0


def common_prefix(sequences: Sequence[Sequence[Any]]) -> int:
    """How many tokens, or characters, all of them begin with; they are of one type."""
    first = sequences[0]
    shared = min(map(len, sequences))
    for other in sequences[1:]:
        low, high = 0, shared  # alike up to low, not beyond high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if first[low:middle] == other[low:middle] else (low, middle - 1)
        shared = low
    return shared
