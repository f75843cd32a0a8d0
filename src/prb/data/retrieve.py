"""Which of a user's posts and past choices bear on a question: rankers, and the top k that fit a budget.

Past choices could leak a label: one that is about the question at hand, or that has one of its answers, is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.text.encoders import static
from prb.text.words import NEAR_DUPLICATE, normalized, words
from prb.types import Choice, Post

Ranker = Callable[[str, Sequence[Post]], NDArray[np.float64]]
"""Relevance of each post; higher comes first, equal scores keep the order of the history."""

CHARACTERS_PER_TOKEN = 4
"""Budgets are in estimated tokens, so that the prompt does not depend on the model that reads it."""


class Selection(NamedTuple):
    posts: tuple[Post, ...]
    """In the order of the history, oldest first."""
    cut: int
    """How many of the k best did not fit the budget."""


def bm25(question: str, posts: Sequence[Post]) -> NDArray[np.float64]:
    """Okapi BM25 of the question's words, with each user's history as its own corpus."""
    import bm25s

    index = bm25s.BM25()
    corpus = [words(post.text) or [""] for post in posts]
    index.index(corpus, show_progress=False)
    vocabulary = set().union(*corpus)
    query = [word for word in words(question) if word in vocabulary]
    return np.asarray(index.get_scores(query), dtype=np.float64) if query else np.zeros(len(posts))


def embedding(question: str, posts: Sequence[Post]) -> NDArray[np.float64]:
    """Cosine between the question and each post, in static word vectors."""
    rows = static().encode([question, *(post.text for post in posts)])
    return np.asarray(rows[1:] @ rows[0], dtype=np.float64)


RANKERS: dict[str, Ranker] = {
    "recency": lambda _, posts: np.arange(len(posts), dtype=np.float64),  # newest first
    "bm25": bm25,
    "embedding": embedding,
}


def top_posts(question: str, posts: Sequence[Post], rank: Ranker, *, k: int, budget: int | None = None) -> Selection:
    """The k posts that bear most on the question; a budget drops the least relevant of them."""
    kept, cut = _pick(question, posts, [len(post.text) for post in posts], rank, k, budget)
    return Selection(tuple(posts[i] for i in kept), cut)


class ChoiceSelection(NamedTuple):
    positions: tuple[int, ...]
    """In the order of the history, oldest first."""
    cut: int
    """How many of the k best did not fit the budget."""
    leaks: int
    """How many would have given the label away."""


def top_choices(
    question: str, answers: Sequence[str], choices: Sequence[Choice], rank: Ranker, *, k: int, budget: int | None = None
) -> ChoiceSelection:
    """The k past choices whose questions are closest to this one, without those that would leak its label."""
    leaks = leaking_choices(question, answers, choices)
    safe = [n for n in range(len(choices)) if n not in leaks]
    asked = [Post(str(n), "", choices[n].question) for n in safe]
    kept, cut = _pick(question, asked, [sum(map(len, choices[n])) for n in safe], rank, k, budget)
    return ChoiceSelection(tuple(safe[i] for i in kept), cut, len(leaks))


def _pick(
    question: str, texts: Sequence[Post], sizes: Sequence[int], rank: Ranker, k: int, budget: int | None
) -> tuple[list[int], int]:
    """Positions of the k best that fit the budget, in ascending order, and how many did not fit."""
    if not texts or k == 0:
        return [], 0
    best: list[int] = np.argsort(-rank(question, texts), kind="stable")[:k].tolist()
    tokens = np.cumsum([sizes[i] for i in best]) / CHARACTERS_PER_TOKEN
    fit = len(best) if budget is None else int(np.count_nonzero(tokens <= budget))
    return sorted(best[:fit]), len(best) - fit


def leaking_choices(question: str, answers: Sequence[str], choices: Sequence[Choice]) -> set[int]:
    """Positions of choices about this question or a near-duplicate of it, or with one of its answers."""
    if not choices:
        return set()
    known = {normalized(answer) for answer in answers}
    asked = list(dict.fromkeys(choice.question for choice in choices))
    rows = static().encode([question, *asked])
    near = {text for text, cosine in zip(asked, rows[1:] @ rows[0], strict=True) if cosine >= NEAR_DUPLICATE}
    return {
        n
        for n, choice in enumerate(choices)
        if choice.question in near
        or normalized(choice.question) == normalized(question)
        or known & set(map(normalized, choice[1:]))
    }
