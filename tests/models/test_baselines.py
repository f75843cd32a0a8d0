"""Floors that know neither user nor text; similarities of an answer to posts and plan, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from typing import Any

import numpy as np
import pytest

from prb.errors import BadSpec
from prb.models import MODELS
from prb.models.baselines import history_affinity, plan_affinity, vote_affinity, wish_for_brevity
from prb.text.encoders import ENCODERS, Matrix
from prb.types import Ask, Post, Query


def posts(*texts: str) -> tuple[Post, ...]:
    return tuple(Post(str(n), "", text) for n, text in enumerate(texts, 1))


def ask(answer: str, question: str = "Why?", *history: str, **more: Any) -> Ask:
    return Ask(Query(question=question, posts=posts(*history), **more), answer)


def scores(spec: str, *asks: Ask) -> list[Any]:
    model: Any = MODELS.make(spec)
    return list(model.score(asks))


@pytest.mark.parametrize("spec", ["random", "length", "constant"])
def test_a_floor_does_not_know_the_person(spec: str) -> None:
    alone, known = ask("An answer."), ask("An answer.", "Why?", "I like answers.", user="u", plan=("be kind",))
    first, second = scores(spec, alone, known)
    assert first == second
    assert first == {"length": 10.0, "constant": 0.0}.get(spec, first)
    assert scores(spec) == []


def test_random_is_fixed_by_seed_question_and_answer() -> None:
    asks = [ask("a"), ask("b"), ask("a", "How?"), ask("bc", "a"), ask("c", "ab")]
    drawn = scores("random", *asks)
    assert len(set(drawn)) == len(asks)
    assert scores("random", *reversed(asks)) == drawn[::-1]
    assert scores("random?seed=1", asks[0]) != drawn[:1]
    assert [MODELS.make(spec).fingerprint for spec in ("random", "random?seed=1")] == ["random-0", "random-1"]
    with pytest.raises(BadSpec, match="seed='x'"):
        MODELS.make("random?seed=x")


class Compass:
    """Texts are directions."""

    fingerprint = "compass"

    def encode(self, texts: Sequence[str]) -> Matrix:
        half = 1 / sqrt(2)
        known = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "north-east": (half, half), "nowhere": (0, 0)}
        return np.array([known[text] for text in texts], dtype=np.float32).reshape(len(texts), 2)


@pytest.mark.parametrize(
    ("answer", "question", "history", "nearest", "affinity"),
    [
        # answer·posts = (1 + 0)/2, answer·question = √½
        ("east", "north-east", ("east", "north"), 3, 0.5 - sqrt(0.5)),
        # nearest to north: north itself, then north-east; west and east are at right angles
        ("east", "north", ("west", "north-east", "north"), 2, (sqrt(0.5) + 0) / 2),
        ("east", "north", ("west", "north-east", "north"), 1, 0.0),
        # of posts equally near the older ones count
        ("east", "north", ("east", "west"), 1, 1.0),
        ("east", "north", ("west", "east"), 1, -1.0),
        # without posts the answer that only repeats the question is last
        ("east", "east", (), 3, -1.0),
        ("north", "east", (), 3, 0.0),
        ("nowhere", "east", ("east",), 3, 0.0),
    ],
)
def test_affinity_is_closeness_to_the_nearest_posts_beyond_that_to_the_question(
    answer: str, question: str, history: tuple[str, ...], nearest: int, affinity: float
) -> None:
    assert history_affinity(Compass(), nearest, ask(answer, question, *history)) == pytest.approx(affinity)


@pytest.mark.parametrize(
    ("agreed", "disagreed", "nearest", "agreement"),
    [
        (("east",), (), 3, 1.0),
        ((), ("east",), 3, -1.0),
        # east·east − east·north-east
        (("east",), ("north-east",), 3, (1 - sqrt(0.5)) / 2),
        (("west",), ("north-east",), 3, (-1 - sqrt(0.5)) / 2),
        # only the nearest vote
        (("west",), ("north-east",), 1, -sqrt(0.5)),
        ((), (), 3, 0.0),
    ],
)
def test_votes_count_with_their_sign_and_their_similarity(
    agreed: tuple[str, ...], disagreed: tuple[str, ...], nearest: int, agreement: float
) -> None:
    history = [f"Agreed: {text}" for text in agreed] + [f"Disagreed: {text}" for text in disagreed]
    assert vote_affinity(Compass(), nearest, ask("east", "north", *history)) == pytest.approx(agreement)


def test_the_fingerprint_of_a_baseline_names_its_encoder_and_settings() -> None:
    static = ENCODERS.make("static").fingerprint
    specs = ("embedding?nearest=2", "embedding?votes=true", "aspect-match")
    expected = [f"embedding-{static}-2", f"embedding-votes-{static}-3", f"aspect-match-{static}"]
    assert [MODELS.make(spec).fingerprint for spec in specs] == expected


def test_embedding_reads_votes_if_asked_to() -> None:
    shown = ask("Build more bicycle lanes.", "What now?", "Disagreed: Build bicycle lanes."), ask("Pay less tax.", "?")
    (liked, _), (opposed, nothing) = scores("embedding", *shown), scores("embedding?votes=true", *shown)
    assert opposed < 0 < liked
    assert nothing == 0


class Letters:
    """A text points to the letters a, b, c it holds."""

    fingerprint = "letters"

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = np.array([[float(letter in text) for letter in "abc"] for text in texts], dtype=np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


@pytest.mark.parametrize(
    ("answer", "plan", "match"),
    [
        # sentences "a." and "b.", and the whole (a, b)/√2: aspect a finds 1, aspect b finds 1, aspect c nothing
        ("a. b.", ("a", "b"), 1.0),
        ("a. b.", ("a", "b", "c"), 2 / 3),
        ("a. b.", ("ab",), 1.0),
        ("c.", ("a", "b"), 0.0),
        ("a.", (), 0.0),
    ],
)
def test_each_aspect_is_held_against_its_best_sentence(answer: str, plan: tuple[str, ...], match: float) -> None:
    assert plan_affinity(Letters(), ask(answer, "?", "a", plan=plan)) == pytest.approx(match)


W = log(3 / 2) + 1
"""Weight of a word that one of two posts has; of one in both it is log(3/3) + 1 = 1, as of those of a single post."""


@pytest.mark.parametrize(
    ("answer", "question", "history", "affinity"),
    [
        # (bread 1, rye w) is the direction of post one; to post two only bread is shared: 1 / (1 + w²)
        ("rye bread", "why", ("bread rye", "bread cheese"), (1 + 1 / (1 + W * W)) / 2),
        ("rye rye bread", "why", ("rye bread",), 3 / sqrt(10)),  # (2, 1)·(1, 1) / (√5 √2)
        ("bread", "Which bread?", ("I like bread",), 0.0),
        ("bread and rye", "Which bread?", ("rye bread",), 1.0),
        ("rye spaceship", "why", ("rye",), 1.0),
        ("spaceship", "why", ("rye",), 0.0),
        ("RYE, bread!", "why", ("rye bread",), 1.0),
        ("rye", "why", (), 0.0),
        ("rye", "why", ("!!!",), 0.0),
        ("rye", "why", ("why",), 0.0),
    ],
)
def test_lexical_affinity_is_the_mean_cosine_to_the_posts(
    answer: str, question: str, history: tuple[str, ...], affinity: float
) -> None:
    named = [ask(answer, question, *history, user=user) for user in (None, "u1", "u2")]
    assert scores("lexical", *named) == [pytest.approx(affinity)] * 3


SHORT, LONG = "Yes, twice a week.", " ".join(["word"] * 240)


@pytest.mark.parametrize(
    ("post", "wish"),
    [
        ("preference for brevity: high", 1.0),
        ("preference for brevity: 0.75", 0.5),
        ("Brevity: LOW", -1.0),
        ("likes detail: yes", -1.0),
        ("depth: low", 1.0),
        ("preference for brevity: medium", 0.0),
        ("preference for brevity: 7", 0.0),
        ("preference for brevity: sometimes", 0.0),
        ("short or long: high", 0.0),
        ("favourite colour: high", 0.0),
        ("I once wrote a short story: high drama", 0.0),
        ("I like brevity.", 0.0),
    ],
)
def test_a_stated_wish_for_brevity_moves_the_reward_and_nothing_else_does(post: str, wish: float) -> None:
    assert wish_for_brevity(post) == wish
    short, long = scores("attributes", *(ask(answer, "Q?", post, "age: 60") for answer in (SHORT, LONG)))
    assert (short > 0 > long) if wish > 0 else (short < 0 < long) if wish else (short == long == 0)


def test_length_counts_on_a_scale_that_ends() -> None:
    asks = [ask("w " * count, "Q?", "Brevity: high") for count in (60, 240, 0, 100_000)]
    assert scores("attributes", *asks) == [0, pytest.approx(-1), 2.0, -2.0]
