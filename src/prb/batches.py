"""Any iterable in lists of a given size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time; the last list may be shorter."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch
