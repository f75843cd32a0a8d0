"""The reward server against a naive one, one request one forward pass: same model, same data, one run.

python benchmarks/serving.py                            64 clients over 16 queries with ten posts, SmolLM2-135M
python benchmarks/serving.py --clients 8 --queries 2
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2 as httpx
import numpy as np
import tyro
from record import write_between

from prb.data.load import load
from prb.data.retrieve import RANKERS, top_posts
from prb.types import Pair
from prb.weights import resolve_weights

Body = dict[str, Any]


@dataclass(frozen=True)
class Args:
    clients: int = 64
    """Each has one request under way, with one answer."""
    queries: int = 16
    model: str = ""
    """Spec; default a reward head on SmolLM2-135M, with random weights, which cost the same as trained ones."""


@dataclass(frozen=True)
class Measured:
    seconds: float
    cpu: float
    """Of the server's process: what remains comparable where other programs run beside it."""
    latencies: tuple[float, ...]

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def cells(self, label: str, naive: Measured) -> str:
        p50, p99 = np.percentile(self.latencies, [50, 99])
        ratio = "1" if self is naive else f"{self.rate / naive.rate:.1f}×"
        cells = [label, f"{len(self.latencies)}", f"{self.seconds:.0f} s", f"{self.rate:.2f}", ratio]
        cells.append(f"{self.cpu / len(self.latencies):.2f} s")
        return "| " + " | ".join([*cells, f"{p50:.1f} s", f"{p99:.1f} s"]) + " |"


def main(args: Args) -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    bodies = requests(args)
    with TemporaryDirectory() as folder:
        compare(args, args.model or reward_head(Path(folder)), bodies)


def reward_head(folder: Path) -> str:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    where = resolve_weights("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(where)
    made = AutoModelForSequenceClassification.from_pretrained(where, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return f"classifier?path={folder}"


def compare(args: Args, model: str, bodies: list[list[Body]]) -> None:
    naive = measure(model, bodies, "--batch", "1")
    lines = ["| server | requests | time | answers/s | throughput | CPU an answer | p50 | p99 |"]
    lines += [
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        naive.cells("one request, one forward pass", naive),
    ]
    print(lines[-1], flush=True)
    lines.append(measure(model, bodies).cells("`prb serve`, one burst", naive))
    print(lines[-1], flush=True)
    about = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}; "
    about += f"{args.clients} clients, one answer a request, {args.queries} queries; {time.strftime('%Y-%m-%d')}."
    write_between("serving", f"{about}\n\n" + "\n".join(lines))


def requests(args: Args) -> list[list[Body]]:
    """What each client sends: its query with ten posts, and answers that nobody else sends about it."""
    pairs = [item for item in load("mirror") if isinstance(item, Pair)]
    pool = [answer for pair in pairs[::2] for answer in pair.answers]  # twins have the same ones
    queries = [query(pairs[n * 12 % len(pairs)]) for n in range(args.queries)]
    return [
        [{"query": queries[client % args.queries], "answers": [pool[client % len(pool)]]}]
        for client in range(args.clients)
    ]


def query(pair: Pair) -> Body:
    posts = top_posts(pair.question, pair.profile, RANKERS["embedding"], k=10).posts
    return {"question": pair.question, "user": pair.user, "posts": [post.text for post in posts]}


def measure(model: str, bodies: list[list[Body]], *flags: str) -> Measured:
    with server(model, *flags) as (url, pid):
        return asyncio.run(talk(url, pid, bodies))


async def talk(url: str, pid: int, bodies: list[list[Body]]) -> Measured:
    latencies: list[float] = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as web:
        (await web.post("/v1/score", json={"query": {"question": "warm?"}, "answers": ["Yes."]})).raise_for_status()

        async def client(own: list[Body]) -> None:
            for body in own:
                started = time.perf_counter()
                (await web.post("/v1/score", json=body)).raise_for_status()
                latencies.append(time.perf_counter() - started)

        started, spent = time.perf_counter(), cpu_seconds(pid)
        await asyncio.gather(*map(client, bodies))
        return Measured(time.perf_counter() - started, cpu_seconds(pid) - spent, tuple(latencies))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(model: str, *flags: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "prb", "serve", "--model", model, "--port", "0", "--json", "--quiet", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.terminate()


if __name__ == "__main__":
    main(tyro.cli(Args))
