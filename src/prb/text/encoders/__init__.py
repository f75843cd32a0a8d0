"""Sentence encoders: text in, unit vectors out. `static` needs neither torch nor a download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from prb.cache import Memo
from prb.registry import Registry

Matrix = NDArray[np.float32]


class Encoder(Protocol):
    fingerprint: str

    def encode(self, texts: Sequence[str]) -> Matrix:
        """One unit row per text; a text without any known word gets a row of zeros.
        A row depends on its own text alone, never on its neighbors."""
        ...


ENCODERS: Registry[Encoder] = Registry("encoder", package="prb.text.encoders", group="prb.encoders")


def unit(rows: Matrix) -> Matrix:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


class CachedEncoder:
    """Encodes each distinct text once: posts and questions recur many times in a run."""

    def __init__(self, inner: Encoder, capacity: int = 50_000) -> None:
        self.fingerprint = inner.fingerprint
        self._inner = inner
        self._memo: Memo[NDArray[np.float32]] = Memo(capacity=capacity)

    def encode(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return self._inner.encode([])
        return np.stack(cast(list[Matrix], self._memo.map(self._inner.encode, texts)))
