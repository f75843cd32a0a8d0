"""Affinity in a sentence encoder's space: is the answer near what this person writes about?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prb.models import MODELS
from prb.text.encoders import ENCODERS, Encoder
from prb.types import Ask, Scorer


class Embedding:
    """Mean cosine of the answer to the `nearest` posts, beyond its cosine to the question itself."""

    def __init__(self, encoder: Encoder, nearest: int) -> None:
        self.fingerprint = f"embedding-{encoder.fingerprint}-{nearest}"
        self._encoder = encoder
        self._nearest = nearest

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [self._affinity(ask) for ask in asks]

    def _affinity(self, ask: Ask) -> float:
        texts = [ask.answer, ask.query.question, *(post.text for post in ask.query.posts)]
        answer, question, *posts = self._encoder.encode(texts)
        to_question = float(answer @ question)
        if not posts:
            return -to_question
        relevant = np.argsort([-float(question @ post) for post in posts], kind="stable")[: self._nearest]
        return float(np.mean([float(answer @ posts[i]) for i in relevant])) - to_question


@MODELS.register("embedding")
def embedding(encoder: str = "static", nearest: int = 3) -> Scorer:
    """Baseline: similarity of the answer to the person's relevant posts, beyond that to the question."""
    return Embedding(ENCODERS.make(encoder), nearest)
