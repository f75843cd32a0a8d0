"""Concurrent asks become batches: grouped, bounded, in order of waiting, never at a neighbor's expense. And a real
server process: signals in the middle of requests, clients that leave, more than it can take."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.serving.server import MODEL_ERROR, Batcher, Limits, Overloaded, Waiting, score_isolated, select_batch
from prb.types import Ask, Failure
from tests.serving.fakes import POISON, UNSCORABLE, Recorder, ask, worth
from tests.serving.process import Running, running

SOON = 20
"""Seconds after which a test that hangs gives up."""


def answers_of(batch: Sequence[Ask]) -> list[str]:
    return [one.answer for one in batch]


def held(model: Recorder, **limits: float) -> Batcher:
    """A batcher whose model is busy with one answer, so that everything that comes now has to wait."""
    batcher = Batcher(model.score, Limits(**{"window": 0.0, **limits}))  # type: ignore[arg-type]
    model.gate.clear()
    batcher.submit([ask("first", "busy")])
    assert model.entered.acquire(timeout=SOON)
    return batcher


def test_what_waits_goes_together_with_answers_to_the_same_query_of_the_same_user_side_by_side() -> None:
    model = Recorder()
    batcher = held(model)
    asks = [ask(*words.split()) for words in ("a 1 me", "b 2", "a 3 me", "a 4 you", "b 5", "a 6 me")]
    futures = [future for one in asks for future in batcher.submit([one])]
    model.gate.set()
    assert [future.result(SOON) for future in futures] == [worth(one) for one in asks]
    assert [answers_of(batch) for batch in model.batches] == [["busy"], ["1", "3", "6", "2", "5", "4"]]


def test_the_same_ask_of_several_clients_is_scored_once() -> None:
    model = Recorder()
    batcher = held(model)
    futures = [*batcher.submit([ask("q", "same"), ask("q", "other")]), *batcher.submit([ask("q", "same")])]
    model.gate.set()
    results = [future.result(SOON) for future in futures]
    assert results[0] == results[2] == worth(ask("q", "same"))
    assert answers_of(model.batches[1]) == ["same", "other"]


def test_a_batch_that_is_full_does_not_wait_for_its_window() -> None:
    model = Recorder()
    batcher = Batcher(model.score, Limits(window=3600, batch=2))
    futures = [*batcher.submit([ask("q", "1")]), *batcher.submit([ask("q", "2")])]
    assert [future.result(SOON) for future in futures] == [worth(ask("q", "1")), worth(ask("q", "2"))]
    assert len(model.batches) == 1


def test_an_idle_server_waits_a_window_for_company() -> None:
    model = Recorder()
    batcher = Batcher(model.score, Limits(window=0.3))
    futures = batcher.submit([ask("q", "1")])
    time.sleep(0.02)
    futures += batcher.submit([ask("q", "2")])
    [future.result(SOON) for future in futures]
    assert len(model.batches) == 1


def test_clients_that_come_back_at_once_join_those_who_waited_meanwhile() -> None:
    model = Recorder(seconds=0.4)
    batcher = Batcher(model.score, Limits(window=0.1))

    async def client(number: int, after: float) -> None:
        await asyncio.sleep(after)
        for n in range(2):
            await batcher.score([ask("q", f"{number}/{n}")])

    async def clients() -> None:
        await asyncio.gather(*[client(n, after=0.0 if n < 10 else 0.3) for n in range(20)])

    asyncio.run(clients())
    assert [len(batch) for batch in model.batches] == [10, 20, 10]


ASKS = st.builds(ask, st.sampled_from("abcd"), st.text("xy", max_size=40), st.sampled_from(["", "a post" * 9]))


@given(st.lists(ASKS, max_size=30), st.integers(1, 8))
def test_everybody_gets_a_turn_the_longest_waiting_first(asks: list[Ask], size: int) -> None:
    waiting = {n: Waiting(one, 0.0, Future()) for n, one in enumerate(asks)}
    while waiting:
        batch = select_batch(waiting, size)
        assert batch[0] == min(waiting)
        assert len(batch) == min(size, len(waiting))
        groups = [waiting[n].ask.query for n in batch]
        assert len(dict.fromkeys(groups)) == sum(a != b for a, b in zip([None, *groups], groups, strict=False))
        for number in batch:
            del waiting[number]


def test_a_full_queue_takes_all_of_a_request_or_nothing() -> None:
    model = Recorder()
    batcher = held(model, queue=3)
    first = batcher.submit([ask("q", "1"), ask("q", "2")])
    with pytest.raises(Overloaded) as caught:
        batcher.submit([ask("q", "3"), ask("q", "4")])
    assert 1 <= caught.value.seconds <= 60
    assert batcher.waiting == 2
    last = batcher.submit([ask("q", "5")])
    model.gate.set()
    [future.result(SOON) for future in (*first, *last)]
    assert sorted(answers_of([one for batch in model.batches for one in batch])) == ["1", "2", "5", "busy"]


@given(st.lists(st.sampled_from(["good", POISON, UNSCORABLE]), min_size=1, max_size=24))
def test_an_exception_costs_only_the_answer_that_raised_it(kinds: list[str]) -> None:
    asks = [ask(f"q{n % 3}", f"{kind} {n}") for n, kind in enumerate(kinds)]
    for kind, one, result in zip(kinds, asks, score_isolated(Recorder().score, asks), strict=True):
        if kind == POISON:
            assert result == Failure(MODEL_ERROR, "ValueError")
        else:
            assert result == (Failure("no verdict") if kind == UNSCORABLE else worth(one))


def test_one_poisoned_answer_among_many_costs_few_calls() -> None:
    model = Recorder()
    score_isolated(model.score, [ask("q", POISON if n == 37 else str(n)) for n in range(64)])
    assert len(model.batches) == 1 + 2 * math.log2(64)


def test_the_log_tells_where_a_model_failed_and_not_on_what(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        score_isolated(Recorder().score, [ask("q", f"{POISON} my secret")])
    assert "ValueError at " in caplog.text
    assert "fakes.py" in caplog.text
    assert "secret" not in caplog.text


def test_what_is_no_number_is_a_failure() -> None:
    numbers = [math.nan, math.inf, -math.inf, 1.0]
    expected = [Failure("not a finite number", str(number)) for number in numbers[:3]]
    assert score_isolated(lambda _: numbers, [ask("q", str(n)) for n in range(4)]) == [*expected, 1.0]


def leave(_: Sequence[Ask]) -> list[float]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("model", "why"), [(lambda asks: [1.0] * (len(asks) + 1), "RuntimeError"), (leave, "SystemExit")]
)
def test_a_model_that_miscounts_or_would_end_the_program_is_broken(model: Any, why: str) -> None:
    assert score_isolated(model, [ask("q", "1"), ask("q", "2")]) == [Failure(MODEL_ERROR, why)] * 2


# --- a real server process ---
httpx = pytest.importorskip("httpx2", reason="needs the api extra")
pytest.importorskip("fastapi", reason="needs the serve extra")
SLOW = ("-m", "tests.serving.process", "--seconds")


def body(question: str, *answers: str) -> dict[str, Any]:
    return {"query": {"question": question}, "answers": list(answers)}


def client(server: Running) -> Any:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits, trust_env=False)


async def gauge(talk: Any, name: str) -> float:
    lines = (await talk.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def until_waiting(talk: Any, answers: int) -> None:
    while await gauge(talk, "prb_waiting_answers") < answers:
        await asyncio.sleep(0.02)


async def until_it_accepts_nothing(server: Running) -> None:
    with suppress(httpx.TransportError):
        while True:
            async with client(server) as newcomer:
                await newcomer.get("/healthz")
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("seconds", "batch", "signals"), [("0.4", 4, 1), ("3600", 1, 2)])
def test_a_signal_loses_no_request_that_was_accepted_and_a_second_one_does_not_wait(
    seconds: str, batch: int, signals: int
) -> None:
    with running(*SLOW, seconds, "--batch", str(batch)) as server:

        async def talk() -> list[Any]:
            async with client(server) as web, client(server) as other:
                sent = [asyncio.create_task(web.post("/v1/score", json=body("q", f"a{n}"))) for n in range(10)]
                await until_waiting(other, 10 - batch)
                for _ in range(signals):
                    server.process.send_signal(signal.SIGTERM)
                    await until_it_accepts_nothing(server)
                return list(await asyncio.gather(*sent, return_exceptions=True))

        replies = asyncio.run(talk())
        _, err = server.process.communicate(timeout=60)
    if signals == 1:
        assert [reply.json()["scores"] for reply in replies] == [[worth(ask("q", f"a{n}"))] for n in range(10)]
        assert (server.process.returncode, err) == (0, "")
    else:
        assert server.process.returncode == 1
        assert err.splitlines()[-1].endswith("stopped at once: accepted requests were not answered")
