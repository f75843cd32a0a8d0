"""Floors that know neither user nor text; similarities of an answer to posts and plan, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
import pytest

from prb.errors import BadSpec
from prb.models import MODELS
from prb.models.baselines import AspectMatch, Embedding
from prb.text.encoders import Matrix
from prb.types import Ask, Post, Query, Scorer


def ask(answer: str, question: str = "Why?", user: str | None = None, posts: tuple[Post, ...] = ()) -> Ask:
    return Ask(Query(question=question, user=user, posts=posts), answer)


def scorer(spec: str) -> Scorer:
    model = MODELS.make(spec)
    assert isinstance(model, Scorer)
    return model


@pytest.mark.parametrize("spec", ["random", "length", "constant"])
def test_a_floor_does_not_know_the_person(spec: str) -> None:
    alone = ask("An answer.")
    known = Ask(
        Query(question="Why?", user="u", posts=(Post("1", "", "I like answers."),), plan=("be kind",)), "An answer."
    )
    first, second = scorer(spec).score([alone, known])
    assert first == second


def test_random_is_fixed_by_question_and_answer() -> None:
    model = scorer("random")
    (one,) = model.score([ask("a")])
    assert model.score([ask("b"), ask("a"), ask("a", question="How?")])[1] == one
    assert len(set(model.score([ask("a"), ask("b"), ask("a", question="How?")]))) == 3


def test_random_cannot_be_fooled_by_where_the_question_ends() -> None:
    first, second = scorer("random").score([ask("bc", question="a"), ask("c", question="ab")])
    assert first != second


def test_random_spreads_evenly_over_0_to_1() -> None:
    found = [float(score) for score in scorer("random").score([ask(str(n)) for n in range(4000)])]  # type: ignore[arg-type]
    assert 0 <= min(found) < 0.01
    assert 0.99 < max(found) < 1
    # the mean of 4000 uniform draws has a standard error of 0.0046
    assert abs(sum(found) / len(found) - 0.5) < 0.02


def test_another_seed_is_another_model() -> None:
    zero, one = scorer("random"), scorer("random?seed=1")
    assert zero.score([ask("a")]) != one.score([ask("a")])
    assert (zero.fingerprint, one.fingerprint) == ("random-0", "random-1")
    assert scorer("random?seed=0").score([ask("a")]) == zero.score([ask("a")])


def test_length_counts_characters() -> None:
    assert scorer("length").score([ask("four"), ask(""), ask("größer")]) == [4.0, 0.0, 6.0]


def test_constant_ties_everything() -> None:
    assert scorer("constant").score([ask("a"), ask("much better")]) == [0.0, 0.0]


def test_nothing_to_score_is_no_score() -> None:
    assert [list(scorer(spec).score([])) for spec in ("random", "length", "constant")] == [[], [], []]


def test_a_seed_is_a_number() -> None:
    with pytest.raises(BadSpec, match="seed='x'"):
        MODELS.make("random?seed=x")


class Compass:
    """Texts are directions."""

    fingerprint = "compass"

    def encode(self, texts: Sequence[str]) -> Matrix:
        half = 1 / sqrt(2)
        known = {"east": (1, 0), "north": (0, 1), "west": (-1, 0), "north-east": (half, half), "nowhere": (0, 0)}
        return np.array([known[text] for text in texts], dtype=np.float32).reshape(len(texts), 2)


def posts(*texts: str) -> tuple[Post, ...]:
    return tuple(Post(str(n), "", text) for n, text in enumerate(texts, 1))


def embedding_affinity(answer: str, question: str, *history: str, nearest: int = 3) -> float:
    model = Embedding(Compass(), nearest)
    (score,) = model.score([Ask(Query(question=question, posts=posts(*history)), answer)])
    return score


def test_affinity_is_closeness_to_the_posts_beyond_that_to_the_question() -> None:
    # answer·posts = (1 + 0)/2, answer·question = √½
    assert embedding_affinity("east", "north-east", "east", "north") == pytest.approx(0.5 - sqrt(0.5))


def test_only_the_posts_nearest_to_the_question_count() -> None:
    # nearest to north: north itself, then north-east; west and east are at right angles
    assert embedding_affinity("east", "north", "west", "north-east", "north", nearest=2) == pytest.approx(
        (sqrt(0.5) + 0) / 2
    )
    assert embedding_affinity("east", "north", "west", "north-east", "north", nearest=1) == pytest.approx(0)


def test_of_posts_equally_near_the_older_ones_count() -> None:
    assert embedding_affinity("east", "north", "east", "west", nearest=1) == pytest.approx(1.0)
    assert embedding_affinity("east", "north", "west", "east", nearest=1) == pytest.approx(-1.0)


def test_without_posts_the_answer_that_only_repeats_the_question_is_last() -> None:
    assert embedding_affinity("east", "east") == pytest.approx(-1.0)
    assert embedding_affinity("north", "east") == pytest.approx(0.0)


def test_a_text_without_known_words_is_near_to_nothing() -> None:
    assert embedding_affinity("nowhere", "east", "east") == 0.0


def test_the_fingerprint_names_encoder_and_setting() -> None:
    assert Embedding(Compass(), 3).fingerprint == "embedding-compass-3"
    prints = {MODELS.make(spec).fingerprint for spec in ("embedding", "embedding?nearest=1")}
    assert len(prints) == 2


def test_real_vectors_prefer_what_the_person_writes_about() -> None:
    model = MODELS.make("embedding")
    assert isinstance(model, Scorer)
    history = posts("I bake sourdough bread every Sunday.", "Rye flour is my favourite.")
    query = Query(question="What shall I do this weekend?", posts=history)
    bread, car = model.score([Ask(query, "Bake a rye loaf."), Ask(query, "Repair the gearbox.")])
    assert bread > car  # type: ignore[operator]


class Letters:
    """A text points to the letters a, b, c it holds."""

    fingerprint = "letters"

    def encode(self, texts: Sequence[str]) -> Matrix:
        rows = np.array([[float(letter in text) for letter in "abc"] for text in texts], dtype=np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(norms > 0, norms, 1), dtype=np.float32)


def match(answer: str, *plan: str, **more: object) -> float:
    (score,) = AspectMatch(Letters()).score([Ask(Query(question="?", plan=plan, **more), answer)])  # type: ignore[arg-type]
    return score


def test_each_aspect_is_held_against_its_best_sentence() -> None:
    # sentences "a." and "b.", and the whole (a, b)/√2: aspect a finds 1, aspect b finds 1, aspect c nothing
    assert match("a. b.", "a", "b") == pytest.approx(1.0)
    assert match("a. b.", "a", "b", "c") == pytest.approx(2 / 3)


def test_the_whole_answer_counts_as_a_sentence_too() -> None:
    assert match("a. b.", "ab") == pytest.approx(1.0)


def test_an_answer_that_touches_no_aspect_has_nothing() -> None:
    assert match("c.", "a", "b") == 0.0


def test_without_a_plan_every_answer_ties_whatever_the_posts_say() -> None:
    posts = (Post("1", "", "a"),)
    assert match("a.", posts=posts) == match("b.", posts=posts) == 0.0


def test_the_fingerprint_names_the_encoder() -> None:
    assert AspectMatch(Letters()).fingerprint == "aspect-match-letters"


def test_real_vectors_prefer_the_answer_that_follows_the_plan() -> None:
    model = MODELS.make("aspect-match")
    assert isinstance(model, Scorer)
    query = Query(question="What shall I cook?", plan=("cheap vegetarian dishes",))
    lentils, steak = model.score([Ask(query, "A lentil stew without meat."), Ask(query, "A taxi to the opera.")])
    assert lentils > steak  # type: ignore[operator]


def lexical_affinity(answer: str, question: str, *history: str) -> float:
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
    assert lexical_affinity("rye bread", "why", "bread rye", "bread cheese") == pytest.approx(expected)


def test_a_word_said_twice_counts_twice() -> None:
    # one post, weight log(2/2) + 1 = 1 for each word: (2, 1)·(1, 1) / (√5 √2)
    assert lexical_affinity("rye rye bread", "why", "rye bread") == pytest.approx(3 / sqrt(10))


def test_words_of_the_question_carry_no_weight() -> None:
    assert lexical_affinity("bread", "Which bread?", "I like bread") == 0.0
    assert lexical_affinity("bread and rye", "Which bread?", "rye bread") == pytest.approx(1.0)


def test_words_the_person_never_wrote_carry_no_weight() -> None:
    assert lexical_affinity("rye spaceship", "why", "rye") == pytest.approx(1.0)
    assert lexical_affinity("spaceship", "why", "rye") == 0.0


def test_case_and_punctuation_do_not_matter() -> None:
    assert lexical_affinity("RYE, bread!", "why", "rye bread") == pytest.approx(1.0)


@pytest.mark.parametrize("history", [(), ("!!!",), ("why",)])
def test_without_words_of_the_person_every_answer_ties(history: tuple[str, ...]) -> None:
    assert lexical_affinity("rye", "why", *history) == lexical_affinity("cheese", "why", *history) == 0.0


def test_only_the_posts_matter_not_the_name() -> None:
    model = MODELS.make("lexical")
    assert isinstance(model, Scorer)
    posts = (Post("1", "", "rye bread"),)
    queries = [Query(question="why", user=user, posts=posts) for user in (None, "u1", "u2")]
    assert len(set(model.score([Ask(query, "rye") for query in queries]))) == 1
