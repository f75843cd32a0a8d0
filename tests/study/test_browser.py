"""Both kinds of study in a real browser: by keyboard alone, on phone and desktop, without scripts, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prb.study.app import fill
from prb.study.config import ExportConfig
from prb.study.database import REPLY
from prb.study.judgments import export
from tests.conftest import make_row
from tests.reporting.conftest import Window
from tests.study.conftest import AFTER, BEFORE, Make, Study
from tests.study.test_security import EVIL, evil_row

WINDOWS = {"desk": (1280, 900), "phone": (390, 844)}

SPILL = """() => [...document.querySelectorAll('body *')]
  .filter(e => e.checkVisibility() && !e.closest('.wide, .reel, .unseen, .jump'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))"""
VIOLATIONS = """async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}))
  .violations.map(v => `${v.id}: ${v.nodes[0].html}`)"""


class Visit(Window):
    """A window on a desk or a phone, used as people do."""

    def __init__(self, browser: Any, window: str = "desk", *, scripts: bool = True, axe: str = "", **look: Any) -> None:
        (width, height), touch = WINDOWS[window], {"has_touch": window == "phone", "reduced_motion": "reduce"}
        super().__init__(browser, width=width, height=height, java_script_enabled=scripts, **touch, **look)
        self.axe = axe

    def join(self, address: str, study: Study, number: int = 0) -> None:
        self.page.goto(f"{address}/join/{study.tokens[number]}")

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def enter(self, expect: str) -> None:
        """Enter, and the page it leads to."""
        self.page.keyboard.press("Enter")
        self.arrive(expect)

    def arrive(self, expect: str) -> None:
        """Keys pressed before the page's script has run would be lost."""
        self.page.wait_for_selector(expect)
        self.page.wait_for_load_state()

    def pick(self, name: str, value: str) -> None:
        """By its label, as a person does: the radio button is hidden, and a forced click on it waits for nothing."""
        self.page.locator(f"label:has(input[name={name}][value='{value}'])").click()
        assert self.page.locator(f"input[name={name}][value='{value}']").is_checked()

    def tab_to(self, selector: str) -> None:
        for _ in range(40):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"Tab never reaches {selector}")

    def sound(self) -> None:
        assert self.troubles == []
        assert self.page.evaluate(SPILL) == []
        self.page.evaluate(self.axe)
        assert self.page.evaluate(VIOLATIONS) == []
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("window", ["desk", pytest.param("phone", marks=pytest.mark.slow)])
def test_a_person_validates_by_keyboard_alone(browser: Any, make: Make, window: str) -> None:
    study = make([make_row(1), make_row(2)], annotators=1, overlap=1, checks=0)
    with study.serving() as address:
        visit = Visit(browser, window)
        visit.join(address, study)
        visit.enter("text=Which answer would this user prefer?")
        visit.keys("5", "4", "3", "2", "1", "5")
        visit.enter(".ask.missing .wrong")  # one is missing: it is pointed at, nothing is sent
        visit.keys("b")
        assert visit.page.locator(".missing, .wrong").count() == 0  # and the mark goes with the answer
        visit.enter(".wishes")
        visit.keys("a", "p")
        visit.enter("text=Item 2 of 2")
        visit.keys("u")
        visit.arrive("text=Taken back")
        assert visit.page.locator("input[value=A]").is_checked()
        visit.enter("text=Item 2 of 2")
        visit.arrive(".ratings")
        visit.keys("s", "ArrowDown", "ArrowDown")
        visit.enter("text=That was the last item")
        assert visit.troubles == []
    done = {row.skipped: row for row in study.judgments()}
    first = done[None]
    second = "rejected" if first.first == "chosen" else "chosen"
    assert list(first.ratings[first.first].values()) == [5, 4, 3]
    assert list(first.ratings[second].values()) == [2, 1, 5]
    assert (first.before, first.after, first.difference) == (second, first.first, "preference")
    assert "upsetting" in done


@pytest.mark.parametrize("window", ["phone", pytest.param("desk", marks=pytest.mark.slow)])
def test_a_person_takes_part_by_keyboard_alone(browser: Any, make: Make, window: str, tmp_path: Path) -> None:
    study = make([make_row(1), make_row(2)], kind="collect")
    with study.serving() as address:
        visit = Visit(browser, window)
        visit.join(address, study)
        visit.enter("text=Before we begin")
        visit.page.click("button.main")
        visit.arrive("text=Please tick this first")
        visit.tab_to("input[name=agree]")
        visit.keys("Space")
        visit.enter("text=2 more to go")
        for n, text in enumerate(("I like <b>short</b> answers.", "And honest ones.")):
            visit.tab_to("#text")
            visit.page.keyboard.type(text)
            visit.keys("Control+Enter")
            visit.arrive(f".post:nth-of-type({n + 1})")
        visit.enter("text=Which of these might you ask?")
        visit.keys("1")
        visit.enter("#narrative")
        visit.page.keyboard.type("One sentence, please. 12345 and no more.")
        visit.keys("Control+Enter")
        visit.arrive(".answers")
        visit.keys("5", "2", "a")
        visit.enter("text=Thank you")
        assert visit.troubles == []
    export(ExportConfig(study=study.where, out=tmp_path / "out"))
    pair = (tmp_path / "out" / "pairs.jsonl").read_text("utf-8")
    assert "I like <b>short</b> answers." in pair
    assert "One sentence, please. 12345 and no more." in pair
    assert (tmp_path / "out" / "ratings.jsonl").read_text("utf-8").count("\n") == 2


def test_the_way_through_needs_no_scripts(browser: Any, make: Make) -> None:
    study = make([make_row(1)], annotators=1, overlap=1, checks=0)
    with study.serving() as address:
        visit = Visit(browser, scripts=False)
        page = visit.page
        visit.join(address, study)
        page.click("text=Begin")
        visit.arrive(".ratings")
        for name, value in BEFORE.items():
            visit.pick(name, value)
        page.click("text=Continue")
        visit.arrive(".wishes")
        for name, value in AFTER.items():
            visit.pick(name, value)
        page.click("text=Save and continue")
        page.click("text=Undo the last item")
        visit.arrive(".wishes")
        assert page.locator("input[name=prefer][value=B]").is_checked()
        page.click("summary:has-text('Skip')")
        page.locator("input[name=reason]").first.check()
        page.click("text=Skip this item")
        visit.arrive("text=That was the last item")
        assert page.locator("h1").inner_text() == "That was the last item"


@pytest.mark.parametrize(
    ("window", "dark"),
    [
        pytest.param("phone", False, marks=pytest.mark.slow),
        ("desk", True),
        pytest.param("phone", True, marks=pytest.mark.slow),
        pytest.param("desk", False, marks=pytest.mark.slow),
    ],
)
def test_every_page_fits_its_window_and_can_be_read(
    browser: Any, make: Make, window: str, dark: bool, axe: str
) -> None:
    study, collect = make(annotators=6, checks=2), make(kind="collect", annotators=6)
    fill(study.database)
    with study.serving() as address, collect.serving() as other:
        visit = Visit(browser, window, dark=dark, axe=axe)
        page = visit.page
        visit.join(address, study, 5)
        visit.sound()
        visit.enter(".ratings")
        visit.sound()
        visit.keys("1", "s")
        visit.sound()
        visit.keys("Escape", *"23451a")
        visit.enter(".wishes")
        visit.sound()
        for path in ("/data", "/nowhere", "/admin/login"):
            page.goto(address + path)
            visit.troubles = [t for t in visit.troubles if "404" not in t]
            visit.sound()
        page.fill("#password", study.password)
        page.click("text=Sign in")
        visit.arrive("text=Study progress")
        visit.sound()
        page.goto(f"{address}/admin/items")
        visit.sound()
        visit.join(other, collect, 5)
        visit.enter("text=Before we begin")
        visit.sound()
        page.check("input[name=agree]")
        visit.enter("#text")
        visit.sound()
        for text in ("one", "two"):
            page.fill("#text", text)
            page.keyboard.press("Control+Enter")
            visit.arrive(f".post:has-text('{text}')")
        visit.sound()
        page.goto(f"{other}/questions")
        visit.sound()


def test_hostile_texts_do_nothing_in_a_browser(browser: Any, make: Make) -> None:
    rows = [evil_row(n) for n in range(len(EVIL))] + [make_row(99, chosen="W" * 1_000_000)]
    study = make(rows, annotators=1, overlap=1, checks=0)
    with study.serving() as address:
        visit = Visit(browser, "phone")
        visit.join(address, study)
        visit.enter(".ratings")
        for n in range(len(rows)):
            assert visit.page.locator("main script, main img, main svg, main a").count() == 0
            assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            visit.keys(*"444444a")
            visit.enter(".wishes")
            visit.keys("b", "t")
            visit.enter("text=That was the last item" if n == len(rows) - 1 else ".ratings")
        assert visit.troubles == []


def test_what_was_filled_in_survives_a_reload_and_a_double_click_is_one_vote(browser: Any, make: Make) -> None:
    study = make(checks=0)
    with study.serving() as address:
        visit = Visit(browser)
        visit.join(address, study)
        visit.enter(".ratings")
        visit.keys("5", "4", "3")
        visit.page.reload()
        assert visit.page.locator("input:checked").count() == 3
        visit.keys("2", "1", "5", "n")
        visit.page.locator("button.main").dblclick(no_wait_after=True)
        visit.arrive(".wishes")
        assert visit.troubles == []
    assert study.count(REPLY) == 1


def test_a_submit_that_fails_loses_no_draft(browser: Any, make: Make) -> None:
    study = make(checks=0)
    with study.serving() as address:
        visit = Visit(browser)
        visit.join(address, study)
        visit.enter(".ratings")
        visit.keys(*"543215n")
        visit.page.evaluate("document.querySelector('#work [name=token]').value = 'expired'")
        visit.enter("text=This form has expired")
        visit.page.go_back()
        visit.arrive(".ratings")
        assert visit.page.locator("input:checked").count() == 7
        visit.keys("Enter")
        visit.arrive(".wishes")
        assert visit.page.evaluate("Object.keys(sessionStorage).length") == 0
