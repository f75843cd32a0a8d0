"""Back-off, the limit of concurrency and the budget, without a network."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from email.utils import format_datetime, formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.llm.endpoint import Backoff, Budget, Limiter, Prices, Response, Retry, refusal, retry_after, tokens_of
from prb.types import Failure

NOW = 1_700_000_000.0


@pytest.mark.parametrize("asked", [0.0, 7.0])
@pytest.mark.parametrize("tries", [1, 2, 7, 10_000])
def test_a_wait_is_what_was_asked_and_some_jitter_below_its_bound(tries: int, asked: float) -> None:
    rng, bound = random.Random(0), min(30.0, 0.5 * 2.0 ** min(tries - 1, 60))
    waits = [Backoff(first=0.5, longest=30.0).wait(tries, rng, asked) - asked for _ in range(500)]
    assert 0 <= min(waits) < 0.1 * bound
    assert 0.9 * bound < max(waits) <= bound


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        ("0.25", 0.25),
        ("-3", 0),
        ("nan", 0),
        ("inf", 0),
        ("soon", 0),
        ("9" * 400, 0),
        ("9" * 200, 1e9),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 0),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW + 90), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        (format_datetime(datetime(2023, 11, 14, 22, 14, 20)), 60),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(header: str | None, seconds: float) -> None:
    assert retry_after(header, NOW) == seconds


@pytest.mark.parametrize("status", [301, 400, 401, 404, 408, 409, 422, 429, 500, 502, 503, 504, 529])
def test_passing_troubles_are_worth_another_try_and_lasting_ones_are_not(status: int) -> None:
    found = refusal(Response(status, b"why", "2"))
    if status in (408, 409, 429) or status >= 500:
        assert found == Retry(f"HTTP {status}: why", 2.0, overloaded=status in (429, 503, 529))
    else:
        assert found == Failure(f"HTTP {status}", "why")
        assert found.kind == ("row" if status in (400, 422) else "fatal")


async def enter(limiter: Limiter, count: int) -> list[int]:
    return [await limiter.enter() for _ in range(count)]


def test_the_limit_starts_moderate_and_doubles_in_a_round_of_successes() -> None:
    async def work() -> None:
        limiter, limits = Limiter(100), []
        for _ in range(4):
            limits.append(limiter.limit)
            for ticket in await enter(limiter, limiter.limit):
                limiter.leave(ticket, ok=True)
        assert limits == [16, 32, 64, 100]
        assert Limiter(4).limit == 4
        limiter.leave(await limiter.enter())  # any other failure
        assert limiter.limit == 100

    asyncio.run(work())


def test_the_limit_is_halved_once_a_round_at_most() -> None:
    async def work() -> None:
        limiter, limits = Limiter(16), []
        for ticket in await enter(limiter, 16):
            limiter.leave(ticket, overloaded=True)
            limits.append(limiter.limit)
        for _ in range(9):
            limiter.leave(await limiter.enter(), overloaded=True)
            limits.append(limiter.limit)
        assert limits == [8] * 16 + [8] * 8 + [4]
        for _ in range(50):
            limiter.leave(await limiter.enter(), overloaded=True)
        assert limiter.limit == 1

    asyncio.run(work())


def test_the_limit_grows_slower_after_an_overload() -> None:
    async def growth(overloads: int) -> int:
        limiter = Limiter(1000, start=256)
        before = limiter.limit
        for ticket in await enter(limiter, overloads):
            limiter.leave(ticket, overloaded=True)
        cut = limiter.limit
        for ticket in await enter(limiter, 64):
            limiter.leave(ticket, ok=True)
        assert cut == (before // 2 if overloads else before)
        return limiter.limit - cut

    async def work() -> None:
        none, one, many = [await growth(n) for n in (0, 1, 40)]
        assert none > one == many > 0

    asyncio.run(work())


def test_those_who_wait_longest_enter_first_and_never_too_many() -> None:
    async def work() -> None:
        limiter, order = Limiter(2), []

        async def visit(name: int) -> None:
            ticket = await limiter.enter()
            assert limiter.active <= 2
            order.append(name)
            await asyncio.sleep(0)
            limiter.leave(ticket)

        await asyncio.gather(*(visit(n) for n in range(20)))
        assert order == list(range(20))
        assert limiter.active == 0

    asyncio.run(work())


@pytest.mark.parametrize("turns", [0, 1])
def test_a_waiter_that_is_cancelled_takes_no_slot(turns: int) -> None:
    """Also when its turn has just come."""

    async def work() -> None:
        limiter = Limiter(1)
        ticket = await limiter.enter()
        waiting = [asyncio.create_task(limiter.enter()) for _ in range(2)]
        await asyncio.sleep(0)
        if turns:
            limiter.leave(ticket)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        if not turns:
            limiter.leave(ticket)
        await waiting[1]
        assert limiter.active == 1

    asyncio.run(work())


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30))
def test_what_is_spent_is_the_sum_of_all_charges(charges: list[tuple[int, int]]) -> None:
    budget = Budget(Prices(prompt=0.15, completion=0.6))
    costs = [budget.charge(*charge) for charge in charges]
    assert budget.prompt_tokens == sum(prompt for prompt, _ in charges)
    assert budget.completion_tokens == sum(completion for _, completion in charges)
    assert budget.cost == pytest.approx(sum(costs))


def test_a_budget_is_used_up_when_its_limit_is_reached_not_before() -> None:
    budget = Budget(max_tokens=100)
    budget.charge(90, 9)
    assert not budget.used_up()
    budget.charge(1, 0)
    assert budget.used_up() == "100 of 100 tokens"
    money = Budget(Prices(prompt=1.0), max_usd=0.5)
    money.charge(499_999, 10**9)
    assert not money.used_up()
    money.charge(1, 0)
    assert money.used_up() == "$0.5000 of $0.5000"
    assert Budget(max_tokens=0).used_up()


def test_four_characters_are_taken_for_a_token_where_nobody_counts() -> None:
    assert (tokens_of(), tokens_of(""), tokens_of("abcd"), tokens_of("abc", "de")) == (0, 0, 1, 2)
