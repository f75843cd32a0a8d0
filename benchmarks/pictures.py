"""Pictures of the report site in README.md and docs/report.md: a real run of the embedded models on `mirror`.

Needs chromium. Downstream, study and audit need results of other verbs; their pictures are not made here.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import prb

DOCS = Path(__file__).parents[1] / "docs"
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
VIEWS = {
    "leaderboard": "index.html",
    "cost": "cost.html",
    "stability": "stability.html#condition=shuffled&k=4",
    "model": "model.html#model=lexical",
    "users": "users.html#model=lexical&user=clement",
    "pairs": "pairs.html#model=lexical&condition=profile",
    "histories": "histories.html#show=missed&pair=c04-q2-babak",
    "compare": "compare.html#a=embedding&b=lexical",
}
ON_A_PHONE = {**VIEWS, "pairs": "pairs.html#pair=c01-q1-amparo", "histories": "histories.html#pair=c04-q2-babak"}


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = Path(folder, "demo")
        prb.evaluate(out=run, quiet=True)
        site = prb.report([run], quiet=True).parent
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shoot(browser, site, VIEWS, DESK, "")
        shoot(browser, site, ON_A_PHONE, PHONE, "-phone")
        shoot(browser, site, {"pairs": VIEWS["pairs"]}, DESK, "-dark", dark=True)
        browser.close()
    shutil.copy(DOCS / "report" / "leaderboard.png", DOCS / "report.png")


def shoot(
    browser: Any, site: Path, views: dict[str, str], size: dict[str, int], suffix: str, dark: bool = False
) -> None:
    scheme = "dark" if dark else "light"
    page = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1.5).new_page()
    for name, view in views.items():
        page.goto("about:blank")  # another hash alone would keep the page
        page.goto(f"{site.resolve().as_uri()}/{view}")
        page.wait_for_selector("body[data-ready]")
        card = page.locator(".boardcard").first.bounding_box() if name == "leaderboard" and size is DESK else None
        clip = {"x": 0, "y": 0, **size, **({"height": card["y"] + card["height"] + 16} if card else {})}
        page.screenshot(path=DOCS / "report" / f"{name}{suffix}.png", clip=clip, full_page=card is not None)


if __name__ == "__main__":
    main()
