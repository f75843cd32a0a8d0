"""A crowd of simulated annotators over plain HTTP, and a server that is killed under them."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx

from prb.study.config import NewConfig
from prb.study.design import new_study
from prb.study.judgments import validate_fields

Key = tuple[int, int]
PATIENCE = 120.0


@dataclass
class Crowd:
    """What the crowd was told had been saved, and how long it waited for each reply."""

    acknowledged: dict[Key, dict[str, str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    """Requests that ended without a reply, and were sent again."""

    stopped: bool = False
    """Set to have everybody leave after the item they are at."""

    def p95(self) -> float:
        return sorted(self.seconds)[int(0.95 * len(self.seconds))]


class Line:
    """One annotator's browser; whatever fails is tried again until there is a reply."""

    def __init__(self, port: int, crowd: Crowd) -> None:
        self.crowd = crowd
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE)

    async def ask(self, method: str, path: str, fields: dict[str, str] | None = None) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await self.client.request(method, path, data=fields)
            except httpx.TransportError as error:
                self.crowd.lost += not isinstance(error, httpx.ConnectError)
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)


async def annotate(port: int, token: str, crowd: Crowd, seed: int, *, think: float = 0.0) -> None:
    """Judge everything, differently each time; `think` is the mean number of seconds before a submit."""
    line, dice = Line(port, crowd), random.Random(seed)
    await line.ask("POST", "/join", {"invitation": token})
    while not crowd.stopped:
        page = (await line.ask("GET", "/task")).text
        action = re.search(r'action="/task/(\d+)/(\d)"', page)
        if not action:
            return
        form = re.search(r'name="token" value="([^"]+)"', page)
        assert form
        for step in range(int(action[2]), 3):
            said = reply(step, dice)
            await asyncio.sleep(dice.uniform(0, 2 * think))
            start = time.perf_counter()
            answered = await line.ask("POST", f"/task/{action[1]}/{step}", {"token": form[1], **said})
            crowd.seconds.append(time.perf_counter() - start)
            assert answered.status_code == 303, (answered.status_code, answered.text)
            key = int(action[1]), step
            assert key not in crowd.acknowledged
            crowd.acknowledged[key] = said


def reply(step: int, dice: random.Random) -> dict[str, str]:
    return {field.name: dice.choice(field.options).value for field in validate_fields(step)}


class Server:
    """`prb study serve`, killed without a chance to tidy up and started again on the same port."""

    def __init__(self, where: str) -> None:
        self.where, self.port, self.kills = where, 0, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "prb", "study", "serve", self.where, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().split()[1].rpartition(":")[2])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


async def storm(server: Server, tokens: list[str], total: int, kills: int) -> Crowd:
    """Everybody at once; the server dies `kills` times, at even distances."""
    crowd = Crowd()
    people = [asyncio.create_task(annotate(server.port, token, crowd, n)) for n, token in enumerate(tokens)]
    for n in range(kills):
        while len(crowd.acknowledged) < 2 * total * (n + 1) / (kills + 1) and not all(p.done() for p in people):
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await asyncio.gather(*people)
    return crowd


def make_study(folder: Path, where: str, *, annotators: int, judgements: int) -> list[str]:
    """A study of so many judgments; the invitations."""
    import orjson

    from tests.conftest import make_row

    items = max(1, judgements // min(annotators, 20))
    data = folder / "load.jsonl"
    data.write_bytes(b"".join(orjson.dumps(make_row(n), option=orjson.OPT_APPEND_NEWLINE) for n in range(items)))
    made = new_study(
        NewConfig(dataset=str(data), out=where, annotators=annotators, overlap=judgements // items, checks=0)
    )
    assert made.judgements == judgements, made.judgements
    return [link.rpartition("/")[2] for link in made.links.values()]


def run_storm(
    folder: Path, where: str, *, annotators: int, judgements: int, kills: int
) -> tuple[Crowd, dict[Key, Any]]:
    """The crowd's own account, and what the database holds afterwards."""
    tokens = make_study(folder, where, annotators=annotators, judgements=judgements)
    server = Server(where)
    try:
        crowd = asyncio.run(storm(server, tokens, judgements, kills))
    finally:
        server.stop()
    return crowd, stored_replies(where)


def stored_replies(where: str) -> dict[Key, Any]:
    """All that a study holds, each reply once."""
    import sqlalchemy as sa

    from prb.study.database import REPLY, open_study

    database = open_study(where)
    with database.read() as connection:
        rows = connection.execute(sa.select(REPLY)).all()
    database.close()
    replies = {(row.assignment, row.step): row.fields for row in rows}
    assert len(replies) == len(rows)
    return replies
