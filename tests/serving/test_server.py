"""A real server process: signals in the middle of requests, clients that leave, more than it can take, long loads."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest

httpx = pytest.importorskip("httpx2", reason="needs the api extra")
pytest.importorskip("fastapi", reason="needs the serve extra")

from tests.serving.fakes import ask, worth  # noqa: E402
from tests.serving.process import Running, running  # noqa: E402

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


def test_a_signal_in_the_middle_of_requests_loses_none_that_was_accepted() -> None:
    with running(*SLOW, "0.4", "--batch", "4") as server:

        async def talk() -> list[Any]:
            async with client(server) as web, client(server) as other:
                accepted = [asyncio.create_task(web.post("/v1/score", json=body("q", f"a{n}"))) for n in range(10)]
                await until_waiting(other, 6)
                server.process.send_signal(signal.SIGTERM)
                await until_it_accepts_nothing(server)
                return list(await asyncio.gather(*accepted))

        accepted = asyncio.run(talk())
        assert [reply.json()["scores"] for reply in accepted] == [[worth(ask("q", f"a{n}"))] for n in range(10)]
        _, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, err) == (0, "10 scored\n")


def test_a_second_signal_does_not_wait() -> None:
    with running(*SLOW, "3600", "--batch", "1") as server:

        async def talk() -> list[Any]:
            async with client(server) as web, client(server) as other:
                stuck = [asyncio.create_task(web.post("/v1/score", json=body("q", f"{n}"))) for n in range(3)]
                await until_waiting(other, 2)
                server.process.send_signal(signal.SIGTERM)
                await until_it_accepts_nothing(server)
                server.process.send_signal(signal.SIGTERM)
                return list(await asyncio.gather(*stuck, return_exceptions=True))

        asyncio.run(talk())
        _, err = server.process.communicate(timeout=60)
    assert server.process.returncode == 1
    assert err.splitlines()[-1].endswith("stopped at once: accepted requests were not answered")


def test_more_than_it_can_take_is_refused_and_the_rest_is_served() -> None:
    with running(*SLOW, "0.5", "--queue", "8", "--batch", "8") as server:

        async def talk() -> list[Any]:
            async with client(server) as web:
                return list(await asyncio.gather(*[web.post("/v1/score", json=body("q", f"{n}")) for n in range(60)]))

        replies = asyncio.run(talk())
        assert server.stop(signal.SIGTERM)[0] == 0
    statuses = Counter(reply.status_code for reply in replies)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= 8
    for n, reply in enumerate(replies):
        if reply.status_code == 200:
            assert reply.json()["scores"] == [worth(ask("q", f"{n}"))]
        else:
            assert int(reply.headers["Retry-After"]) >= 1


def test_clients_that_leave_free_their_places() -> None:
    with running(*SLOW, "0.6", "--queue", "8", "--batch", "8") as server:

        async def talk() -> list[Any]:
            async with client(server) as web, client(server) as other:
                first = asyncio.create_task(web.post("/v1/score", json=body("q", "first")))
                await asyncio.sleep(0.2)
                leaving = [asyncio.create_task(web.post("/v1/score", json=body("q", f"gone {n}"))) for n in range(8)]
                await until_waiting(other, 8)
                for task in leaving:
                    task.cancel()
                while await gauge(other, "prb_waiting_answers") > 0:
                    await asyncio.sleep(0.02)
                stays = [web.post("/v1/score", json=body("q", f"stays {n}")) for n in range(8)]
                return list(await asyncio.gather(first, *stays))

        replies = asyncio.run(talk())
        code, err = server.stop(signal.SIGTERM)
    assert [reply.status_code for reply in replies] == [200] * 9
    assert (code, err) == (0, "9 scored\n")


async def load(server: Running, seconds: float, clients: int, seed: int) -> Counter[str]:
    """Clients that ask, now and then leave in the middle, and come back when told to; what became of each request."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds

    async def one(number: int, web: Any) -> None:
        random = Random(f"{seed}:{number}")
        count = 0
        while time.monotonic() < end:
            count += 1
            question, answers = (
                f"q{random.randrange(16)}",
                [f"{number}/{count}/{k}" for k in range(random.randint(1, 4))],
            )
            request = web.post("/v1/score", json=body(question, *answers))
            if random.random() < 0.2:
                try:
                    await asyncio.wait_for(request, random.uniform(0, 0.1))
                    seen["answered in time"] += 1
                except TimeoutError:
                    seen["left"] += 1
                continue
            reply = await request
            if reply.status_code == 429:
                seen["refused"] += 1
                await asyncio.sleep(random.uniform(0, 0.2))
                continue
            expected = [worth(ask(question, answer)) for answer in answers]
            seen["right" if reply.status_code == 200 and reply.json()["scores"] == expected else "wrong"] += 1

    async with client(server) as web:
        await asyncio.gather(*[one(number, web) for number in range(clients)])
        assert (await web.get("/healthz")).status_code == 200
        while await gauge(web, "prb_waiting_answers") > 0:
            await asyncio.sleep(0.02)
    return seen


def test_under_load_with_clients_that_leave_no_request_is_lost() -> None:
    with running(*SLOW, "0.02", "--queue", "48", "--batch", "32") as server:
        seen = asyncio.run(load(server, 1.5, clients=64, seed=0))
        code, err = server.stop(signal.SIGTERM)
    assert code == 0, err
    assert seen["wrong"] == 0
    assert min(seen["right"], seen["left"], seen["refused"]) > 0
