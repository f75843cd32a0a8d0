"""What the benchmarks share: a median of several times, and a place in a page that is written anew each time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tables" / "benchmarks.md"


def median_time(work: Callable[[], object], repeat: int = 1) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def write_between(name: str, content: str, page: Path = PAGE) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = page.read_text("utf-8")
    before, after = text.split(start)[0], text.split(end)[1]
    page.write_text(f"{before}{start}\n{content.strip()}\n{end}{after}", "utf-8")
