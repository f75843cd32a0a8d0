"""A real HTTP server on loopback that speaks /v1/chat/completions and misbehaves to order.

In tests it runs in a thread, `with serve(script) as server`; a script says for each request what to reply. As a
program, `python tests/llm/server.py --latency 0.5 --slots 64 --faults 0.05`, it prints its port and serves until it
is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    body: Json
    headers: dict[str, str]
    number: int
    """Of all requests, from 0."""
    times: int
    """How often the same text was asked before."""
    connection: int
    path: str = ""

    @property
    def text(self) -> str:
        return str(self.body["messages"][-1]["content"])


@dataclass(frozen=True)
class Reply:
    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    hang: bool = False
    """Never answers; ends when the client goes away."""
    drop: bool = False
    """Hangs up in the middle of the body."""
    together: int = 0
    """Waits until so many requests have been under way at once."""
    drip: bool = False
    """Sends a byte now and then, for ever."""


Script = Callable[[Seen], Reply]


def says(text: str | None, usage: tuple[int, int] | None = (10, 2), delay: float = 0.0, **choice: Any) -> Reply:
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    data: Json = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    data["choices"] = [{"index": 0, "finish_reason": "stop", "message": message, **choice}]
    if usage:
        data["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Reply(json.dumps(data).encode(), delay=delay)


def error(status: int, message: str, delay: float = 0.0, headers: Json | None = None, **more: Any) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "error", **more}}).encode()
    return Reply(body, status, tuple((headers or {}).items()), delay)


HANG = Reply(b"", hang=True)
GARBAGE = Reply(b"<html>502 but we say 200</html>")
NO_CHOICES = Reply(b'{"object": "chat.completion", "choices": []}')
DROPPED = replace(says("never seen whole"), drop=True)
DRIPPING = replace(says("never seen whole"), drip=True)


def echo(seen: Seen) -> Reply:
    return says(f"re: {seen.text}")


@dataclass
class Server:
    script: Script
    slots: int | None = None
    """With this many requests under way, more are refused with 429."""
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    active: int = 0
    peak: int = 0
    connections: int = 0
    left: int = 0
    """How many clients went away without waiting for their reply."""
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gone: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _asked: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self.exchange(reader, writer, number):
                pass
        writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        """One request and its reply; whether the connection stays open."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        asked = json.dumps(body.get("messages", body))
        seen = Seen(body, headers, len(self.seen), self._asked[asked], connection, lines[0].split()[1])
        self._asked[asked] += 1
        self.seen.append(seen)
        self.arrived.release()
        full = self.slots is not None and self.active >= self.slots
        reply = error(429, "all slots are taken") if full else self.script(seen)
        if not full:
            self.active += 1
            self.peak = max(self.peak, self.active)
            try:
                await self.wait(reply, reader)
            finally:
                self.active -= 1
        return await self.send(reply, writer)

    async def wait(self, reply: Reply, reader: asyncio.StreamReader) -> None:
        while self.peak < reply.together:
            await asyncio.sleep(0.001)
        if not reply.hang:
            await asyncio.sleep(reply.delay)
        elif not await reader.read(1):
            self.left += 1
            self.gone.release()
            raise ConnectionResetError

    async def send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        self.statuses[reply.status] += 1
        head = [f"HTTP/1.1 {reply.status} X", "content-type: application/json", f"content-length: {len(reply.body)}"]
        head += [f"{key}: {value}" for key, value in reply.headers]
        start = "\r\n".join([*head, "", ""]).encode("latin-1")
        if reply.drip:
            writer.write(start)
            for byte in reply.body:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.write(start + (reply.body[: len(reply.body) // 2] if reply.drop else reply.body))
        await writer.drain()
        return not reply.drop

    async def listen(self) -> asyncio.Server:
        listening = await asyncio.start_server(self.connection, "127.0.0.1", self.port, backlog=1024, limit=2**24)
        self.port = listening.sockets[0].getsockname()[1]
        return listening

    def start(self) -> None:
        """In a thread, on a free port; on the same one if it was stopped before."""
        self._loop = asyncio.new_event_loop()
        self._listening = self._loop.run_until_complete(self.listen())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """As a process that is killed: nobody listens, and open connections end."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._listening.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()


@contextmanager
def serve(script: Script = echo, slots: int | None = None) -> Iterator[Server]:
    server = Server(script, slots)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def in_turn(*replies: Reply) -> Script:
    """The n-th asking of a text gets the n-th reply; then the last one for ever."""
    return lambda seen: replies[min(seen.times, len(replies) - 1)]


def faulty(latency: float, faults: float, seed: int = 0) -> Script:
    """Replies after a while, a share of them wrong: too many, broken, silent or nonsense."""
    rng = random.Random(seed)
    wrong = (
        error(429, "slow down", headers={"retry-after": "1"}),
        replace(error(500, "oops"), delay=latency),
        HANG,
        replace(GARBAGE, delay=latency),
    )
    sound = says("Result: A", delay=latency)
    return lambda _: rng.choice(wrong) if rng.random() < faults else sound


async def _main(args: argparse.Namespace) -> None:
    server = Server(faulty(args.latency, args.faults), args.slots)
    listening = await server.listen()
    print(server.port, flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--faults", type=float, default=0.0)
    asyncio.run(_main(parser.parse_args()))
