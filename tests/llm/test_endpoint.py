"""Back-off and the limit of concurrency, without a network."""

from __future__ import annotations

import asyncio

import pytest

from prb.llm.endpoint import Limiter, retry_after, retry_pause


@pytest.mark.parametrize(("tries", "bound"), [(1, 0.5), (2, 1.0), (7, 30.0), (10_000, 30.0)])
def test_a_wait_is_what_was_asked_and_some_jitter_below_its_bound(tries: int, bound: float) -> None:
    waits = [retry_pause(tries, 7.0) - 7.0 for _ in range(500)]
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
    ],
)
def test_retry_after_is_read_as_seconds(header: str | None, seconds: float) -> None:
    assert retry_after(header) == seconds


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


def test_the_limit_grows_slower_the_more_often_it_is_overloaded() -> None:
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
        assert none > one > many > 0

    asyncio.run(work())
