"""`prb serve` and `prb study serve` under load for a long time, with kills; results go to docs/tables/reliability.md.

Each of the three (the reward server; the study on SQLite and on PostgreSQL) gets a third of the time. In the first
third of that the server is killed (`kill -9`) and started again up to five times: what was acknowledged must be there
exactly once, and every reward must be right. After the last kill its memory, file handles and threads are sampled; a
straight line is fitted to the second half of the samples.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tyro
from record import ROOT, write_between

sys.path.insert(0, str(ROOT))
from tests.serving.fakes import ask, worth
from tests.serving.process import running
from tests.study.crowd import Crowd, Server, annotate, make_study, stored_replies

KILLS = 5
CLIENTS = 32
ANNOTATORS = 50
THINK = 0.5
PAGE = ROOT / "docs" / "tables" / "reliability.md"


@dataclass(frozen=True)
class Args:
    minutes: float = 30.0
    record: bool = True
    """Write into docs/tables/reliability.md; otherwise only print."""


@contextmanager
def sqlite() -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder), str(Path(folder) / "study.db")


@contextmanager
def postgres() -> Iterator[tuple[Path, str]]:
    import pgserver

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")  # type: ignore[attr-defined]
    try:
        yield folder, server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Usage:
    """Of one process over time."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    handles: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)

    def sample(self, pid: int) -> None:
        process = Path(f"/proc/{pid}")
        self.seconds.append(time.monotonic())
        self.memory.append(int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
        self.handles.append(len(list((process / "fd").iterdir())))
        self.threads.append(len(list((process / "task").iterdir())))

    def cells(self) -> list[str]:
        """Mean, and change along the fitted line."""
        half = len(self.seconds) // 2
        hours = np.array(self.seconds[half:]) / 3600
        shown = []
        for values, unit in ((self.memory, " MB"), (self.handles, ""), (self.threads, "")):
            slope = np.polyfit(hours - hours[0], values[half:], 1)[0]
            grown = slope * (hours[-1] - hours[0])
            shown.append(
                f"{np.mean(values[half:]):.0f}{unit} ({grown:+.1f} over {60 * (hours[-1] - hours[0]):.1f} min)"
            )
        return shown


async def watch(seconds: float, kill: Callable[[], None], pid: Callable[[], int]) -> Usage:
    """Kill the server at even distances for a third of the time, then sample it for the rest."""
    begun = time.monotonic()
    for n in range(KILLS):
        await asyncio.sleep(seconds / 3 / KILLS)
        if n == 0 or time.monotonic() < begun + seconds / 3:
            await asyncio.to_thread(kill)
    usage, end = Usage(), time.monotonic() + seconds * 2 / 3
    while time.monotonic() < end:
        await asyncio.sleep(min(5.0, seconds / 100))
        usage.sample(pid())
    return usage


def soak_study(seconds: float, place: Callable[[], AbstractContextManager[tuple[Path, str]]]) -> list[str]:
    with place() as (folder, where):
        rate = ANNOTATORS / THINK / 2  # judgments per second at most
        judgments = int(rate * seconds) // 1000 * 1000 + 1000
        tokens = make_study(folder, where, annotators=ANNOTATORS, judgements=judgments)
        server, crowd = Server(where), Crowd()

        def kill() -> None:
            server.kill()
            server.start()

        async def everybody() -> Usage:
            people = [annotate(server.port, token, crowd, n, think=THINK) for n, token in enumerate(tokens)]
            crowd_at_work = asyncio.gather(*people)
            usage = await watch(seconds, kill, lambda: server.process.pid)
            crowd.stopped = True
            await crowd_at_work
            return usage

        try:
            usage = asyncio.run(everybody())
        finally:
            server.stop()
        assert stored_replies(where) == crowd.acknowledged, "an acknowledged reply is not stored as it was sent"
    kept = f"{len(crowd.acknowledged):,} acknowledged, all stored once; {crowd.lost} sent again"
    return [f"{server.kills}", kept, f"{crowd.p95():.2f} s", *usage.cells()]


def soak_serve(seconds: float) -> list[str]:
    import httpx2 as httpx

    seen: Counter[str] = Counter()
    waits: list[float] = []
    stopped = asyncio.Event()
    words = ("-m", "tests.serving.process", "--seconds", "0.005")
    with running(*words) as first:
        servers: list[tuple[Any, Any]] = [(first, None)]

        def kill() -> None:
            servers[-1][0].process.send_signal(signal.SIGKILL)
            servers[-1][0].process.wait()
            manager: Any = running(*words)
            servers.append((manager.__enter__(), manager))

        async def client(number: int) -> None:
            draws, count = Random(number), 0
            async with httpx.AsyncClient(timeout=60, trust_env=False) as web:
                while not stopped.is_set():
                    count += 1
                    question, answers = f"q{draws.randrange(16)}", [f"{number}/{count}/{k}" for k in range(2)]
                    body = {"query": {"question": question}, "answers": answers}
                    start = time.perf_counter()
                    try:
                        reply = await web.post(f"{servers[-1][0].url}/v1/score", json=body)
                    except httpx.TransportError:
                        seen["sent again"] += 1
                        await asyncio.sleep(0.2)
                        continue
                    waits.append(time.perf_counter() - start)
                    expected = [worth(ask(question, answer)) for answer in answers]
                    right = reply.status_code == 200 and reply.json()["scores"] == expected
                    seen["right" if right else f"status {reply.status_code}"] += 1
                    await asyncio.sleep(draws.uniform(0, 0.2))

        async def everybody() -> Usage:
            clients = asyncio.gather(*map(client, range(CLIENTS)))
            usage = await watch(seconds, kill, lambda: servers[-1][0].process.pid)
            stopped.set()
            await clients
            return usage

        try:
            usage = asyncio.run(everybody())
        finally:
            for _, manager in servers[1:]:
                manager.__exit__(None, None, None)
    assert set(seen) <= {"right", "sent again"}, seen
    waits.sort()
    kept = f"{seen['right']:,} rewards, all right; {seen['sent again']} sent again"
    return [f"{len(servers) - 1}", kept, f"{waits[int(0.95 * len(waits))]:.2f} s", *usage.cells()]


def main(args: Args) -> None:
    each = 60 * args.minutes / 3
    targets: dict[str, Callable[[], list[str]]] = {
        "prb serve": lambda: soak_serve(each),
        "prb study, SQLite": lambda: soak_study(each, sqlite),
        "prb study, PostgreSQL": lambda: soak_study(each, postgres),
    }
    lines = ["| server | kills | replies | p95 | memory | file handles | threads |"]
    lines += ["| --- | ---: | --- | ---: | --- | --- | --- |"]
    for name, soak in targets.items():
        lines.append(f"| {' | '.join([name, *soak()])} |")
        print(lines[-1], flush=True)
    about = f"{args.minutes:g} minutes in all, load {os.getloadavg()[0]:.0f} on {len(os.sched_getaffinity(0))} cores; "
    about += f"{ANNOTATORS} annotators, {CLIENTS} clients; {time.strftime('%Y-%m-%d')}."
    if args.record:
        write_between("soak", f"{about}\n\n" + "\n".join(lines), PAGE)


if __name__ == "__main__":
    main(tyro.cli(Args))
