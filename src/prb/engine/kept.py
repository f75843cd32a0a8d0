"""Prefixes that come again: the most recent ones' keys and values, as many as fit the memory they are given."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prb.engine.bundle import Tokens


@dataclass(frozen=True)
class Prefix:
    """What a forward pass left of one prefix, without padding: keys and values a layer, and the last token's state."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    last: Tensor

    @property
    def length(self) -> int:
        return int(self.layers[0][0].shape[1])

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(part.numel() * part.element_size() for layer in self.layers for part in layer)


class Kept:
    """Forgets the prefix that was longest not asked for when `limit` bytes are full."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._prefixes: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()

    def get(self, tokens: Tokens) -> Prefix | None:
        key = tuple(tokens)
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
        return self._prefixes.get(key)

    def put(self, tokens: Tokens, prefix: Prefix) -> None:
        if prefix.size > self._limit:
            return
        self._prefixes[tuple(tokens)] = prefix
        self._size += prefix.size
        while self._size > self._limit:
            self._size -= self._prefixes.popitem(last=False)[1].size


def apart(cache: Any, last: Tensor, lengths: Sequence[int]) -> list[Prefix]:
    """The rows of a batch that was padded on the left, each for itself."""
    return [
        Prefix(tuple((_tail(x.keys, row, n), _tail(x.values, row, n)) for x in cache.layers), last[row].clone())
        for row, n in enumerate(lengths)
    ]


def _tail(tensor: Tensor, row: int, length: int) -> Tensor:
    return tensor[row, :, tensor.shape[2] - length :].clone()


def together(prefixes: Sequence[Prefix]) -> tuple[Any, Tensor]:
    """One batch again, padded on the left with zeros, which the attention mask hides."""
    from transformers import DynamicCache

    width = max(prefix.length for prefix in prefixes)
    cache = DynamicCache()
    for number in range(len(prefixes[0].layers)):
        keys, values = (torch.stack([_widened(p.layers[number][k], width) for p in prefixes]) for k in (0, 1))
        cache.update(keys, values, number)
    return cache, torch.stack([prefix.last for prefix in prefixes])


def _widened(tensor: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, 0, width - tensor.shape[1], 0))
