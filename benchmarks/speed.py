"""Speed as ratios measured in one run; results go to docs/tables/benchmarks.md.

python benchmarks/speed.py                  everything, 100,000 rows (needs 2 GB of disk for a while)
python benchmarks/speed.py --rows 1000000   the same, larger
"""

from __future__ import annotations

import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import tyro
from record import median_time, write_between

from prb.data.source import open_source
from prb.stats.estimate import totals
from prb.stats.paired import bootstrap_interval


@dataclass(frozen=True)
class Args:
    rows: int = 100_000
    """Rows of the generated file."""
    folder: Path | None = None
    """Where to put it for a while."""


def main(args: Args) -> None:
    rows = [help_time(), *million(args), resampling()]
    lines = ["| what | ours | measured against | ratio | target |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    about = (
        f"{platform.machine()}, {len_cpus()} cores, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}."
    )
    write_between("speed", f"{about}\n\n" + "\n".join(lines))
    print("\n".join(lines))


def len_cpus() -> int:
    import os

    return len(os.sched_getaffinity(0))


def help_time() -> tuple[str, ...]:
    def run(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)

    ours, bare = median_time(run("-m", "prb", "--help"), 9), median_time(run("-c", "pass"), 9)
    target = 4 * bare + 0.25
    return "`prb --help`", f"{ours:.3f} s", f"`python -c pass` {bare:.3f} s", f"{ours / bare:.1f}×", f"≤ {target:.2f} s"


def million(args: Args) -> list[tuple[str, ...]]:
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "rows.jsonl"
        size = generate(path, args.rows)
        bare = median_time(lambda: subprocess.run([sys.executable, "-c", BARE, str(path)], check=True))
        words = ["evaluate", "--model", "length", "--condition", "none", "--dataset", str(path), "--quiet", "--json"]
        command = [sys.executable, "-c", MEASURED, *words, "--out", str(Path(folder) / "run")]
        start = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        ours = time.perf_counter() - start
    peak = json.loads(done.stderr.splitlines()[-1])["peak_mb"]
    label = f"evaluate `length` on {args.rows:,} rows ({size / 1e9:.1f} GB)"
    return [
        (label, f"{ours:.1f} s", f"loop of orjson.loads {bare:.1f} s", f"{ours / bare:.1f}×", "–"),
        ("its peak memory", f"{peak:.0f} MB", "–", "–", "< 1000 MB"),
    ]


BARE = """
import sys, orjson
with open(sys.argv[1], "rb") as file:
    for line in file:
        orjson.loads(line)
"""

MEASURED = """
import resource, sys
from prb.cli import run
code = run(sys.argv[1:])
print('{"peak_mb": %f}' % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), file=sys.stderr)
sys.exit(code)
"""


def generate(path: Path, rows: int) -> int:
    """Rows of the embedded set over and over, under new ids and ten per user."""
    texts = [row.data for row in open_source("mirror").rows()]
    with path.open("wb") as file:
        for n in range(rows):
            row = {**texts[n % len(texts)], "id": f"g{n}", "user": f"u{n // 10}", "split": "test"}
            row.pop("mirror", None)
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        return file.tell()


def resampling(outcomes: int = 1_000_000, users: int = 100_000, draws: int = 10_000) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    credit = rng.integers(0, 2, outcomes).astype(float)
    clusters = rng.integers(0, users, outcomes)
    ours = median_time(lambda: bootstrap_interval(totals(credit, clusters), draws=draws))
    sums, sizes = (column.tolist() for column in totals(credit, clusters))

    def one_draw() -> float:
        picked = random.choices(range(len(sums)), k=len(sums))
        return float(sum(sums[i] for i in picked) / sum(sizes[i] for i in picked))

    loop = median_time(one_draw, 5) * draws
    label = f"{draws:,} resamples of {outcomes:,} outcomes, {users:,} users"
    return label, f"{ours:.2f} s", f"Python loop {loop:.0f} s (from 5 draws)", f"{loop / ours:.0f}× faster", "≥ 50×"


if __name__ == "__main__":
    main(tyro.cli(Args))
