"""The planner that quotes: what it takes from posts, and in which order."""

from __future__ import annotations

import pytest

from prb.errors import BadSpec, UnknownName
from prb.evaluation.planners import PLANNERS
from prb.text.encoders import ENCODERS
from prb.types import Post, Query


def posts(*texts: str) -> list[Post]:
    return [Post(str(n), "", text) for n, text in enumerate(texts, 1)]


def extract(question: str, history: list[Post], aspects: int = 3) -> tuple[str, ...]:
    plan = PLANNERS.make(f"extractive?aspects={aspects}").plan(Query(question=question, posts=tuple(history)))
    assert isinstance(plan, tuple)
    return plan


QUESTION = "Which bread should I bake for the party?"
HISTORY = posts(
    "The train was late again. I prefer recipes that need no kneading. Why is that?",
    "My brother collects stamps. I can't stand raisins in dough!",
    "Rain all week, and the roof leaks.",
)


def test_sentences_of_taste_come_before_all_others() -> None:
    plan = extract(QUESTION, HISTORY, aspects=2)
    assert set(plan) == {"I prefer recipes that need no kneading.", "I can't stand raisins in dough!"}


def test_taste_far_from_the_question_comes_before_what_is_only_near_it() -> None:
    history = posts("The bakery sells bread for every party.", "I hate loud motorcycles.")
    near, far = "The bakery sells bread for every party.", "I hate loud motorcycles."
    assert extract(QUESTION, history) == (far, near)


def test_among_sentences_of_taste_those_near_the_question_come_first() -> None:
    history = posts("I love old motorcycles.", "I love dark bread with seeds.")
    assert extract(QUESTION, history)[0] == "I love dark bread with seeds."


@pytest.mark.parametrize(("aspects", "found"), [(1, 1), (3, 3), (50, 5)])
def test_a_plan_has_at_most_as_many_aspects_as_asked_for(aspects: int, found: int) -> None:
    assert len(extract(QUESTION, HISTORY, aspects=aspects)) == found


def test_a_plan_quotes_and_never_asks() -> None:
    plan = extract(QUESTION, HISTORY, aspects=50)
    everything = " ".join(post.text for post in HISTORY)
    assert all(aspect in everything for aspect in plan)
    assert "Why is that?" not in plan


@pytest.mark.parametrize("history", [[], posts("Why? Really?", "And then?")])
def test_nothing_to_quote_is_an_empty_plan(history: list[Post]) -> None:
    assert extract(QUESTION, history) == ()


def test_a_plan_is_the_same_every_time() -> None:
    assert extract(QUESTION, HISTORY) == extract(QUESTION, HISTORY)


def test_the_fingerprint_tells_settings_apart() -> None:
    prints = {PLANNERS.make(f"extractive?aspects={n}").fingerprint for n in (2, 3)}
    assert prints == {f"extractive-{n}-{ENCODERS.make('static').fingerprint}" for n in (2, 3)}


def test_wrong_planners_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"no planner named 'extract'; did you mean 'extractive'\?"):
        PLANNERS.make("extract")
    with pytest.raises(BadSpec, match="aspects='many'"):
        PLANNERS.make("extractive?aspects=many")
