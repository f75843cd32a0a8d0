"""Cost, stability, users and margins: their data, and the pages in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.reporting.pages import MIN_USERS
from prb.types import Ask, Duel, Failure, RewardModel, Verdict
from tests.conftest import Row, make_row
from tests.reporting.sites import EVIL, data_of, site_of

Open = Callable[..., Any]
USERS = 12
ALL = [f"{name}.html" for name in ("index", "model", "pairs", "compare", "cost", "stability", "users")]


def rows() -> list[Row]:
    """Twelve users with two questions each; of three posts the last two are shown."""
    made = []
    for n in range(USERS):
        posts = [
            {"id": f"u{n}-{k}", "category": "Art_and_Entertainment", "text": f"post {k} of {n}"} for k in (1, 2, 3)
        ]
        about = {"user": f"user-{n:02}" if n else EVIL, "profile": posts}
        where = {"groups": {"region": "north" if n < MIN_USERS else "south"}}
        made += [make_row(2 * n + k, **about, **where) for k in (0, 1)]
    return made


def number(ask: Ask | Duel) -> int:
    return int(ask.query.question.rstrip("?").split()[-1])


def good(ask: Ask) -> float:
    """Right, by a margin that grows, but for the last user."""
    return (-len(ask.answer) if number(ask) < 22 else len(ask.answer)) * (1.0 + number(ask))


def judge(duel: Duel) -> Verdict | Failure:
    """Right on the first half; it alone has a price."""
    if number(duel) == 23:
        return Failure("no verdict found")
    right = "first" if len(duel.first) < len(duel.second) else "second"
    wrong = "second" if right == "first" else "first"
    return Verdict(choice=right if number(duel) < 12 else wrong, tokens=100, cost=0.01)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models: dict[str, RewardModel] = {
        "good": ScriptedScorer(good),
        "judge": ScriptedComparer(judge),
        "length": ScriptedScorer(lambda ask: float(len(ask.answer))),
    }
    return site_of(tmp_path_factory.mktemp("pages"), rows(), models, k=2)


def test_the_slider_goes_to_half_of_the_clusters_and_the_leader_can_be_overtaken(site: Path) -> None:
    stability = data_of(site, "d0/stability")
    assert (stability["clusters"], stability["steps"]) == (USERS, list(range(USERS // 2 + 1)))
    found = stability["conditions"]["profile"]
    leader, *rivals = found["ranked"]
    assert found["random"][0]["value"][leader] == found["favorable"][0][leader] == pytest.approx(22 / 24, abs=1e-5)
    assert found["overtaken"][leader] is None
    # good wins 22 of 24, length none: eleven users with a lead of two each, one where both are level
    assert found["overtaken"][rivals[-1]] == 11
    assert all(a[leader] >= b[leader] for a, b in pairwise(found["favorable"]))


def test_every_page_is_quiet_fits_a_screen_and_a_phone_and_is_accessible(visit: Open, site: Path, axe: str) -> None:
    phone, window = visit(site, width=390), visit(site)
    problems = []
    for page in ALL:
        phone.go(page)
        phone.assert_fits()
        window.go(page)
        window.assert_fits()
        assert window.page.locator("img, iframe, main script").count() == 0
        assert window.page.locator("nav a[aria-current=page]").get_attribute("href") == page
        window.page.evaluate(axe)
        rules = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}"
        dark = "{runOnly: {type: 'rule', values: ['color-contrast']}}"
        found = window.page.evaluate(
            f"""async () => {{
              const light = await axe.run(document, {rules});
              document.documentElement.dataset.theme = 'dark';
              const dark = await axe.run(document, {dark});
              return [...light.violations, ...dark.violations].map(v => `${{v.id}}: ${{v.nodes[0].html}}`);
            }}"""
        )
        problems += [f"{page}: {problem}" for problem in found]
    assert problems == []
    phone.assert_quiet()  # in the other window axe asks for more than the page may load


def test_no_table_of_a_model_is_cut_at_1280_pixels(visit: Open, site: Path) -> None:
    cut = """() => [...document.querySelectorAll('main .wide')]
      .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 60))"""
    for model in ("good", "judge"):
        for condition in ("none", "profile"):
            window = visit(site, f"model.html#model={model}&condition={condition}")
            assert window.page.evaluate(cut) == []


def test_cost_marks_the_front_and_lists_models_without_that_cost(visit: Open, site: Path) -> None:
    window = visit(site, "cost.html#quality=accuracy")  # control is 0 for all: time alone would decide
    assert window.page.locator("#unit").input_value() == "money"
    assert window.texts("#cost tbody th") == ["judge"]
    assert "good, length" in window.texts("#left")[0]
    window.page.select_option("#unit", "seconds")
    window.page.locator("#cost tbody th", has_text="good").wait_for()
    front = {row.split("\t")[0]: row.endswith("✓") for row in window.texts("#cost tbody tr")}
    assert front["good"]  # nobody is better
    assert not any("good" in text for text in window.texts("#left"))
    window.page.select_option("#quality", "control")
    window.page.locator("#cost thead", has_text="control").wait_for()
    window.assert_quiet()


def test_the_slider_works_by_keyboard_and_its_view_has_an_address(visit: Open, site: Path) -> None:
    window = visit(site, "stability.html")
    assert window.texts("#k-shown") == ["2"]  # a tenth of them
    window.page.focus("#k")
    window.page.keyboard.press("ArrowRight")
    assert window.texts("#k-shown") == ["3"]
    assert window.texts("#verdict")[0].startswith("Without 3 of 12 users, drawn at random, good is first in 100.0 %")
    assert window.page.evaluate("[document.activeElement.id, location.hash]") == ["k", "#k=3"]
    window.page.select_option("#mode", "favorable")
    window.page.locator("#verdict", has_text="furthest ahead of judge").wait_for()
    assert "Spearman" in window.page.locator("#halves").inner_text()
    window.assert_quiet()


def test_a_badly_served_user_leads_to_their_pairs(visit: Open, site: Path) -> None:
    window = visit(site, "users.html#model=good")
    assert window.texts("#worst tbody th")[0] == "user-11"
    assert "1 groups with fewer than 10 users" in window.page.locator("#groups").inner_text()
    window.page.click("#worst tbody tr:first-child a")
    window.page.wait_for_selector("#user")
    assert window.texts("#user .mark") == ["✗", "✗"]
    window.page.click("#user tbody tr:first-child a")
    window.page.wait_for_selector(".detail h2")
    assert len(window.texts(".post.seen")) == 2
    window.assert_quiet()


def test_a_model_shows_margins_and_the_board_controls_for_length(visit: Open, site: Path) -> None:
    window = visit(site, "model.html#model=good")
    heading = "main svg[aria-label^='Histogram of margins: 22 of 24 prefer the chosen answer, 2 the rejected one']"
    assert window.page.locator(heading).count() == 1
    assert window.page.locator("main svg[aria-label^='How often it is right, by size']").count() == 1
    window.go("index.html#numbers=1")
    window.page.check("#length")
    window.page.locator("#board .notes", has_text="Length-controlled").wait_for()
    assert window.page.locator("td[data-label=gain]").count() == 0
    assert window.page.evaluate("location.hash") == "#numbers=1&length=1"
    window.assert_quiet()


def test_a_printed_page_says_what_was_chosen_on_white_paper(visit: Open, site: Path) -> None:
    window = visit(site, "stability.html#k=3", dark=True)
    window.page.emulate_media(media="print")
    assert window.page.locator("#condition").is_visible()
    assert not window.page.locator("#k").is_visible()
    assert window.page.locator("#verdict").is_visible()
    assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    window.go("index.html")
    for paper in ({"prefer_css_page_size": True}, {"format": "Letter"}):  # as on a screen, on one page
        assert window.page.pdf(**paper).count(b"/Type /Page\n") == 1
    heads = window.page.locator("table.first thead th")
    assert heads.count() == heads.locator("visible=true").count()
