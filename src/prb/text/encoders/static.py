"""Static word vectors from the `wordllama` package: 256 dimensions, carried inside its wheel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from prb.text.encoders import ENCODERS, CachedEncoder, Encoder, Matrix, unit


@cache
def _vectors() -> Any:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    import wordllama

    # importing it turns on INFO logging for all libraries, some of which then log every request
    root.level, root.handlers = before[0], before[1]

    # by default it searches for the weights beside the package instead of inside it
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


class Static:
    def __init__(self) -> None:
        self.fingerprint = f"wordllama-{version('wordllama')}"

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), 256), dtype=np.float32)
        filled = [i for i, text in enumerate(texts) if text.strip()]
        if filled:
            rows[filled] = _vectors().embed([texts[i] for i in filled], norm=False, batch_size=1)
        return unit(rows)


@ENCODERS.register("static")
def static() -> Encoder:
    """Averaged static word vectors (wordllama, 256-d): instant, offline, no torch."""
    return CachedEncoder(Static())
