"""From a model's numbers and verdicts to outcomes; a failure is a reason, never a number."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest

from prb.config import UserConfig
from prb.data.load import load
from prb.data.source import MemorySource
from prb.evaluation.conditions import QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.evaluation.run import AskedOutcomes
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.types import Ask, Duel, Failure, Item, Outcome, Reward, Verdict
from prb.work import Breaker, Replies, ask_missing
from tests.conftest import Row, make_row
from tests.runs import prefers, recording


def asker(rows: list[Row], history: str = "both?ranker=recency") -> tuple[list[Item], QueryBuilder]:
    data = load(MemorySource("rows", rows), donors=True)
    config = UserConfig(k=5, history=history)
    return list(data), QueryBuilder.of(config, data, PLANNERS.make("extractive"), reader=None, seed=0)


def outcomes_of(scoring: AskedOutcomes, items: list[Item], *conditions: Any) -> list[Outcome]:
    """All items under all conditions, as a run derives them."""
    with TemporaryDirectory() as folder, Replies(Path(folder) / "replies.jsonl") as replies:
        rows = [scoring.plan_row(item, item.user, condition, {}) for condition in conditions for item in items]
        calls = [call for row in rows for call in row.calls]
        list(ask_missing([(rows, calls)], replies, scoring.called, Breaker()))
        return [scoring.outcome(row, replies) for row in rows]


def scored(function: Callable[[Ask], float | Failure], rows: list[Row], *conditions: Any) -> list[Outcome]:
    items, ask = asker(rows)
    scoring = AskedOutcomes("mine", ScriptedScorer(function), ask)
    return outcomes_of(scoring, items, *(conditions or ("none",)))


def compared(model: ScriptedComparer, rows: list[Row], *, both: bool = True, seed: int = 0) -> list[Outcome]:
    items, ask = asker(rows)
    comparing = AskedOutcomes("judge", model, ask, both_orders=both, seed=seed)
    return outcomes_of(comparing, items, "none")


def values(*rewards: float | Failure) -> Callable[[Ask], float | Failure]:
    """These rewards, one call after the other: chosen first."""
    left = iter(rewards)
    return lambda _: next(left)


@pytest.mark.parametrize(
    ("rewards", "failure", "scores"),
    [
        ((math.nan, 2.0), "not a finite number: nan", (None, 2.0)),
        ((1.0, -math.inf), "not a finite number: -inf", (1.0, None)),
        ((1e308, -1e100), "too large a number: 1e+308", (None, -1e100)),
        ((3.0, Failure("refused", "too long")), "refused: too long", (3.0, None)),
        ((Failure("one"), Failure("two")), "one", (None, None)),
    ],
)
def test_a_failure_has_the_first_reason_and_is_no_loss(rewards, failure, scores):
    (line,) = scored(values(*rewards), [make_row(1)])
    assert (line.credit, line.margin, line.failure, line.scores) == (None, None, failure, scores)
    assert orjson.loads(orjson.dumps(line))["scores"] == list(scores)


def test_a_query_that_cannot_be_made_never_reaches_the_model():
    model, asked = recording()
    items, ask = asker([make_row(1)])
    (line,) = outcomes_of(AskedOutcomes("mine", model, ask), items, "shuffled")
    assert asked == []
    assert (line.scores, line.credit) == (None, None)
    assert line.failure == "no other user to borrow a history from"


def test_a_reward_tells_what_it_cost_and_what_it_cut():
    rewards = values(
        Reward(2.0, tokens=10, cut=1, cost=0.25, text="good"), Reward(1.0, tokens=12, cut=2, cost=0.5, text="less good")
    )
    (line,) = scored(rewards, [make_row(1)])
    assert (line.tokens, line.cut, line.cost) == (22, 2, 0.75)  # both answers saw one prompt: the larger cut counts
    assert line.text == ("good", "less good")
    assert type(line.scores[0]) is float


@pytest.mark.parametrize(
    ("says", "verdicts", "credit"),
    [
        (lambda duel: duel.first.startswith("Once"), ("first", "second"), 1.0),
        (lambda duel: not duel.first.startswith("Once"), ("second", "first"), 0.0),
        (lambda _: True, ("first", "first"), 0.5),
        (lambda _: False, ("second", "second"), 0.5),
        (lambda _: None, ("tie", "tie"), 0.5),
        (lambda duel: True if duel.first.startswith("Once") else None, ("first", "tie"), 0.75),
        (lambda duel: None if duel.first.startswith("Once") else True, ("tie", "first"), 0.25),
    ],
)
def test_a_comparer_gets_the_mean_of_both_orders(says, verdicts, credit):
    (line,) = compared(prefers(says), [make_row(1)])
    assert (line.verdicts, line.credit, line.margin) == (verdicts, credit, credit - 0.5)
    assert line.scores is None


@pytest.mark.parametrize(
    ("replies", "verdicts"),
    [
        ([Failure("no verdict", "Hm.")] * 2, (None, None)),
        ([Verdict(choice="first"), Failure("no verdict", "Hm.")], ("first", None)),
    ],
)
def test_without_a_verdict_in_each_order_a_judge_fails_and_does_not_lose(replies, verdicts):
    left = iter(replies)
    (line,) = compared(ScriptedComparer(lambda _: next(left)), [make_row(1)])
    assert (line.credit, line.margin, line.verdicts, line.failure) == (None, None, verdicts, "no verdict: Hm.")


def test_one_order_is_asked_once_and_fixed_by_the_hash_of_the_pair_whatever_its_company():
    rows = [make_row(n) for n in range(1, 21)]
    duels: list[Duel] = []

    def first(duel: Duel) -> bool:
        duels.append(duel)
        return True

    lines = compared(prefers(first), rows, both=False, seed=3)
    ahead = [hashlib.sha256(f"3:{row['id']}".encode()).digest()[0] % 2 == 0 for row in rows]
    assert set(ahead) == {True, False}
    assert [duel.first for duel in duels] == [
        row["chosen" if right else "rejected"] for row, right in zip(rows, ahead, strict=True)
    ]
    expected = [(("first", None), 1.0) if right else ((None, "first"), 0.0) for right in ahead]
    assert [(line.verdicts, line.credit) for line in lines] == expected
    part = compared(prefers(first), rows[12:4:-1], both=False, seed=3)
    assert [line.verdicts for line in part] == [line.verdicts for line in lines[12:4:-1]]


SEVERAL = {"chosen": ["best", "good"], "rejected": ["poor", "bad"]}


def test_with_several_answers_all_are_scored_once_and_the_top_one_counts():
    scores = {"best": 1.0, "good": 3.0, "poor": 2.0, "bad": 0.0}
    (line,) = scored(lambda ask: scores[ask.answer], [make_row(1, **SEVERAL)])
    assert (line.scores, line.credit, line.margin) == ((1.0, 3.0, 2.0, 0.0), 1.0, 1.0)
    (line,) = scored(lambda ask: -scores[ask.answer], [make_row(1, **SEVERAL)])
    assert (line.credit, line.margin) == (0.0, -1.0)
    (line,) = scored(lambda ask: float(len(ask.answer)), [make_row(1, chosen="aaa", rejected=["b", "b", "cc"])])
    assert line.scores == (3.0, 1.0, 1.0, 2.0)


@pytest.mark.parametrize("both", [True, False])
def test_a_comparer_plays_every_right_answer_against_every_wrong_one(both):
    asked: list[tuple[str, str]] = []

    def shorter(duel: Duel) -> Verdict:
        asked.append((duel.first, duel.second))
        return Verdict(choice="first" if len(duel.first) < len(duel.second) else "second")

    row = make_row(1, chosen=["a", "ddd"], rejected=["bb", "eeee"])
    (line,) = compared(ScriptedComparer(shorter), [row], both=both)
    meetings = {frozenset(pair) for pair in (("a", "bb"), ("a", "eeee"), ("ddd", "bb"), ("ddd", "eeee"))}
    assert {frozenset(pair) for pair in asked} == meetings
    assert len(asked) == (8 if both else 4)
    assert line.verdicts is not None
    assert len(line.verdicts) == 8
    assert sum(verdict is None for verdict in line.verdicts) == (0 if both else 4)
    assert (line.credit, line.margin) == (1.0, 0.25)  # `a` beats both; three of four duels are won
