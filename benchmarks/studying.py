"""How long an annotator waits for a submit under load; results go to docs/benchmarks.md.

200 simulated annotators send 20,000 judgements (two submits each) to `prb study serve` in a process of its own, as fast
as they get replies; the server is killed (`kill -9`) and started again three times meanwhile. Every acknowledged submit
must be in the database exactly once. Waiting while the server is down counts as waiting.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro
from record import ROOT, write_between

sys.path.insert(0, str(ROOT))
from tests.study.crowd import run_storm


@dataclass(frozen=True)
class Args:
    annotators: int = 200
    judgements: int = 20_000
    kills: int = 3
    think: float = 0.0
    """Mean number of seconds before each submit; 0: as fast as replies come."""
    record: bool = True
    """Write into docs/benchmarks.md; otherwise only print."""


def main(args: Args) -> None:
    lines = ["| database | submits | stored once | a second | median | p95 | sent again | server CPU per request |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, place in {"SQLite (WAL, synchronous=FULL)": sqlite, "PostgreSQL": postgres}.items():
        with place() as (folder, where):
            start = time.perf_counter()
            load = {"annotators": args.annotators, "judgements": args.judgements, "kills": args.kills}
            crowd, stored = run_storm(folder, where, **load, think=args.think)
            seconds = time.perf_counter() - start
        assert stored == crowd.acknowledged
        cells = [name, f"{2 * args.judgements:,}", f"{len(stored):,}", f"{len(stored) / seconds:.0f}"]
        cells += [f"{statistics.median(crowd.seconds):.2f} s", f"{crowd.p95():.2f} s", f"{crowd.lost:,}"]
        cells += [f"{1000 * crowd.cpu / crowd.requests:.2f} ms"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    about = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores shared by server and crowd, "
    about += f"Python {platform.python_version()}; {args.annotators} annotators at once, {args.kills} × `kill -9`; "
    about += f"{time.strftime('%Y-%m-%d')}."
    if args.record:
        write_between("studying", f"{about}\n\n" + "\n".join(lines))


@contextmanager
def sqlite() -> Iterator[tuple[Path, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder), str(Path(folder) / "study.db")


@contextmanager
def postgres() -> Iterator[tuple[Path, str]]:
    import pgserver

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield folder, server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(tyro.cli(Args))
