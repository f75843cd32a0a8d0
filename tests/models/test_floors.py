"""Floors: models that know neither the person nor what they read."""

from __future__ import annotations

import pytest

from prb.errors import BadSpec
from prb.models import MODELS
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
