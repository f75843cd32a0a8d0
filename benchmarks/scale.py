"""What scaling out costs, and what a query and an answer cost; results go to docs/tables/benchmarks.md.

Two Ray actors against two local processes with a shard each, on the same rows, one thread each, taking turns; and the
CPU time of a query and of each of its answers, from which the page computes how long larger jobs take.

python benchmarks/scale.py                       SmolLM2-135M; minutes
python benchmarks/scale.py --rows 24 --repeat 1  a look
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from record import write_between

CONDITIONS = ("none", "profile")


@dataclass(frozen=True)
class Args:
    rows: int = 200
    """Rows of the embedded benchmark that both ways score."""
    repeat: int = 3
    """Rounds, of which the median counts."""
    queries: int = 12
    """Queries whose cost is measured, under each condition."""
    model: str = "likelihood?lm=smollm2"
    record: bool = True
    """Write into docs/tables/benchmarks.md; otherwise only print."""


def main(args: Args) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # as many processes as cores, one thread each
    lines = [*costs(args), "", *overhead(args)]
    load = f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
    about = f"`{args.model}`, {processor()}, one thread, {load}; {time.strftime('%Y-%m-%d')}."
    text = "\n".join([about, "", *lines])
    print(text)
    if args.record:
        write_between("scale", text)


def processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return names[0] if names else platform.machine()


def costs(args: Args) -> list[str]:
    """CPU seconds of a query with two answers and with eight: their difference is six answers."""
    from prb.config import UserConfig
    from prb.data.load import load
    from prb.evaluation.conditions import Built, QueryBuilder
    from prb.evaluation.planners import PLANNERS
    from prb.models import MODELS
    from prb.types import Ask, Pair, Scorer

    os.environ["PRB_CACHE"] = fresh_cache(tempfile.mkdtemp())
    model = MODELS.make(args.model)
    assert isinstance(model, Scorer)
    dataset = load("mirror", limit=args.queries, donors=True)
    builder = QueryBuilder.of(UserConfig(), dataset, PLANNERS.make("extractive"), reader=model, seed=0)
    pairs = [item for item in dataset if isinstance(item, Pair)]
    others = [answer for pair in pairs for answer in pair.answers]
    table = ["| condition | tokens of a query | CPU s per query | CPU s per answer |", "| --- | ---: | ---: | ---: |"]
    for condition in CONDITIONS:
        seconds, tokens = {}, 0
        for answers in (2, 8):
            asks = []
            for n, pair in enumerate(pairs):
                built = builder.build(pair, condition)
                assert isinstance(built, Built)
                more = (others[n + 2 :] + others)[: answers - 2]
                asks += [Ask(built.query, f"{answer}{answers * ' '}") for answer in (*pair.answers, *more)]
            start = time.process_time()
            rewards = model.score(asks)
            seconds[answers] = time.process_time() - start
            tokens = sum(getattr(reward, "tokens", 0) for reward in rewards[::answers])
        answer = max(0.0, (seconds[8] - seconds[2]) / (6 * len(pairs)))
        query = seconds[2] / len(pairs) - 2 * answer
        table.append(f"| `{condition}` | {tokens / len(pairs):.0f} | {query:.3f} | {answer:.3f} |")
    return table


def overhead(args: Args) -> list[str]:
    ways = {"two local processes": two_processes, "`--engine 'ray?actors=2'`": two_actors}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeat):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                way(args, Path(folder))
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    local, there = medians.values()
    work = f"{args.rows} rows × {len(CONDITIONS)} conditions"
    return [
        f"| {work}, start-up included | seconds |",
        "| --- | ---: |",
        *(f"| {name} | {seconds:.1f} |" for name, seconds in medians.items()),
        f"| ratio (wanted: at most 1.25) | {there / local:.2f} |",
    ]


def two_processes(args: Args, folder: Path) -> None:
    started = [start(args, folder, str(n), "--shard", f"{n}/2") for n in (1, 2)]
    assert all(process.wait() == 0 for process in started)


def two_actors(args: Args, folder: Path) -> None:
    assert start(args, folder, "ray", "--engine", "ray?actors=2").wait() == 0


def start(args: Args, folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    conditions = [word for condition in CONDITIONS for word in ("--condition", condition)]
    common = ["--model", args.model, *conditions, "--limit", str(args.rows), "--batch", "8", "--quiet"]
    command = [sys.executable, "-m", "prb", "evaluate", *common, "--out", str(folder / name), *words]
    environment = {**os.environ, "PRB_CACHE": fresh_cache(str(folder))}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)


def fresh_cache(folder: str) -> str:
    """A cache that knows the weights and nothing else."""
    from prb.cache import cache_folder

    weights = Path(folder) / "weights"
    if not weights.is_symlink():
        weights.symlink_to((cache_folder() / "weights").resolve())
    return folder


if __name__ == "__main__":
    main(tyro.cli(Args))
