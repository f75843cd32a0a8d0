"""A real server process: signals in the middle of requests, clients that leave, more than it can take, long loads."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack, suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

httpx = pytest.importorskip("httpx", reason="needs httpx")
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


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_requests_loses_none_that_was_accepted(sent: signal.Signals) -> None:
    with running(*SLOW, "0.4", "--batch", "4") as server:

        async def talk() -> tuple[list[Any], Any, Any]:
            async with client(server) as web, client(server) as other:
                accepted = [asyncio.create_task(web.post("/v1/score", json=body("q", f"a{n}"))) for n in range(10)]
                await until_waiting(other, 6)
                server.process.send_signal(sent)
                while (health := await other.get("/healthz")).status_code == 200:
                    await asyncio.sleep(0.01)
                async with client(server) as newcomer:  # also over a new connection
                    late = await newcomer.post("/v1/score", json=body("q", "late"))
                return list(await asyncio.gather(*accepted)), health, late

        accepted, health, late = asyncio.run(talk())
        assert [reply.json()["scores"] for reply in accepted] == [[worth(ask("q", f"a{n}"))] for n in range(10)]
        assert health.json() == {"status": "stopping"}
        assert (late.status_code, late.json()) == (503, {"error": "the server is stopping"})
        _, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, err) == (0, "10 scored\n")


def test_a_second_signal_does_not_wait() -> None:
    with running(*SLOW, "3600", "--batch", "1") as server:

        async def talk() -> list[Any]:
            async with client(server) as web, client(server) as other:
                stuck = [asyncio.create_task(web.post("/v1/score", json=body("q", f"{n}"))) for n in range(3)]
                await until_waiting(other, 2)
                server.process.send_signal(signal.SIGTERM)
                while (await other.get("/healthz")).status_code == 200:
                    await asyncio.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                return list(await asyncio.gather(*stuck))

        assert [reply.status_code for reply in asyncio.run(talk())] == [503] * 3
        _, err = server.process.communicate(timeout=60)
    assert server.process.returncode == 1
    assert err.splitlines()[-1].endswith("stopped at once: accepted requests were not answered")


def test_an_idle_server_stops_at_once_and_says_what_it_did() -> None:
    with running() as server:
        httpx.post(f"{server.url}/v1/score", json=body("q", "a", "b"), trust_env=False).raise_for_status()
        assert server.stop(signal.SIGINT) == (0, "2 scored\n")


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


def test_idle_connections_keep_nobody_out_and_fill_no_log() -> None:
    """More of them than the process may open files; half have begun a request that never ends."""
    begin = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)); "
    with running("-c", begin + "import tests.serving.process as p; p.main(p.Args())") as server:
        address = urlsplit(server.url)
        with ExitStack() as idle:
            for n in range(300):
                connection = idle.enter_context(socket.create_connection((address.hostname, address.port), timeout=20))
                if n % 2:
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-")
            for _ in range(3):
                assert httpx.get(f"{server.url}/healthz", timeout=20, trust_env=False).status_code == 200
        assert server.stop(signal.SIGTERM) == (0, "0 scored\n")


def test_headers_must_arrive_in_time_and_not_just_piece_by_piece() -> None:
    begin = "import prb.serving.http as h; h.HEAD_SECONDS = 0.5; "
    with running("-c", begin + "import tests.serving.process as p; p.main(p.Args())") as server:
        address = urlsplit(server.url)
        silent = socket.create_connection((address.hostname, address.port), timeout=20)
        served = socket.create_connection((address.hostname, address.port), timeout=20)
        with silent, served:
            served.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert served.recv(1000).startswith(b"HTTP/1.1 200")
            assert silent.recv(1) == b""  # closed
            with suppress(OSError):  # the second request comes byte by byte, each of them early enough
                for letter in b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"x" * 1000:
                    served.sendall(bytes([letter]))
                    time.sleep(0.02)
                pytest.fail("the connection is still open")


def test_clients_that_leave_free_their_places() -> None:
    with running(*SLOW, "1.0", "--queue", "8", "--batch", "8") as server:

        async def talk() -> list[Any]:
            async with client(server) as web, client(server) as other:
                first = asyncio.create_task(web.post("/v1/score", json=body("q", "first")))
                await asyncio.sleep(0.3)
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


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(600, marks=pytest.mark.slow)], ids=["for a moment", "for ten minutes"]
)
def test_under_load_with_clients_that_leave_no_request_is_lost(seconds: float) -> None:
    with running(*SLOW, "0.02", "--queue", "48", "--batch", "32") as server:
        seen = asyncio.run(load(server, seconds, clients=64, seed=0))
        code, err = server.stop(signal.SIGTERM)
    print(dict(seen))
    assert code == 0, err
    assert seen["wrong"] == 0
    assert min(seen["right"], seen["left"], seen["refused"]) > 0
