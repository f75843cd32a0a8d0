"""Floors: what a score is worth that knows neither the user nor the question."""

from __future__ import annotations

from collections.abc import Sequence

from prb.hashing import draw
from prb.models import MODELS
from prb.types import Ask, Scorer


@MODELS.register("random")
def random(seed: int = 0) -> Scorer:
    """Floor: a number drawn by hash of question and answer."""
    return Random(seed)


class Random:
    """Hashes question and answer, so that twins, reruns and subsets agree; the user does not enter."""

    def __init__(self, seed: int) -> None:
        self.fingerprint = f"random-{seed}"
        self._seed = seed

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [draw(f"{self._seed}\0{ask.query.question}\0{ask.answer}", bits=56) / 2**56 for ask in asks]


@MODELS.register("length")
def length() -> Scorer:
    """Floor: prefers the longer answer."""
    return Length()


class Length:
    fingerprint = "length"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [float(len(ask.answer)) for ask in asks]


@MODELS.register("constant")
def constant() -> Scorer:
    """Floor: every pair is a tie."""
    return Constant()


class Constant:
    fingerprint = "constant"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [0.0] * len(asks)
