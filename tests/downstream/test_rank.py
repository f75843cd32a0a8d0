"""Scores of N answers: what is asked, what is booked, what a round robin is worth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prb.downstream.rank import Answers, require, score
from prb.errors import BadInput
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.types import Ask, Failure, Query, Reward, Verdict
from tests.runs import prefers, recording

ASKED = Query(question="How often?")


def test_scores_come_in_the_order_of_the_samples() -> None:
    model, asked = recording()
    found = score("m", model, [Answers("p", ASKED, ["bb", "a", "bb", "ccc"]), Answers("q", ASKED, ["a"])])
    assert [(line.pair, line.n, line.score) for line in found] == [
        ("p", 0, 2), ("p", 1, 1), ("p", 2, 2), ("p", 3, 3), ("q", 0, 1),
    ]  # fmt: skip
    assert asked == [Ask(ASKED, text) for text in ("bb", "a", "ccc", "a")]


def test_what_an_answer_cost_is_booked_once() -> None:
    model = ScriptedScorer(lambda _: Reward(1.0, tokens=7, cost=0.25, cut=2))
    found = score("m", model, [Answers("p", ASKED, ["a", "a", "b"])])
    assert [(line.tokens, line.cost, line.cut) for line in found] == [(7, 0.25, 2), (0, 0, 0), (7, 0.25, 2)]


def test_what_a_round_robin_cost_is_booked_once() -> None:
    model = ScriptedComparer(lambda _: Verdict(choice="tie", tokens=5, cost=0.5, cut=1))
    found = score("m", model, [Answers("p", ASKED, ["a", "b", "c", "a"])])
    assert [line.score for line in found] == [0.5] * 4
    assert (sum(line.tokens for line in found), sum(line.cost for line in found)) == (3 * 2 * 5, 3 * 2 * 0.5)
    assert max(line.cut for line in found) == 1


def test_what_a_failure_cost_is_booked_once() -> None:
    charged = Failure("no verdict", prompt_tokens=3, completion_tokens=2, cost=0.5)
    found = score("m", ScriptedScorer(lambda _: charged), [Answers("p", ASKED, ["a", "a", "b"])])
    assert [(line.failure, line.tokens, line.cost) for line in found] == [
        ("no verdict", 5, 0.5), ("no verdict", 0, 0.0), ("no verdict", 5, 0.5),
    ]  # fmt: skip
    judge = ScriptedComparer(lambda duel: charged if duel.first == "a" else Verdict(choice="tie", tokens=7, cost=1.0))
    found = score("m", judge, [Answers("p", ASKED, ["a", "b", "c"])])
    assert [line.failure for line in found] == ["no verdict"] * 3
    assert (sum(line.tokens for line in found), sum(line.cost for line in found)) == (2 * 5 + 4 * 7, 2 * 0.5 + 4 * 1.0)


def test_a_single_distinct_answer_needs_no_judge() -> None:
    def never(_: object) -> Verdict:
        raise AssertionError("asked to compare an answer with itself")

    found = score("m", ScriptedComparer(never), [Answers("p", ASKED, ["a", "a"])])
    assert [line.score for line in found] == [0.5, 0.5]


def test_a_query_that_cannot_be_asked_fails_all_its_answers_and_no_others() -> None:
    batch = [Answers("p", Failure("no plan", "silence"), ["a", "b"]), Answers("q", ASKED, ["a"])]
    for model in (recording()[0], prefers(lambda _: None)):
        found = score("m", model, batch)
        assert [line.failure for line in found] == ["no plan: silence", "no plan: silence", None]
        assert [line.score is None for line in found] == [True, True, False]


def test_a_failure_is_told_for_the_answer_it_is_about() -> None:
    model = ScriptedScorer(lambda ask: Failure("too long") if len(ask.answer) > 1 else 1.0)
    found = score("m", model, [Answers("p", ASKED, ["a", "bb", "a"])])
    assert [(line.score, line.failure) for line in found] == [(1, None), (None, "too long"), (1, None)]


def test_a_model_that_says_too_little_is_an_error_of_its_own() -> None:
    class Mute:
        fingerprint = "mute"

        def score(self, asks: Sequence[Ask]) -> list[float]:
            return [0.0]

    with pytest.raises(RuntimeError, match="1 answers to 2 questions"):
        score("m", Mute(), [Answers("p", ASKED, ["a", "b"])])


def test_sixteen_answers_are_not_too_many_to_compare() -> None:
    judge = prefers(lambda _: None)
    require("j", judge, 16)
    with pytest.raises(BadInput, match="--n 17 would take 272 verdicts"):
        require("j", judge, 17)
    require("m", recording()[0], 1000)
