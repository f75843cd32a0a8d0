"""A baseline for users who are described, not quoted: `preference for brevity: high` against the answer's length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log

from prb.models import MODELS
from prb.text.tokens import words
from prb.types import Ask

TYPICAL_WORDS = 60
"""An answer of this length is neither short nor long."""
MOST = 2.0
"""Answers beyond 16 times the typical length, or below a sixteenth, count as that."""
SHORT = re.compile(r"\b(brevity|brief|briefness|concise|conciseness|short|shortness|terse|terseness)\b", re.I)
LONG = re.compile(r"\b(detail|details|detailed|depth|length|long|verbosity|verbose|elaboration|thoroughness)\b", re.I)
LEVELS = {
    **dict.fromkeys(("very high", "strong", "always"), 1.0),
    **dict.fromkeys(("high", "yes", "true"), 1.0),
    **dict.fromkeys(("medium", "moderate", "neutral", "average"), 0.0),
    **dict.fromkeys(("low", "very low", "no", "false", "none", "never"), -1.0),
}


@MODELS.register("attributes")
class Attributes:
    """Baseline: reads attributes such as `preference for brevity: high` (or 0..1) and scores the length by them.

    It knows about length and nothing else; without such an attribute every answer ties. Not calibrated.
    """

    fingerprint = "attributes-1"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [self._fit(ask) for ask in asks]

    def _fit(self, ask: Ask) -> float:
        wished = sum(wish_for_brevity(post.text) for post in ask.query.posts)
        return wished * shortness(ask.answer) if wished else 0.0


def wish_for_brevity(post: str) -> float:
    """From -1 (long answers) to 1 (short ones); 0 for a post that states no such wish."""
    name, colon, value = post.partition(":")
    level = LEVELS.get(value.strip().lower(), _share(value)) if colon and "\n" not in post else None
    if level is None or bool(SHORT.search(name)) == bool(LONG.search(name)):
        return 0.0
    return level if SHORT.search(name) else -level


def _share(value: str) -> float | None:
    """A number from 0 to 1 as a level from -1 to 1."""
    try:
        number = float(value)
    except ValueError:
        return None
    return 2 * number - 1 if 0 <= number <= 1 else None


def shortness(answer: str) -> float:
    """0 at the typical length; plus or minus 1 for a quarter or four times of it."""
    length = log(TYPICAL_WORDS / max(1, len(words(answer)))) / log(4)
    return max(-MOST, min(MOST, length))
