"""Affinity in words: TF-IDF cosine of an answer to the person's posts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log, sqrt

from prb.models import MODELS
from prb.text.tokens import words
from prb.types import Ask, Scorer

Vector = dict[str, float]


class Lexical:
    """Posts are the corpus; words of the question carry no weight, since both answers share them."""

    fingerprint = "lexical"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [self._affinity(ask) for ask in asks]

    def _affinity(self, ask: Ask) -> float:
        posts = [words(post.text) for post in ask.query.posts]
        if not posts:
            return 0.0
        weight = _idf(posts, ignored=set(words(ask.query.question)))
        answer = _unit(words(ask.answer), weight)
        return sum(_dot(answer, _unit(post, weight)) for post in posts) / len(posts)


def _idf(corpus: Sequence[list[str]], ignored: set[str]) -> Vector:
    """log((1 + n) / (1 + df)) + 1, the smoothed form; only words of the corpus have a weight."""
    seen = Counter(word for document in corpus for word in set(document))
    return {word: log((1 + len(corpus)) / (1 + df)) + 1 for word, df in seen.items() if word not in ignored}


def _unit(document: list[str], weight: Vector) -> Vector:
    raw = {word: n * weight[word] for word, n in Counter(document).items() if word in weight}
    norm = sqrt(sum(value * value for value in raw.values()))
    return {word: value / norm for word, value in raw.items()} if norm else {}


def _dot(a: Vector, b: Vector) -> float:
    return sum(value * b[word] for word, value in a.items() if word in b)


@MODELS.register("lexical")
def lexical() -> Scorer:
    """Baseline: TF-IDF similarity of the answer to the person's posts."""
    return Lexical()
