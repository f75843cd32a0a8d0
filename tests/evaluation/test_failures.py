"""What a run does when its model does not answer: it stops early, loses nothing, and asks again when it is resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BudgetUsedUp, TooManyFailures, Unreachable
from prb.evaluation.config import EvaluateConfig, check_failures
from prb.evaluation.run import evaluate
from prb.runs import OUTCOMES, SUMMARY, Finished
from prb.summary import Summary
from prb.types import Ask, Failure, Reward
from prb.work import MAX_FATAL
from tests.conftest import make_row, make_twins
from tests.llm.server import error, serve
from tests.runs import outcomes

REFUSED, BUSY, BROKE = (
    Failure("HTTP 401", "wrong key", kind="fatal"),
    Failure("endpoint failed", "after 7 tries: HTTP 503", kind="transient"),
    Failure("budget used up", "$1 of $1", kind="budget"),
)


PLANNED = {"model": "length", "condition": "plan", "planner": "llm?llm=openai/m"}


class Flaky:
    """A scorer that fails on the calls whose numbers `failures` holds, counted over its whole life."""

    def __init__(self, failures: Callable[[int], Failure | None] = lambda _: None) -> None:
        self.fingerprint = "flaky"
        self.failures = failures
        self.asked: list[str] = []

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> float | Failure:
        failure = self.failures(len(self.asked))
        self.asked.append(f"{ask.query.user}: {ask.query.question} {ask.answer}")
        return failure or Reward(len(ask.answer), tokens=7, cost=0.25, text=f"re: {ask.answer}")


@pytest.fixture
def rows(write_jsonl):
    return write_jsonl([*make_twins(1), *make_twins(2), *(make_row(n) for n in range(3, 9))])


def run(rows: Path, model: Any, out: str = "run", **settings: Any) -> Finished:
    config = EvaluateConfig(
        dataset=rows, model=("mine",), condition=("none", "profile"), batch=3, out=rows.parent / out, **settings
    )
    return evaluate(config, models={"mine": model})


def undisturbed(rows: Path) -> tuple[list[dict[str, Any]], bytes, Flaky]:
    model = Flaky()
    folder = run(rows, model, "whole").folder
    return outcomes(folder), (folder / SUMMARY).read_bytes(), model


def test_a_model_that_cannot_be_reached_stops_the_run_and_leaves_nothing(rows):
    with pytest.raises(Unreachable, match=r"mine: HTTP 401: wrong key; .*5 or more attempts.*resume"):
        run(rows, Flaky(lambda _: REFUSED))
    assert not (rows.parent / "run").exists()


def test_a_few_fatal_failures_between_answers_are_failures_of_their_rows(rows):
    folder = run(rows, Flaky(lambda n: REFUSED if n % 6 == 0 else None)).folder
    assert {line["failure_kind"] for line in outcomes(folder)} == {None, "fatal"}


@pytest.mark.parametrize(("failure", "error"), [(REFUSED, Unreachable), (BROKE, BudgetUsedUp)])
@pytest.mark.parametrize("after", [2, 8, 14, 20, 29])
def test_a_stopped_run_is_resumed_to_the_same_lines_and_pays_nothing_twice(rows, failure, error, after):
    expected, summary, whole = undisturbed(rows)
    first = Flaky(lambda n: failure if n >= after else None)
    with pytest.raises(error):
        run(rows, first)
    folder = rows.parent / "run"
    written = outcomes(folder) if (folder / OUTCOMES).exists() else []
    booked = [line["failure_kind"] for line in written if line["failure"]]
    assert booked == ["fatal"] * len(booked)  # too few at the end of a batch to stop there; asked again
    assert len(booked) < MAX_FATAL
    second = Flaky()
    run(rows, second)
    assert outcomes(folder) == expected
    assert (folder / SUMMARY).read_bytes() == summary
    assert sorted(first.asked[:after] + second.asked) == sorted(whole.asked)


@pytest.mark.parametrize("kind", ["transient", "fatal", "budget"])
def test_rows_that_failed_because_of_the_endpoint_are_asked_again(rows, kind):
    expected, summary, whole = undisturbed(rows)
    failure = replace(BUSY, kind="transient" if kind == "budget" else kind)
    first = Flaky(lambda n: failure if n in (0, 7, 8, 30) else None)
    folder = run(rows, first).folder
    assert sum(line["failure"] is not None for line in outcomes(folder)) >= 3
    second = Flaky()
    run(rows, second)
    got = outcomes(folder)
    assert [line["scores"] for line in got] == [line["scores"] for line in expected]
    assert (folder / SUMMARY).read_bytes() == summary
    answered = [text for n, text in enumerate(first.asked) if n not in (0, 7, 8, 30)]
    assert sorted(answered + second.asked) == sorted(whole.asked)
    third = Flaky()
    run(rows, third)
    assert not third.asked
    assert outcomes(folder) == got


@pytest.mark.parametrize(
    ("status", "message", "says", "requests", "settings"),
    [
        (401, "no such key", "HTTP 401: no such key", MAX_FATAL, {"model": "judge?llm=(openai/m?concurrency=1)"}),
        (404, "no such model", "planner: HTTP 404: no such model", None, PLANNED),
    ],
)
def test_a_wrong_key_or_planner_stops_the_run_after_a_handful_of_requests(
    rows, monkeypatch, status, message, says, requests, settings
):
    pytest.importorskip("httpx2", reason="needs the api extra")
    with serve(lambda _: error(status, message)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with pytest.raises(Unreachable, match=says):
            evaluate(EvaluateConfig(dataset=rows, out=rows.parent / "run", **settings))
        assert requests in (None, len(server.seen))
    assert not (rows.parent / "run").exists()


def test_too_many_failed_rows_are_refused_with_their_reasons(rows):
    summary = run(rows, Flaky(lambda n: BUSY if n < 6 else None)).summary
    with pytest.raises(TooManyFailures, match=r"mine under none: \d of 10 failed \(\d × endpoint failed\)"):
        check_failures(Summary.read(summary), 0.1)
    check_failures(Summary.read(summary), 0.5)
    check_failures(Summary.read(run(rows, Flaky(), "other").summary), 0.0)
