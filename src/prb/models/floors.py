"""Floors: what a number is worth that knows neither the person nor the question."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from prb.models import MODELS
from prb.types import Ask, Scorer


class Random:
    """Hashes question and answer, so twins, reruns and subsets agree; the person does not enter."""

    def __init__(self, seed: int) -> None:
        self.fingerprint = f"random-{seed}"
        self._seed = seed

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [self._draw(ask.query.question, ask.answer) for ask in asks]

    def _draw(self, question: str, answer: str) -> float:
        digest = hashlib.sha256(f"{self._seed}\0{question}\0{answer}".encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2**56


class Length:
    fingerprint = "length"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [float(len(ask.answer)) for ask in asks]


class Constant:
    fingerprint = "constant"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [0.0] * len(asks)


@MODELS.register("random")
def random(seed: int = 0) -> Scorer:
    """Floor: a number drawn by hash of question and answer."""
    return Random(seed)


@MODELS.register("length")
def length() -> Scorer:
    """Floor: prefers the longer answer."""
    return Length()


@MODELS.register("constant")
def constant() -> Scorer:
    """Floor: every pair is a tie."""
    return Constant()
