"""How much of an endpoint's capacity the openai back end uses; results go to docs/tables/benchmarks.md.

The endpoint is a local server in a process of its own with a fixed latency and 64 slots (429 above), so the least
possible time is known: completions / slots × latency.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import Mock, patch

import tyro
from record import ROOT, write_between

from prb.llm import Completion, Request
from prb.llm.endpoint import Endpoint
from prb.types import Turn


@dataclass(frozen=True)
class Args:
    completions: int = 2000
    slots: int = 64
    words: int = 500
    """Length of each prompt."""


@dataclass(frozen=True)
class Case:
    label: str
    latency: float
    faults: float = 0.0
    concurrency: int = 64
    wanted: float | None = None


CASES = (
    Case("500 ms", 0.5, wanted=1.15),
    Case("500 ms, 5 % of replies 429, 500, silence or garbage", 0.5, faults=0.05, wanted=1.6),
    Case("500 ms, allowed 256 at once: the limit must be found", 0.5, concurrency=256),
    Case("50 ms", 0.05),
)


def main(args: Args) -> None:
    lines = ["| endpoint | complete | sent again | time | least possible | ratio | wanted |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for case in CASES:
        lines.append(f"| {' | '.join(measure(args, case))} |")
        print(lines[-1], flush=True)
    about = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}; "
    about += f"{args.completions:,} completions, {args.slots} slots; {time.strftime('%Y-%m-%d')}."
    write_between("judging", f"{about}\n\n" + "\n".join(lines))


def measure(args: Args, case: Case) -> tuple[str, ...]:
    prompt = "word " * args.words
    requests = [Request((Turn("user", f"{n}: {prompt}"),)) for n in range(args.completions)]
    with endpoint(args, case) as url:
        llm = Endpoint("local", url, concurrency=case.concurrency, timeout=max(2.0, 4 * case.latency))
        start = time.perf_counter()
        with patch.object(llm._client, "exchange", Mock(wraps=llm._client.exchange)) as exchange:
            results = llm.complete(requests)
        seconds = time.perf_counter() - start
    least = args.completions / args.slots * case.latency
    complete = sum(isinstance(result, Completion) for result in results)
    wanted = f"≤ {case.wanted}" if case.wanted else "–"
    times = f"{seconds:.1f} s", f"{least:.1f} s", f"{seconds / least:.2f}"
    return case.label, f"{complete:,}", f"{exchange.call_count - args.completions:,}", *times, wanted


@contextmanager
def endpoint(args: Args, case: Case) -> Iterator[str]:
    command = [sys.executable, str(ROOT / "tests" / "llm" / "server.py")]
    command += ["--latency", str(case.latency), "--slots", str(args.slots), "--faults", str(case.faults)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        server.kill()


if __name__ == "__main__":
    main(tyro.cli(Args))
