"""Pictures of the report site in README.md and docs/report.md, from real runs on `mirror`: the embedded models, its
audit, best-of-N over its pool of graded answers, and the correlation study. And the figure of gain and control.

Needs chromium. The picture of a human study is not made here, since nobody can be asked again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import prb
from prb.reporting.figures import contrasts
from prb.reporting.gather import gather

DOCS = Path(__file__).parents[1] / "docs"
DESK, PHONE = 1280, 390
MOST = 1500
"""Pixels of a page that are shown; it is cut between its parts."""
VIEWS = {
    "leaderboard": "index.html",
    "cost": "cost.html",
    "stability": "stability.html#condition=shuffled&k=4",
    "model": "model.html#model=lexical",
    "users": "users.html#model=lexical&user=clement",
    "pairs": "pairs.html#model=lexical&condition=profile",
    "compare": "compare.html#a=embedding&b=lexical",
    "downstream": "downstream.html",
    "audit": "audit.html",
}
END = """most => {
  const all = (names) => [...document.querySelectorAll(names)].map(e => e.getBoundingClientRect());
  const boxes = (names) => all(names).filter(b => b.height);
  const ends = boxes('main, main .card, main .two, main tr, main .post, main .bar, main p').map(b => b.bottom);
  for (const parts of ['main .card, main .two', 'main tr, main .post, main .bar, main p, main svg, main li, main h2']) {
    const inside = boxes(parts), whole = (y) => !inside.some(b => b.top < y - 1 && b.bottom > y + 1);
    const found = Math.max(...ends.filter(y => y <= most && y > most / 2 && whole(y)));
    if (Number.isFinite(found)) return Math.ceil(found);
  }
  return Math.min(most, document.documentElement.scrollHeight);
}"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run, audit, bon, study = (Path(folder, name) for name in ("demo", "audit", "best-of-8", "correlation"))
        prb.evaluate(out=run, quiet=True)
        prb.audit("mirror", out=audit, quiet=True)
        models = ("embedding", "lexical", "aspect-match", "random")
        prb.best_of_n(prb.BonConfig(candidates="mirror", grader="recorded", model=models, n=8, out=bon, quiet=True))
        sides = {"bench": ("mirror", "general"), "downstream": ("policy accuracy", "grade")}
        prb.correlate(table=DOCS / "correlation.csv", **sides, measure=("spearman",), out=study, quiet=True)
        (group,) = gather([run]).groups
        contrasts(group.summary, DOCS / "gain-control.svg")
        site = prb.report([run, audit, bon, study], quiet=True).parent
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shoot(browser, site, VIEWS, DESK, "")
        shoot(browser, site, {"leaderboard": VIEWS["leaderboard"]}, PHONE, "-phone")
        shoot(browser, site, {"pairs": VIEWS["pairs"]}, DESK, "-dark", dark=True)
        browser.close()


def shoot(browser: Any, site: Path, views: dict[str, str], width: int, suffix: str, dark: bool = False) -> None:
    size = {"width": width, "height": 860}
    context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", device_scale_factor=1.5)
    page = context.new_page()
    for name, view in views.items():
        page.goto("about:blank")  # another hash alone would keep the page
        page.goto(f"{site.resolve().as_uri()}/{view}")
        page.wait_for_selector("body[data-ready]")
        page.evaluate("document.querySelector('footer').hidden = true")
        clip = {"x": 0, "y": 0, "width": width, "height": page.evaluate(END, MOST) + 6}
        page.screenshot(path=DOCS / "report" / f"{name}{suffix}.png", clip=clip, full_page=True)
    context.close()


if __name__ == "__main__":
    main()
