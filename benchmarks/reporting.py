"""How long a site takes to build and to show, and whether pairs scroll smoothly; into docs/tables/benchmarks.md.

The runs are synthetic (scripted models, hashed scores) with rows as large as those of the public benchmark: each row is
its own user with 45 posts. The site is built once more with six rows per user, where tests are sign flips. Pages are
opened from disk in a fresh Chromium; times are medians of several visits. The list of pairs is scrolled from end to end
in 120 steps, one per frame.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import tyro
from record import write_between

from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.reporting.site import ReportConfig, report
from prb.types import Ask, Duel, RewardModel, Verdict

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CONDITIONS = ("none", "profile", "shuffled")
SCROLL = """async () => {
  const list = document.querySelector('.list'), times = [], end = list.scrollHeight - list.clientHeight;
  let last = performance.now();
  for (let step = 1; step <= 120; step += 1) {
    list.scrollTop = (end * step) / 120;
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


@dataclass(frozen=True)
class Args:
    pairs: int = 2830
    models: int = 20
    long: int = 10_000
    """Pairs of the list that is scrolled."""
    visits: int = 5
    record: bool = True
    """Write into docs/tables/benchmarks.md; otherwise only print."""


def main(args: Args) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        lines = [*site(base, args), six_rows_per_user(base, args), *scrolling(base, args)]
    load = f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
    about = f"{platform.machine()}, Python {platform.python_version()}, {load}; {time.strftime('%Y-%m-%d')}."
    table = "\n".join(["| what | measured | target |", "| --- | ---: | ---: |", *lines])
    print(f"{about}\n\n{table}")
    if args.record:
        write_between("reporting", f"{about}\n\n{table}")


def site(base: Path, args: Args) -> list[str]:
    index, seconds, busy = build(base / "run", args, per_user=1)
    size = sum(path.stat().st_size for path in index.parent.rglob("*") if path.is_file()) / 1e6
    what = f"{args.models} models × {len(CONDITIONS)} conditions × {args.pairs:,} pairs"
    paints = [visit(index, "table.board tbody tr") for _ in range(args.visits)]
    paint, ready = (statistics.median(times) for times in zip(*paints, strict=True))
    return [
        f"| build {what} ({size:.0f} MB) | {seconds:.1f} s ({busy:.1f} s of CPU) | < 30 s |",
        f"| leaderboard, first paint | {paint:.2f} s | < 1.5 s |",
        f"| leaderboard, table shown | {ready:.2f} s | |",
    ]


def six_rows_per_user(base: Path, args: Args) -> str:
    _, seconds, busy = build(base / "six", args, per_user=6)
    return f"| the same with six rows per user | {seconds:.1f} s ({busy:.1f} s of CPU) | < 15 s of CPU |"


def build(folder: Path, args: Args, per_user: int) -> tuple[Path, float, float]:
    """The site's first page, and how long it took: by the clock, and in seconds of CPU."""
    run = make_run(folder, args.pairs, args.models, CONDITIONS, per_user)
    start, busy = time.perf_counter(), time.process_time()
    index = report(ReportConfig(runs=(run,), out=folder.with_suffix(".site")))
    return index, time.perf_counter() - start, time.process_time() - busy


def scrolling(base: Path, args: Args) -> list[str]:
    run = make_run(base / "long", args.long, 4, ("none", "profile"))
    index = report(ReportConfig(runs=(run,), out=base / "longsite"))
    with opened() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        page.goto((index.parent / "pairs.html").as_uri())
        page.wait_for_selector(".detail h2")
        ready = time.perf_counter() - start
        frames = page.evaluate(SCROLL)
        elements = page.locator(".virtual li").count()
    return [
        f"| explorer, {args.long:,} pairs: list and first pair shown | {ready:.2f} s | |",
        f"| scrolling end to end: median frame | {statistics.median(frames):.0f} ms | |",
        f"| 95th percentile of frames | {sorted(frames)[int(0.95 * len(frames))]:.0f} ms | < 50 ms |",
        f"| rows in the DOM | {elements} | |",
    ]


class opened:  # noqa: N801
    """A new browser for each visit, so that no cache is warm."""

    def __enter__(self) -> Any:
        from playwright.sync_api import sync_playwright

        self._play = sync_playwright().start()
        self._browser = self._play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        return self._browser

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._play.stop()


def visit(page: Path, until: str) -> tuple[float, float]:
    with opened() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector(until)
        ready = time.perf_counter() - start
        paint = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
    return paint, ready


def make_run(folder: Path, pairs: int, models: int, conditions: tuple[Any, ...], per_user: int = 1) -> Path:
    data = folder.with_suffix(".jsonl")
    rows = ({**row(n), "user": f"u{n // per_user}"} for n in range(pairs))
    data.write_bytes(b"".join(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in rows))
    own: dict[str, RewardModel] = {f"model-{n:02d}": made_up(n) for n in range(models)}
    config = EvaluateConfig(
        model=tuple(own), condition=conditions, dataset=str(data), history="both?ranker=recency", out=folder, batch=512
    )
    evaluate(config, models=own)
    return folder


def row(n: int) -> dict[str, Any]:
    words = " ".join(f"word{(n * 7 + k) % 997}" for k in range(60))
    posts = [{"id": f"u{n}-{k}", "category": "Talk", "text": f"Post {k}. {words}"} for k in range(45)]
    answers = {side: f"{side} {n}: {words} " * 3 for side in ("chosen", "rejected")}
    rest = {"narrative": words, "category": f"Part_{n % 3}", "rubric_aspects": [{"aspect": "a", "reason": words}] * 4}
    return {"id": f"pair-{n:05d}", "question": f"Question {n}? {words}", "profile": posts, **answers, **rest}


def made_up(n: int) -> RewardModel:
    """Each model is a little better than the last, and better with posts; every tenth compares, and sometimes ties."""

    def score(question: str, answer: str, posts: int) -> float:
        noise = int.from_bytes(hashlib.sha256(f"{n}{question}{answer[:20]}".encode()).digest()[:6], "big") / 2**48
        return noise + (0.02 * n + (0.05 if posts else 0.0)) * answer.startswith("chosen")

    def prefer(duel: Duel) -> Verdict:
        a, b = (score(duel.query.question, answer, len(duel.query.posts)) for answer in (duel.first, duel.second))
        return Verdict(choice="tie" if abs(a - b) < 0.05 else "first" if a > b else "second", text="Because. " * 20)

    def give(ask: Ask) -> float:
        return score(ask.query.question, ask.answer, len(ask.query.posts))

    return ScriptedComparer(prefer) if n % 10 == 9 else ScriptedScorer(give)


if __name__ == "__main__":
    main(tyro.cli(Args))
