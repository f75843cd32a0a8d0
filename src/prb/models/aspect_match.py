"""Similarity of an answer to the query's plan: a ceiling under `oracle`, a baseline under `plan`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.models import MODELS
from prb.text.encoders import ENCODERS, Encoder
from prb.text.tokens import sentences
from prb.types import Ask, Scorer


class AspectMatch:
    """For each aspect the best-matching sentence of the answer, averaged. Without a plan every answer ties."""

    def __init__(self, encoder: Encoder) -> None:
        self.fingerprint = f"aspect-match-{encoder.fingerprint}"
        self._encoder = encoder

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [self._match(ask) for ask in asks]

    def _match(self, ask: Ask) -> float:
        plan, parts = ask.query.plan, [ask.answer, *sentences(ask.answer)]
        if not plan:
            return 0.0
        rows = self._encoder.encode([*plan, *parts])
        similarity = rows[: len(plan)] @ rows[len(plan) :].T
        return float(similarity.max(axis=1).mean())


@MODELS.register("aspect-match")
def aspect_match(encoder: str = "static") -> Scorer:
    """Similarity of the answer to the query's plan; it sees the true rubric only under `oracle`."""
    return AspectMatch(ENCODERS.make(encoder))
