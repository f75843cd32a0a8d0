"""Affinity in words, worked out by hand."""

from __future__ import annotations

from math import log, sqrt

import pytest

from prb.models import MODELS
from prb.types import Ask, Post, Query, Scorer


def affinity(answer: str, question: str, *history: str) -> float:
    model = MODELS.make("lexical")
    assert isinstance(model, Scorer)
    posts = tuple(Post(str(n), "", text) for n, text in enumerate(history, 1))
    (score,) = model.score([Ask(Query(question=question, posts=posts), answer)])
    return float(score)  # type: ignore[arg-type]


def test_affinity_is_the_mean_cosine_to_the_posts() -> None:
    # Two posts: "bread" in both has weight log(3/3) + 1 = 1, "rye" and "cheese" in one each w = log(3/2) + 1.
    # The answer is (bread 1, rye w), the same direction as post one; to post two only bread is shared: 1 / (1 + w²).
    w = log(3 / 2) + 1
    expected = (1 + 1 / (1 + w * w)) / 2
    assert affinity("rye bread", "why", "bread rye", "bread cheese") == pytest.approx(expected)


def test_a_word_said_twice_counts_twice() -> None:
    # one post, weight log(2/2) + 1 = 1 for each word: (2, 1)·(1, 1) / (√5 √2)
    assert affinity("rye rye bread", "why", "rye bread") == pytest.approx(3 / sqrt(10))


def test_words_of_the_question_carry_no_weight() -> None:
    assert affinity("bread", "Which bread?", "I like bread") == 0.0
    assert affinity("bread and rye", "Which bread?", "rye bread") == pytest.approx(1.0)


def test_words_the_person_never_wrote_carry_no_weight() -> None:
    assert affinity("rye spaceship", "why", "rye") == pytest.approx(1.0)
    assert affinity("spaceship", "why", "rye") == 0.0


def test_case_and_punctuation_do_not_matter() -> None:
    assert affinity("RYE, bread!", "why", "rye bread") == pytest.approx(1.0)


@pytest.mark.parametrize("history", [(), ("!!!",), ("why",)])
def test_without_words_of_the_person_every_answer_ties(history: tuple[str, ...]) -> None:
    assert affinity("rye", "why", *history) == affinity("cheese", "why", *history) == 0.0


def test_only_the_posts_matter_not_the_name() -> None:
    model = MODELS.make("lexical")
    assert isinstance(model, Scorer)
    posts = (Post("1", "", "rye bread"),)
    queries = [Query(question="why", user=user, posts=posts) for user in (None, "u1", "u2")]
    assert len(set(model.score([Ask(query, "rye") for query in queries]))) == 1
