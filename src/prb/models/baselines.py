"""Untrained baselines: floors that know neither the user nor the question, and how close an answer is to what the user
writes about, in words, in meaning, or to the plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import log, sqrt

import numpy as np

from prb.config import Count
from prb.data.votes import votes_of
from prb.hashing import draw
from prb.models import MODELS
from prb.models.scripted import ScriptedScorer
from prb.text.encoders import ENCODERS, Encoder, Vector
from prb.text.words import sentences, words
from prb.types import Ask, Scorer


@MODELS.register("random")
def random(seed: int = 0) -> Scorer:
    """Floor: a number drawn by hash of question and answer.

    Twins, reruns and subsets agree; the user does not enter.
    """
    return ScriptedScorer(
        lambda ask: draw(f"{seed}\0{ask.query.question}\0{ask.answer}", bits=56) / 2**56, f"random-{seed}"
    )


@MODELS.register("length")
def length() -> Scorer:
    """Floor: prefers the longer answer."""
    return ScriptedScorer(lambda ask: float(len(ask.answer)), "length")


@MODELS.register("constant")
def constant() -> Scorer:
    """Floor: every pair is a tie."""
    return ScriptedScorer(lambda _: 0.0, "constant")


@MODELS.register("embedding")
def embedding(encoder: str = "static", nearest: Count = 3, votes: bool = False) -> Scorer:
    """Baseline: similarity of the answer to the user's relevant posts and past choices, beyond that to the question.

    votes: similarity to what the user agreed with, minus that to what they disagreed with, for polis and other votes.
    """
    made = ENCODERS.make(encoder)
    kind, affinity = ("embedding-votes", vote_affinity) if votes else ("embedding", history_affinity)
    return ScriptedScorer(partial(affinity, made, nearest), f"{kind}-{made.fingerprint}-{nearest}")


def history_affinity(encoder: Encoder, nearest: int, ask: Ask) -> float:
    """Mean cosine of the answer to the `nearest` posts, beyond its cosine to the question itself; plus, over the
    `nearest` past choices, its mean cosine to what was chosen minus that to what was rejected."""
    query = ask.query
    texts = [*(post.text for post in query.posts), *(text for choice in query.choices for text in choice)]
    answer, question, *history = encoder.encode([ask.answer, query.question, *texts])
    posts, choices = history[: len(query.posts)], history[len(query.posts) :]

    def closest(others: Sequence[Vector]) -> list[int]:
        order = np.argsort([-float(question @ other) for other in others], kind="stable")
        return [int(i) for i in order[:nearest]]

    affinity = -float(answer @ question)
    if posts:
        affinity += float(np.mean([float(answer @ posts[i]) for i in closest(posts)]))
    if choices:
        chosen, rejected = choices[1::3], choices[2::3]
        gains = [float(answer @ chosen[i]) - float(answer @ rejected[i]) for i in closest(choices[::3])]
        affinity += float(np.mean(gains))
    return affinity


def vote_affinity(encoder: Encoder, nearest: int, ask: Ask) -> float:
    """Over the shown votes whose items are `nearest` to the answer: the mean of sign × cosine. `history_affinity` takes
    a post "Disagreed: …" for something that the user likes, as any other post."""
    votes = votes_of(ask.query)
    if not votes:
        return 0.0
    answer, *items = encoder.encode([ask.answer, *votes])
    cosines, signs = np.array(items) @ answer, np.array(list(votes.values()))
    closest = np.argsort(-cosines, kind="stable")[:nearest]
    return float((signs * cosines)[closest].mean())


@MODELS.register("aspect-match")
def aspect_match(encoder: str = "static") -> Scorer:
    """Similarity of the answer to the query's plan; it sees the true rubric only under `oracle`."""
    made = ENCODERS.make(encoder)
    return ScriptedScorer(partial(plan_affinity, made), f"aspect-match-{made.fingerprint}")


def plan_affinity(encoder: Encoder, ask: Ask) -> float:
    """For each aspect the best-matching sentence of the answer, averaged: a ceiling under `oracle`, a baseline under
    `plan`. Without a plan every answer ties."""
    plan, parts = ask.query.plan, [ask.answer, *sentences(ask.answer)]
    if not plan:
        return 0.0
    rows = encoder.encode([*plan, *parts])
    similarity = rows[: len(plan)] @ rows[len(plan) :].T
    return float(similarity.max(axis=1).mean())


@MODELS.register("lexical")
def lexical() -> Scorer:
    """Baseline: TF-IDF similarity of the answer to the user's posts and to answers they chose, not rejected, before.

    Posts and past answers are the corpus; words of the question carry no weight, since both answers share them.
    """
    return ScriptedScorer(tf_idf_affinity, "lexical")


def tf_idf_affinity(ask: Ask) -> float:
    posts = [words(post.text) for post in ask.query.posts]
    chosen = [words(choice.chosen) for choice in ask.query.choices]
    rejected = [words(choice.rejected) for choice in ask.query.choices]
    corpus = [*posts, *chosen, *rejected]
    ignored = set(words(ask.query.question))
    seen = Counter(word for document in corpus for word in set(document))
    # log((1 + n) / (1 + df)) + 1, the smoothed form; only words of the corpus have a weight
    idf = {word: log((1 + len(corpus)) / (1 + df)) + 1 for word, df in seen.items() if word not in ignored}

    def unit_tf_idf(document: list[str]) -> dict[str, float]:
        raw = {word: n * idf[word] for word, n in Counter(document).items() if word in idf}
        norm = sqrt(sum(value * value for value in raw.values()))
        return {word: value / norm for word, value in raw.items()}

    answer = unit_tf_idf(words(ask.answer))

    affinity = 0.0
    for sign, documents in ((1, posts), (1, chosen), (-1, rejected)):
        vectors = [unit_tf_idf(document) for document in documents]
        dots = [sum(value * vector[word] for word, value in answer.items() if word in vector) for vector in vectors]
        affinity += sign * sum(dots) / max(1, len(dots))
    return affinity


TYPICAL_WORDS = 60
"""An answer of this length is neither short nor long."""
MOST = 2.0
"""Answers beyond 16 times the typical length, or below a sixteenth, count as that."""
SHORT = re.compile(r"\b(brevity|brief|briefness|concise|conciseness|short|shortness|terse|terseness)\b", re.I)
LONG = re.compile(r"\b(detail|details|detailed|depth|length|long|verbosity|verbose|elaboration|thoroughness)\b", re.I)
LEVELS = {
    **dict.fromkeys(("very high", "high", "strong", "always", "yes", "true"), 1.0),
    **dict.fromkeys(("medium", "moderate", "neutral", "average"), 0.0),
    **dict.fromkeys(("low", "very low", "no", "false", "none", "never"), -1.0),
}


@MODELS.register("attributes")
def attributes() -> Scorer:
    """Baseline: reads attributes such as `preference for brevity: high` (or 0..1) and scores the length by them.

    It knows about length and nothing else; without such an attribute every answer ties. Not calibrated.
    """

    def reward(ask: Ask) -> float:
        wish = sum(wish_for_brevity(post.text) for post in ask.query.posts)
        # 0 at the typical length; plus or minus 1 for a quarter or four times of it
        shortness = log(TYPICAL_WORDS / max(1, len(words(ask.answer)))) / log(4)
        return wish * max(-MOST, min(MOST, shortness)) if wish else 0.0

    return ScriptedScorer(reward, "attributes-1")


def wish_for_brevity(post: str) -> float:
    """From -1 (long answers) to 1 (short ones); 0 for a post that states no such wish."""
    name, colon, value = post.partition(":")
    if not colon or "\n" in post or bool(SHORT.search(name)) == bool(LONG.search(name)):
        return 0.0
    level = LEVELS.get(value.strip().lower(), 0.0)
    with suppress(ValueError):  # a number from 0 to 1
        level = 2 * number - 1 if 0 <= (number := float(value)) <= 1 else 0.0
    return level if SHORT.search(name) else -level
