"""Untrained baselines: floors that know neither the user nor the question, and how close an answer is to what the user
writes about, in words, in meaning, or to the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from prb.config import Count
from prb.hashing import draw
from prb.models import MODELS
from prb.text.encoders import ENCODERS, Encoder
from prb.text.tokens import sentences, words
from prb.types import Ask, Scorer


@MODELS.register("random")
@dataclass(frozen=True)
class Random:
    """Floor: a number drawn by hash of question and answer.

    Twins, reruns and subsets agree; the user does not enter.
    """

    seed: int = 0

    @property
    def fingerprint(self) -> str:
        return f"random-{self.seed}"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [draw(f"{self.seed}\0{ask.query.question}\0{ask.answer}", bits=56) / 2**56 for ask in asks]


@MODELS.register("length")
class Length:
    """Floor: prefers the longer answer."""

    fingerprint = "length"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [float(len(ask.answer)) for ask in asks]


@MODELS.register("constant")
class Constant:
    """Floor: every pair is a tie."""

    fingerprint = "constant"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [0.0] * len(asks)


@MODELS.register("embedding")
def embedding(encoder: str = "static", nearest: Count = 3) -> Scorer:
    """Baseline: similarity of the answer to the user's relevant posts, beyond that to the question."""
    return Embedding(ENCODERS.make(encoder), nearest)


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


@MODELS.register("aspect-match")
def aspect_match(encoder: str = "static") -> Scorer:
    """Similarity of the answer to the query's plan; it sees the true rubric only under `oracle`."""
    return AspectMatch(ENCODERS.make(encoder))


class AspectMatch:
    """For each aspect the best-matching sentence of the answer, averaged: a ceiling under `oracle`, a baseline under
    `plan`. Without a plan every answer ties."""

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


@MODELS.register("lexical")
class Lexical:
    """Baseline: TF-IDF similarity of the answer to the user's posts.

    Posts are the corpus; words of the question carry no weight, since both answers share them.
    """

    fingerprint = "lexical"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [self._affinity(ask) for ask in asks]

    def _affinity(self, ask: Ask) -> float:
        posts = [words(post.text) for post in ask.query.posts]
        if not posts:
            return 0.0
        ignored = set(words(ask.query.question))
        seen = Counter(word for post in posts for word in set(post))
        # log((1 + n) / (1 + df)) + 1, the smoothed form; only words of the posts have a weight
        idf = {word: log((1 + len(posts)) / (1 + df)) + 1 for word, df in seen.items() if word not in ignored}
        answer = _unit_tf_idf(words(ask.answer), idf)
        return sum(_dot(answer, _unit_tf_idf(post, idf)) for post in posts) / len(posts)


def _unit_tf_idf(document: list[str], idf: dict[str, float]) -> dict[str, float]:
    raw = {word: n * idf[word] for word, n in Counter(document).items() if word in idf}
    norm = sqrt(sum(value * value for value in raw.values()))
    return {word: value / norm for word, value in raw.items()} if norm else {}


def _dot(a: dict[str, float], b: dict[str, float]) -> float:
    return sum(value * b[word] for word, value in a.items() if word in b)
