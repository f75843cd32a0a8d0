"""The ledger: every call is paid once, failures are told apart, and the budget holds."""

from __future__ import annotations

import pytest

from prb.building import stages
from prb.building.config import BuildConfig
from prb.building.stages import Ledger, StageLLM
from prb.errors import BudgetUsedUp, Unreachable
from prb.llm import Completion, Request, Sampling, ScriptedLLM
from prb.types import Failure, Turn
from prb.work import Replies


def ask(text: str) -> Request:
    return Request((Turn("user", text),), Sampling(max_tokens=10))


def logged(tmp_path, llm, **settings) -> StageLLM:
    """At a dollar per token."""
    spec = "scripted/x?usd_in=1000000&usd_out=1000000"
    config = BuildConfig(input="x", llm=spec, out=tmp_path, **settings)
    replies = Replies(tmp_path / "replies.jsonl")
    return Ledger(config=config, llms={"write": llm}, replies=replies, given=True).llm("rubric")


def test_the_same_question_is_paid_once_even_within_one_batch(tmp_path) -> None:
    llm = ScriptedLLM("yes")
    assert len(logged(tmp_path, llm).complete([ask("a"), ask("a"), ask("b")])) == 3
    assert len(llm.requests) == 2


def test_failures_of_the_endpoint_are_asked_again_and_others_are_not_paid_twice(tmp_path) -> None:
    lost, refused = Failure("endpoint failed", "reset", kind="transient"), Failure("refused", "no", 3, 4, 0.5)
    assert logged(tmp_path, ScriptedLLM([lost, refused])).complete([ask("a"), ask("b")]) == [lost, refused]
    caller = logged(tmp_path, ScriptedLLM("yes"))
    assert caller.complete([ask("a"), ask("b")]) == [Completion(text="yes"), refused]
    spent = caller.ledger.usage["rubric"]
    assert (spent.calls, spent.failed, spent.prompt_tokens, spent.completion_tokens, spent.usd) == (2, 1, 3, 4, 0.5)


def test_a_request_the_endpoint_will_never_take_does_not_stop_the_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stages, "BATCH", 1)
    caller = logged(tmp_path, ScriptedLLM(Failure("HTTP 400", "content policy")))
    assert len(caller.complete([ask(str(n)) for n in range(20)])) == 20


def test_a_batch_is_cut_to_what_the_budget_bears(tmp_path) -> None:
    """A request is one token in and ten out at most, a dollar each: two fit into 24, a third does not."""
    said = Completion(text="yes", prompt_tokens=1, completion_tokens=10, cost=11.0)
    llm = ScriptedLLM(said)
    with pytest.raises(BudgetUsedUp, match="might exceed"):
        logged(tmp_path, llm, max_usd=24.0).complete([ask(c) for c in "abc"])
    assert len(llm.requests) == 2


def test_what_was_spent_before_counts_against_the_budget(tmp_path) -> None:
    said = Completion(text="yes", prompt_tokens=1, completion_tokens=10, cost=11.0)
    logged(tmp_path, ScriptedLLM(said)).complete([ask("a"), ask("b")])
    caller = logged(tmp_path, ScriptedLLM(said), max_usd=24.0)
    caller.complete([ask("a"), ask("b")])  # a build that is resumed goes through all of its calls
    with pytest.raises(BudgetUsedUp):
        caller.complete([ask("c")])


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure("HTTP 401", "wrong key", kind="fatal"), Unreachable),
        (Failure("budget used up", "$1 of $1", kind="budget"), BudgetUsedUp),
    ],
)
def test_an_llm_that_gives_up_stops_the_build_and_books_nothing(tmp_path, failure, error) -> None:
    caller = logged(tmp_path, ScriptedLLM(["yes", "yes", *[failure] * 9]))
    with pytest.raises(error, match=failure.reason):
        caller.complete([ask(str(n)) for n in range(20)])
    again = ScriptedLLM("yes")
    logged(tmp_path, again).complete([ask(str(n)) for n in range(20)])
    assert len(again.requests) == 18


def test_failures_are_counted_by_reason_whether_logged_or_new(tmp_path) -> None:
    logged(tmp_path, ScriptedLLM([Failure("refused"), "yes"])).complete([ask("a"), ask("b")])
    logged_again = logged(tmp_path, ScriptedLLM("never asked"))
    logged_again.complete([ask("a"), ask("b")])
    assert (logged_again.ledger.asked, logged_again.ledger.failures) == (2, {"refused": 1})
