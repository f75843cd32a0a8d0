"""A real browser, and a window in it that remembers all it says and asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPILL = """() => [...document.querySelectorAll('main *')]
  .filter(e => !e.closest('.wide, .list, .skip, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))"""
BRIGHTNESS = """(name) => {
  const [r, g, b] = getComputedStyle(document.body)[name].match(/[0-9.]+/g).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""


class Window:
    """A window of its own, with all that goes wrong in it."""

    def __init__(self, browser: Any, *, width: int, height: int = 900, dark: bool = False, **options: Any) -> None:
        size, scheme = {"width": width, "height": height}, "dark" if dark else "light"
        self.context = browser.new_context(viewport=size, color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append(dialog.message), dialog.dismiss()))


class Visit(Window):
    """A page of a site, drawn to its end."""

    def __init__(self, browser: Any, site: Path, where: str, *, width: int = 1280, dark: bool = False) -> None:
        super().__init__(browser, width=width, dark=dark)
        self.site = site
        self.page.set_default_timeout(10_000)
        self.asked: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.go(where)

    def go(self, where: str) -> None:
        self.page.goto(f"{self.site.resolve().as_uri()}/{where}")
        self.page.wait_for_selector("body[data-ready]")

    def texts(self, selector: str) -> list[str]:
        return [str(text).strip() for text in self.page.locator(selector).all_inner_texts()]

    def assert_quiet(self) -> None:
        """No word on the console, no dialog, nothing asked of anything but the site's own files."""
        assert self.troubles == []
        home = self.site.resolve().as_uri()
        assert [url for url in self.asked if not url.startswith(home)] == []

    def assert_fits(self) -> None:
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert self.page.evaluate(SPILL) == []


@pytest.fixture
def axe() -> str:
    """The script of axe-core, a checker of accessibility; `make test` puts it into the environment."""
    script = Path(sys.prefix, "axe", "axe.min.js")
    if not script.exists():
        pytest.skip("axe-core is not installed (`make axe` needs npm), so accessibility cannot be checked")
    return script.read_text("utf-8")


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """`visit(site, "index.html#…", width=390, dark=True)`; windows are closed after the test."""
    opened: list[Visit] = []

    def open_(site: Path, where: str = "index.html", **how: Any) -> Visit:
        opened.append(Visit(browser, site, where, **how))
        return opened[-1]

    yield open_
    for window in opened:
        window.context.close()
