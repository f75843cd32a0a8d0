"""The planner that needs no language model: it quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from prb.evaluation.planners import PLANNERS, Planner
from prb.text.encoders import ENCODERS
from prb.text.tokens import sentences
from prb.types import Post

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

    def plan(self, question: str, posts: Sequence[Post]) -> tuple[str, ...]:
        found = [s for post in posts for s in sentences(post.text) if not s.endswith("?")]
        if not found:
            return ()
        rows = self._encoder.encode([question, *found])
        taste = np.array([bool(TASTE.search(s)) for s in found])
        near = rows[1:] @ rows[0] + taste
        return tuple(found[i] for i in np.argsort(-near, kind="stable")[: self._aspects])


@PLANNERS.register("extractive")
def extractive(aspects: int = 3, encoder: str = "static") -> Planner:
    """Sentences in which the person speaks of their own taste, those near the question first."""
    return Extractive(aspects, encoder)
