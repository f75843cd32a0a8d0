"""Long streams of items: in lists of a given size, and without needless work in between."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
OBJECTS = 200_000
"""New objects after which Python looks for reference cycles; by default a few hundred, less than a row has."""


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time; the last list may be shorter."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Rows are many small objects without reference cycles; looking for some took a fifth of the time of a run."""
    before = gc.get_threshold()
    if before[0]:  # 0: somebody has turned it off
        gc.set_threshold(max(before[0], OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
