"""The page of a run: complete, safe, and readable in a real browser without a network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.evaluate.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.report.page import finished, write_report
from prb.types import Failure, RewardModel
from tests.conftest import make_row, make_twins
from tests.runs import by_length, settings

Write = Callable[..., Path]
LONG = "of_a_rather_long_name_without_any_place_to_break_a_line_0123456789"
EVIL = "<script>alert(1)</script>"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def run(write_jsonl: Write, tmp_path: Path) -> Path:
    """Every part of the page has something to show: five conditions, contrasts, twins, tiers, failures."""
    rows = [row for n in (1, 2, 3) for row in make_twins(n, tier="easy" if n == 1 else "hard")]
    rows.append(make_row(9, category=EVIL, tier='"><img src=x onerror=alert(2)>'))
    conditions = ("none", "profile", "plan", "shuffled", "oracle")
    models: dict[str, RewardModel] = {
        EVIL: ScriptedScorer(lambda ask: len(ask.answer) + len(ask.query.posts)),
        "a-model-with-a-very-long-name?and=many&options=" + "x" * 60: ScriptedScorer(by_length),
        "failing": ScriptedScorer(lambda _: Failure("busy")),
    }
    data, folder = write_jsonl(rows, name=f"{LONG}.jsonl"), tmp_path / f"run_{LONG}"
    evaluate(settings(data, folder, model=tuple(models), condition=conditions), models=models)
    return folder


def test_a_report_is_a_page_and_two_tables(run: Path, tmp_path: Path) -> None:
    page = write_report([run], tmp_path / "site" / "deep")
    assert page == tmp_path / "site" / "deep" / "index.html"
    assert sorted(path.name for path in page.parent.iterdir()) == ["index.html", "table.csv", "table.md"]
    text = page.read_text("utf-8")
    for part in ("Is it the person?", "Accuracy by category, condition profile", "Accuracy by tier", "7 failed"):
        assert part in text


def test_nothing_a_user_named_is_markup(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "site").read_text("utf-8")
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_page_asks_for_nothing_from_elsewhere(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "site").read_text("utf-8")
    assert "default-src 'none'" in text
    for part in ("http://", "https://", 'src="', "<link", "@import", "url("):
        assert part not in text, part


def test_several_runs_stand_on_one_page(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "second")
    page = write_report([run, tmp_path / "second"], tmp_path / "site")
    text = page.read_text("utf-8")
    assert (text.count("<h2>"), "<h2>second</h2>" in text) == (2, True)
    assert (page.parent / "table.md").read_text("utf-8").count("| model |") == 2


def test_a_page_is_the_same_every_time(run: Path, tmp_path: Path) -> None:
    one, two = write_report([run], tmp_path / "one"), write_report([run], tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()


def test_ratings_have_a_page_without_bars(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [{"user": "u", "question": f"{n}?", "profile": [], "answer": "a" * n, "rating": n / 10} for n in (1, 2, 5)]
    config = settings(write_jsonl(rows), tmp_path / "run", task="ratings", condition=("none",))
    evaluate(config, models={"mine": ScriptedScorer(by_length)})
    text = write_report([tmp_path / "run"], tmp_path / "site").read_text("utf-8")
    assert "alignment" in text
    assert 'class="lane' not in text
    assert "Is it the person?" not in text


def test_an_unfinished_run_says_what_to_do(run: Path, tmp_path: Path) -> None:
    (run / "summary.json").unlink()
    with pytest.raises(BadInput, match="is not finished; run the same `prb evaluate` again"):
        write_report([run], tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a run"):
        finished(tmp_path)
    with pytest.raises(BadInput, match="name at least one run folder"):
        write_report([], tmp_path / "site")


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, so the page cannot be looked at")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """The page in a window of its own, with all it says and asks for."""

    def __init__(self, browser: Any, page: Path, *, width: int, dark: bool = False) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(page.as_uri())

    def measure(self, script: str) -> Any:
        return self.page.evaluate(script)


BRIGHTNESS = """(name) => {
  const [r, g, b] = getComputedStyle(document.body)[name].match(/[0-9.]+/g).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""
DOTS = """() => [...document.querySelectorAll('.lane')].filter(e => e.querySelector('.dot')).map(e => {
  const [axis, dot] = ['.axis', '.dot'].map(part => e.querySelector(part).getBoundingClientRect());
  return [100 * (dot.x + dot.width / 2 - axis.x) / axis.width, parseFloat(e.querySelector('.num').innerText)];
})"""
SPILL = """() => [...document.querySelectorAll('main *')]
  .filter(e => !e.closest('.wide') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))"""


def test_in_a_browser_the_page_is_quiet_safe_and_fits_a_phone(browser: Any, run: Path, tmp_path: Path) -> None:
    page = write_report([run], tmp_path / "site")
    for width in (1280, 390):
        visit = Visit(browser, page, width=width)
        assert visit.said == []
        assert visit.asked == [page.as_uri()]
        assert visit.dialogs == []
        assert visit.page.locator(".model > b").first.inner_text() == EVIL
        assert visit.page.locator("script, img").count() == 0
        assert visit.measure("document.documentElement.scrollWidth") <= width
        assert visit.measure(SPILL) == []
    # on the phone the numbers are still there, and wide tables scroll inside their own box
    assert visit.page.locator(".lane .num").first.is_visible()
    assert visit.measure("() => [...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)")
    assert visit.measure("parseFloat(getComputedStyle(document.body).fontSize)") >= 16


def test_in_a_browser_the_page_follows_dark_mode(browser: Any, run: Path, tmp_path: Path) -> None:
    page = write_report([run], tmp_path / "site")
    light, dark = Visit(browser, page, width=1280), Visit(browser, page, width=1280, dark=True)
    paper, ink = ([v.page.evaluate(BRIGHTNESS, name) for v in (light, dark)] for name in ("backgroundColor", "color"))
    assert (paper[0] > 0.9, paper[1] < 0.2) == (True, True), paper
    assert (ink[0] < 0.2, ink[1] > 0.8) == (True, True), ink


def test_in_a_browser_a_bar_stands_where_its_number_says(browser: Any, run: Path, tmp_path: Path) -> None:
    visit = Visit(browser, write_report([run], tmp_path / "site"), width=1280)
    found = visit.measure(DOTS)
    assert len(found) == 10  # two models that answer, five conditions
    assert all(abs(at - number) < 0.5 for at, number in found)
