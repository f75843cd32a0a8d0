"""Pictures in README.md, docs/report.md and docs/study.md: the report of a real run of the embedded models on `mirror`,
and the study app as `prb study demo` serves it.

Needs chromium. Downstream, study and audit pages of the report need results of other verbs; they are not made here.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
        shoot_study(browser)
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


@contextmanager
def demo(kind: str) -> Iterator[tuple[str, str, str]]:
    """Invitation, address of the administration and its password."""
    command = [sys.executable, "-m", "prb", "study", "demo", "--kind", kind, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            link, admin = server.stdout.readline().split()[-1], server.stdout.readline().split()
            yield link, admin[1], admin[3]
        finally:
            server.send_signal(signal.SIGINT)


def enter(browser: Any, link: str, *, dark: bool = False, **size: int) -> Any:
    scheme = "dark" if dark else "light"
    page = browser.new_context(viewport={"width": 1000, "height": 900, **size}, color_scheme=scheme).new_page()
    page.goto(link)
    page.keyboard.press("Enter")
    page.wait_for_load_state()
    return page


def press(page: Any, keys: str, then: str) -> None:
    for key in keys:
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.wait_for_selector(then)
    page.wait_for_load_state()


def shoot_study(browser: Any) -> None:
    from PIL import Image

    shoot_validation(browser)
    shoot_collection(browser)
    for path in (DOCS / "study").glob("*.png"):  # long pages of text: few colors will do
        Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


def shoot_validation(browser: Any) -> None:
    with demo("validate") as (link, admin, password):
        page = enter(browser, link)
        page.wait_for_selector(".ratings")
        press(page, "444444a", ".wishes")  # the practice item
        press(page, "a3p", ".ratings")
        page.screenshot(path=DOCS / "study" / "validate.png", full_page=True)
        phone = enter(browser, link, **PHONE)
        phone.locator(".answer-a").scroll_into_view_if_needed()
        phone.screenshot(path=DOCS / "study" / "phone.png")
        press(page, "544344b", ".wishes")
        dark = enter(browser, link, dark=True)
        dark.screenshot(path=DOCS / "study" / "rubric-dark.png", full_page=True)
        page.goto(admin)
        page.fill("#password", password)
        page.click("text=Sign in")
        page.wait_for_selector("h1:text('Study progress')")
        page.screenshot(path=DOCS / "study" / "admin.png", full_page=True)
        page.click("text=Items and votes")
        page.wait_for_selector("h1:text('Items and votes')")
        page.screenshot(path=DOCS / "study" / "items.png")


def shoot_collection(browser: Any) -> None:
    with demo("collect") as (link, _, _):
        page = enter(browser, link)
        page.check("input[name=agree]")
        page.click("button.main")
        for text in ("No more apps, please. I want one sheet of paper on the fridge.", "Took the slow train. Again."):
            page.fill("#text", text)
            page.click("text=Add this post")
        page.click("text=Continue")
        page.locator("input[name^=pick]").first.check()
        page.click("button.main")
        page.fill("#narrative", "Short, and no lecture. One thing that I can do today.")
        page.click("button.main")
        page.wait_for_selector(".answers")
        page.screenshot(path=DOCS / "study" / "collect.png", full_page=True)


if __name__ == "__main__":
    main()
