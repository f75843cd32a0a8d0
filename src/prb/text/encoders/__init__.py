"""Sentence encoders: text in, unit vectors out. `static` needs neither torch nor a download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prb.registry import Registry

Matrix = NDArray[np.float32]


class Encoder(Protocol):
    fingerprint: str

    def encode(self, texts: Sequence[str]) -> Matrix:
        """One unit row a text; a text without any known word gets a row of zeros.
        A row depends on its own text alone, never on its neighbours."""
        ...


ENCODERS: Registry[Encoder] = Registry("encoder", package="prb.text.encoders", group="prb.encoders")


def unit(rows: Matrix) -> Matrix:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


class Remembering:
    """Encodes each distinct text once: posts and questions come back many times in a run."""

    def __init__(self, inner: Encoder, capacity: int = 50_000) -> None:
        self.fingerprint = inner.fingerprint
        self._inner = inner
        self._capacity = capacity
        self._known: dict[str, NDArray[np.float32]] = {}

    def encode(self, texts: Sequence[str]) -> Matrix:
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._known.update(zip(missing, self._inner.encode(missing), strict=True))
        rows = np.stack([self._known[text] for text in texts]) if texts else self._inner.encode([])
        while len(self._known) > self._capacity:
            self._known.pop(next(iter(self._known)))
        return rows
