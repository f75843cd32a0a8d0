from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.data.retrieve import bm25, embedding, top_posts
from prb.text.words import words
from prb.types import Post

WORDS = st.sampled_from(["tea", "rain", "cat", "chess", "the", "bus", "it's"])
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)


def posts(*texts: str) -> tuple[Post, ...]:
    return tuple(Post(f"p{n}", "", text) for n, text in enumerate(texts))


def fixed(*scores: float) -> object:
    return lambda question, posts: np.array(scores)


def ids(selected: Sequence[Post]) -> list[str]:
    return [post.id for post in selected]


def slow_bm25(question: str, history: Sequence[Post], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Okapi BM25 word by word, with the idf of Lucene, which is never negative."""
    texts = [words(post.text) for post in history]
    average = sum(max(len(text), 1) for text in texts) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in words(question):
            holding = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            times = text.count(word)
            score += idf * times / (times + k1 * (1 - b + b * max(len(text), 1) / average))
        scores.append(score)
    return scores


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=8))
def test_bm25_agrees_with_its_slow_twin(question, texts) -> None:
    history = posts(*texts)
    assert bm25(question, history) == pytest.approx(slow_bm25(question, history), abs=1e-5)


@pytest.mark.parametrize("text", ["", "...", "🙂 — !"])
def test_bm25_bears_posts_without_words(text) -> None:
    scores = bm25("tea", posts(text, "tea"))
    assert scores[0] == 0
    assert scores[1] > 0
    assert bm25("tea", posts(text)).tolist() == [0.0]


def test_embedding_puts_the_related_post_first() -> None:
    history = posts(
        "Interest rates rose again in March.", "My kitten sleeps on the couch all day.", "We won the match."
    )
    scores = embedding("Why does my cat nap so much?", history)
    assert int(np.argmax(scores)) == 1
    assert np.all(np.abs(scores) <= 1 + 1e-6)


@pytest.mark.parametrize(("k", "wanted"), [(0, []), (1, ["p1"]), (2, ["p1", "p3"]), (9, ["p0", "p1", "p2", "p3"])])
def test_the_k_best_come_in_the_order_of_the_history(k, wanted) -> None:
    selection = top_posts("?", posts("a", "b", "c", "d"), fixed(1, 9, 2, 5), k=k)  # type: ignore[arg-type]
    assert ids(selection.posts) == wanted
    assert selection.cut == 0


def test_a_budget_drops_the_least_relevant_of_the_k_best() -> None:
    history = posts("a" * 40, "b" * 40, "c" * 40, "d" * 40)  # ten estimated tokens each
    rank = fixed(3, 1, 4, 2)
    assert top_posts("?", history, rank, k=3, budget=30) == (tuple(history[i] for i in (0, 2, 3)), 0)  # type: ignore[arg-type]
    assert top_posts("?", history, rank, k=3, budget=29) == (tuple(history[i] for i in (0, 2)), 1)  # type: ignore[arg-type]
    assert top_posts("?", history, rank, k=3, budget=9) == ((), 3)  # type: ignore[arg-type]
    # and nothing less relevant slips in behind a post that does not fit
    assert top_posts("?", posts("a" * 400, "b"), fixed(2, 1), k=2, budget=50) == ((), 2)  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=8), st.integers(0, 9), st.integers(0, 40))
def test_a_selection_is_a_part_of_the_history_within_its_bounds(question, texts, k, budget) -> None:
    history = posts(*texts)
    selection = top_posts(question, history, bm25, k=k, budget=budget)
    assert len(selection.posts) + selection.cut == min(k, len(history))
    assert sum(len(post.text) for post in selection.posts) <= 4 * budget
    assert list(selection.posts) == [post for post in history if post in selection.posts]
