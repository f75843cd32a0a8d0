"""The planner that needs no LLM: it quotes."""

from __future__ import annotations

import re

import numpy as np

from prb.config import Count
from prb.evaluation.planners import PLANNERS, Planner
from prb.text.encoders import ENCODERS
from prb.text.tokens import sentences
from prb.types import Query

TASTE = re.compile(
    r"\b(i (?:really |always |never |would rather |just |don't |can't |won't )*"
    r"(?:prefer|like|love|hate|want|need|enjoy|dislike|trust|avoid|loathe|learn best|work best)"
    r"|i'd rather|i can't stand|what i (?:want|need)|give me|spare me|drives me|makes me|for me|never again|no more)\b",
    re.IGNORECASE,
)


class Extractive:
    def __init__(self, aspects: int, encoder: str) -> None:
        self._aspects = aspects
        self._encoder = ENCODERS.make(encoder)
        self.fingerprint = f"extractive-{aspects}-{self._encoder.fingerprint}"

    def plan(self, query: Query) -> tuple[str, ...]:
        written = [s for post in query.posts for s in sentences(post.text) if not s.endswith("?")]
        preferred = [s for choice in query.choices for s in sentences(choice.chosen)]
        quotes = written + preferred
        if not quotes:
            return ()
        rows = self._encoder.encode([query.question, *quotes])
        taste = np.array([bool(TASTE.search(s)) for s in written] + [False] * len(preferred))
        near = rows[1:] @ rows[0] + taste
        return tuple(quotes[i] for i in np.argsort(-near, kind="stable")[: self._aspects])


@PLANNERS.register("extractive")
def extractive(aspects: Count = 3, encoder: str = "static") -> Planner:
    """Sentences on the user's own taste, or of answers they preferred; those near the question first."""
    return Extractive(aspects, encoder)
