"""The site in a real browser, from disk: sort, filter, follow a link to a view, read a pair, compare two models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from prb.evaluation.metrics import Rows
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.runs import write_lines
from prb.summary import METRICS, Metric
from prb.types import RewardModel
from tests.conftest import make_row
from tests.reporting.conftest import BRIGHTNESS
from tests.reporting.sites import EVIL, LONG, rows, site_of, write_site
from tests.runs import by_length, settings

Open = Callable[..., Any]


MARKS = """() => {
  const center = (node) => { const box = node.getBoundingClientRect(); return box.x + box.width / 2; };
  const ticks = [...document.querySelectorAll('table.first thead .tick')].map(t => [Number(t.textContent), center(t)]);
  return [...document.querySelectorAll('table.first tbody tr:not(.reference)')].flatMap(row => {
    const numbers = row.querySelector('.num').innerText.split(' → ').map(Number);
    return [...row.querySelectorAll('.since, .dot')].map((mark, n) => [center(mark), ticks, numbers[n]]);
  });
}"""
NUMBERS = "index.html#numbers=1"
MINE: dict[str, RewardModel] = {"mine": ScriptedScorer(by_length)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One site for all looks at it; every part has something to show."""
    return site_of(tmp_path_factory.mktemp("site"), rows())


def models(window: Any) -> list[str]:
    return [str(text).split("\n")[0] for text in window.texts("table.board tbody th a")]


def test_the_first_screen_is_the_verdict_and_a_line_per_model_by_control(visit: Open, site: Path) -> None:
    for width in (1280, 390):
        window = visit(site, width=width)
        assert window.texts("h1") == ["None of 3 models is shown to know whose preference it judges."]
        assert "7 pairs · 7 users in 4 clusters" in window.page.locator("#verdict").inner_text()
        rows = window.texts("table.first tbody tr")
        assert [text.split("\n")[0].split("\t")[0] for text in rows] == ["1–3", "1–3", "1–3", "–"]
        for text in ("knows", "live · all 2 posts", "28.6 → 100.0", "+71.4", "○ not shown"):
            assert text in rows[0]
        window.assert_fits()
        marks = window.page.evaluate(MARKS)
        assert len(marks) == 6  # of three models that answer, with another user's history and with the user's own
        for at, ticks, number in marks:
            (low, x_low), (high, x_high) = ticks[0], ticks[-1]
            assert low + (at - x_low) / (x_high - x_low) * (high - low) == pytest.approx(number, abs=1.5)
    window.page.select_option("#ranked", "none")
    window.page.locator("table.first tbody tr", has_text="57.1").first.wait_for()
    assert window.page.locator("table.first .since").count() == 0  # one condition: nothing to compare
    window.page.locator("#numbers summary").click()
    window.page.wait_for_selector("table.board tbody tr")
    assert window.page.evaluate("location.hash") == "#by=none&numbers=1"
    window.assert_quiet()


def test_the_table_of_all_numbers_sorts_by_any_column_and_says_so(visit: Open, site: Path) -> None:
    window = visit(site, NUMBERS)
    assert window.page.locator("th[aria-sort=descending]").inner_text().startswith("control")
    assert models(window) == ["knows", EVIL, LONG, "failing"]
    window.page.click("th button[data-sort=model]")
    window.page.wait_for_selector("th[aria-sort=ascending] button[data-sort=model]")
    assert models(window) == [EVIL, LONG, "failing", "knows"]
    assert window.page.locator("th[aria-sort=ascending]").inner_text() == "model"
    window.page.keyboard.press("Enter")  # the head that was clicked has the focus still
    window.page.wait_for_selector("th[aria-sort=descending] button[data-sort=model]")
    assert models(window) == ["knows", "failing", LONG, EVIL]
    window.page.click("th button[data-sort=shuffled]")
    window.page.wait_for_selector("th[aria-sort] button[data-sort=shuffled]")
    assert models(window)[-1] == "failing"  # without a number, last either way
    window.page.go_back()
    window.page.wait_for_selector("th[aria-sort=descending] button[data-sort=model]")
    assert models(window) == ["knows", "failing", LONG, EVIL]
    window.assert_quiet()


def test_a_filter_shows_the_numbers_of_its_rows_alone(visit: Open, site: Path) -> None:
    window = visit(site, NUMBERS)
    row = window.page.locator("table.board tbody tr", has_text="knows")
    assert row.locator("td[data-label=none]").inner_text().startswith("57.1")
    assert row.locator("td[data-label=rank]").inner_text() == "1–3"
    window.page.select_option("#tier", "hard")
    row.locator("td[data-label=none]", has_text="50.0").wait_for()
    assert row.locator("td[data-label=gain]").inner_text().startswith("+50.0")
    assert row.locator("td[data-label=rank]").count() == 0  # tested on all rows only
    window.page.select_option("#category", EVIL)
    row.locator("td[data-label=none]", has_text="100.0").wait_for()
    assert window.page.locator("#tier").input_value() == ""
    window.assert_quiet()


def test_a_link_to_a_view_shows_that_view(visit: Open, site: Path) -> None:
    window = visit(site, "index.html#condition=shuffled&tier=hard&sort=none.up&q=kno")
    assert models(window) == ["knows"]
    assert [window.page.locator(f"#{name}").input_value() for name in ("condition", "tier", "q")] == [
        "shuffled",
        "hard",
        "kno",
    ]
    assert window.page.locator("th[aria-sort=ascending]").inner_text() == "none"
    assert window.page.locator("td[data-label=none] .lit").inner_text().startswith("50.0")


def test_search_finds_by_name_and_the_address_follows(visit: Open, site: Path) -> None:
    window = visit(site, NUMBERS)
    window.page.keyboard.press("/")
    window.page.keyboard.type("FAIL")
    assert models(window) == ["failing"]
    assert window.page.locator("table.first tbody tr").count() == 1
    assert window.page.evaluate("location.hash") == "#numbers=1&q=FAIL"
    window.page.fill("#q", "nobody")
    assert "No model has this in its name." in window.texts("#board p")
    window.page.fill("#q", "")
    assert len(models(window)) == 4


COPIES = {
    "Markdown": ("| model | rank | control | none |", r"| <script>alert(1)</script> | 1–3 | +0.0 | 50.0 ["),
    "LaTeX": (r"\begin{tabular}{l", r"a-model-with-a-very-long-name?and=many\&options="),
    "CSV": ("model,rank,control,none,", '<script>alert(1)</script>,1–3,+0.0,"50.0 ['),
}


def test_the_table_can_be_copied(visit: Open, site: Path) -> None:
    window = visit(site, NUMBERS)
    # the clipboard of a page on disk may be refused: what the page hands over is looked at on its way
    window.page.evaluate(
        "() => { navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; }"
    )
    for name, (head, row) in COPIES.items():
        window.page.click(f"button[data-copy={name}]")
        text = window.page.evaluate("window.copied")
        assert text.startswith(head)
        assert row in text
        assert text.endswith("\n")
        assert window.texts(f"button[data-copy={name}]") == ["copied"]


def test_a_model_page_is_reached_from_the_board_and_tells_of_its_failures(visit: Open, site: Path) -> None:
    window = visit(site)
    window.page.get_by_role("link", name=EVIL).click()
    window.page.wait_for_selector("h1:has-text('alert')")
    text = window.page.locator("main").inner_text()
    expected = ("no verdict found", "By tier", "Position", "$ 2.5", "Every user has one pair")
    for part in expected:
        assert part in text, part
    assert window.texts(".facts dd")[0].startswith("50.0")
    # asked in both orders it always likes the first: never the same answer twice
    assert {"0.0 %", "100.0 %"} <= {t.split("\n")[0] for t in window.texts(".facts dd")}
    window.page.focus("#model-choice")
    window.page.select_option("#model-choice", "knows")
    window.page.wait_for_selector("h1:has-text('knows')")
    assert window.page.evaluate("document.activeElement.id") == "model-choice"
    window.page.go_back()
    window.page.wait_for_selector("h1:has-text('alert')")
    window.page.get_by_role("link", name="t2a").click()
    window.page.wait_for_selector(".detail h2")
    assert window.texts(".detail h2") == ["How do I water plant number 2?"]
    window.assert_quiet()


def test_a_pair_can_be_read_to_the_ground(visit: Open, site: Path) -> None:
    window = visit(site, f"pairs.html#pair=t1a&model={EVIL}")
    page = window.page
    assert window.texts(".detail h2") == ["How do I water plant number 1?"]
    assert window.texts(".chosen .text") == ["Once a week, plant 1 is happy."]
    assert "depends" in "".join(window.texts(".rejected mark"))
    assert "plant" not in " ".join(window.texts(".answer mark")).split()
    assert "Please keep it short" not in page.locator("main").inner_text()
    page.click("#rubric summary")
    assert "Please keep it short" in page.locator("#rubric").inner_text()
    assert len(window.texts(".post.seen")) == 2
    assert "I like the first. <script>alert(1)</script>" in page.locator("blockquote").first.inner_text()
    cells = page.locator("tr", has_text="knows").locator("td").all_inner_texts()
    assert [cells[n] for n in (1, 5)] == ["✓ +31", "−30, −61"]
    judged = page.locator("tr.picked td").all_inner_texts()
    assert judged[5] == "chosen first: chosen, rejected first: rejected"
    page.click("[data-way=raw]")
    page.locator(".answer mark").first.wait_for(state="detached")
    page.select_option("#condition", "shuffled")
    page.locator(".detail", has_text="posts of another user").wait_for()
    assert window.texts(".detail h2") == ["How do I water plant number 1?"]  # the same pair, looked at otherwise
    window.assert_quiet()


def test_the_list_is_walked_by_keys_and_a_twin_is_a_click_away(visit: Open, site: Path) -> None:
    window = visit(site, "pairs.html#order=dataset")
    chosen = lambda: window.page.locator(".row[aria-current]").get_attribute("href").split("pair=")[1]  # noqa: E731
    assert chosen() == "t1a"
    window.page.keyboard.press("j")
    window.page.keyboard.press("j")
    window.page.keyboard.press("k")
    window.page.wait_for_selector(".row[aria-current][href$='pair=t1b']")
    window.page.get_by_role("link", name="same question, other user").click()
    window.page.wait_for_selector(".row[aria-current][href$='pair=t1a']")
    window.assert_quiet()


FOUND = {
    "show=wrong": [],  # one model is always right
    f"show=wrong&model={quote(LONG)}": ["t1a", "t2a", "t3a", "r9"],
    "show=disagree": ["t1a", "t2a", "t3a", "r9"],
    "show=gained&model=knows": ["t1b", "t2b", "t3b"],
    "show=failed&model=" + EVIL: ["t2a", "t2b"],
    "tier=easy": ["t1a", "t1b"],
    "user=b3": ["t3b"],
    "q=number 3": ["t3a", "t3b"],
    "order=dataset": ["t1a", "t1b", "t2a", "t2b", "t3a", "t3b", "r9"],
    "": ["t1a", "t2a", "t3a", "r9", "t1b", "t2b", "t3b"],  # where models disagree, first
}


def test_pairs_are_found(visit: Open, site: Path) -> None:
    window = visit(site, "pairs.html")
    for view, expected in FOUND.items():
        window.page.goto("about:blank")  # another hash alone would keep the page
        window.go(f"pairs.html#{view}")
        links = window.page.locator(".row").evaluate_all("rows => rows.map(r => r.getAttribute('href'))")
        assert [link.split("pair=")[1] for link in links] == expected, view
        assert window.texts("[role=status]")[0].startswith(f"{len(expected)} of 7 pairs")
    # knows is always right under profile, so it flips where it is wrong under shuffled: 5 of 7
    window.go("pairs.html#show=flips&model=knows")
    window.page.locator("[role=status]", has_text="5 of 7 pairs").wait_for()


def test_two_models_are_compared(visit: Open, site: Path) -> None:
    window = visit(site, "compare.html#a=knows&b=" + EVIL)
    assert "knows is ahead of <script>alert(1)</script> by 50.0 points" in window.texts("#verdict")[0]
    assert "sign-flip p 0.250, 0.500 after Holm" in window.texts("#verdict")[0]
    counted = "5 pairs that both models answered; 2 where one failed are left out"
    assert counted in window.page.locator("main").inner_text()
    assert window.texts("#changed h3") == ["Only knows is right: 5", f"Only {EVIL} is right: 0"]
    window.page.click("#swap")
    window.page.locator("#changed section:first-child h3", has_text=": 0").wait_for()
    assert "knows is ahead of" in window.texts("#verdict")[0]
    assert "−50.0" in window.page.locator("main table").nth(1).inner_text()
    assert window.texts("table.matrix tbody th") == ["1 knows", f"2 {EVIL}", f"3 {LONG}", "4 failing"]
    assert window.texts("table.matrix tbody tr:first-child td")[:2] == ["", "+50.0"]
    window.page.locator("#changed a", has_text="all 5").click()
    window.page.wait_for_selector(".detail h2")
    assert window.texts("[role=status]") == ["5 of 7 pairs"]
    window.assert_quiet()


def test_the_theme_follows_the_system_until_one_is_chosen(visit: Open, site: Path) -> None:
    for dark in (False, True):
        window = visit(site, dark=dark)
        paper = lambda: window.page.evaluate(BRIGHTNESS, "backgroundColor")  # noqa: B023, E731
        assert (paper() < 0.2) == dark
        assert (window.page.evaluate(BRIGHTNESS, "color") > 0.8) == dark
        window.page.click("#theme")
        assert (paper() < 0.2) != dark
        window.go("compare.html")
        assert (paper() < 0.2) != dark  # remembered
    window.page.click("#theme")
    window.page.emulate_media(media="print")
    assert paper() > 0.999  # paper is white whatever was chosen


def test_ten_thousand_pairs_are_a_few_rows_at_a_time(visit: Open, tmp_path: Path) -> None:
    items = [make_row(n, profile=[]) for n in range(10_000)]
    window = visit(site_of(tmp_path, items, MINE, condition=("none",)), "pairs.html")
    assert window.texts("[role=status]") == ["10,000 of 10,000 pairs"]
    assert window.page.locator(".virtual li").count() < 60
    window.page.evaluate("() => { const list = document.querySelector('.list'); list.scrollTop = list.scrollHeight; }")
    window.page.wait_for_selector(".row[href$='pair=r9999']")
    assert window.page.locator(".virtual li").count() < 60
    window.page.click(".row[href$='pair=r9999']")
    window.page.locator(".detail h2", has_text="9999").wait_for()
    # of a hundred chunks only the two that were looked at were loaded
    assert sorted(url.split("/")[-1] for url in window.asked if "/pairs-" in url) == ["pairs-0.js", "pairs-99.js"]
    window.assert_quiet()


def test_datasets_are_chosen_on_every_page(visit: Open, tmp_path: Path) -> None:
    for name in ("one", "two"):
        data = tmp_path / f"{name}.jsonl"
        write_lines(data, [make_row(1, id=f"{name}-row")])
        evaluate(settings(data, tmp_path / name, condition=("none",)), models=MINE)
    site = write_site([tmp_path / "one", tmp_path / "two"], tmp_path / "site").parent
    window = visit(site)
    window.page.select_option("#dataset", "d1")
    window.page.locator("#board", has_text="two.jsonl").wait_for()
    window.page.click("nav a[href^='pairs.html']")
    window.page.wait_for_selector(".detail h2")
    assert "two-row" in window.page.locator("main").inner_text()
    window.page.click("nav a[href^='compare.html']")
    window.page.wait_for_selector("body[data-ready]")
    assert "only one model" in window.page.locator("main").inner_text()
    window.assert_quiet()


def test_without_the_dataset_the_explorer_shows_ids_and_numbers_and_says_why(visit: Open, tmp_path: Path) -> None:
    site_of(tmp_path, rows())
    (tmp_path / "set.jsonl").unlink()
    window = visit(write_site([tmp_path / "run"], tmp_path / "site").parent, "pairs.html")
    assert window.texts(".detail h2") == ["t1a"]
    assert window.texts(".detail .note")[0].startswith("The dataset cannot be read anymore")
    assert "u1-1, u1-2" in window.page.locator(".detail").inner_text()  # which posts were shown, by their ids
    assert "✓ +31" in window.page.locator(".detail").inner_text()
    for page in ("index.html#tier=hard", "model.html", "compare.html"):
        window.go(page)
    window.assert_quiet()


def test_ratings_alone_are_a_table(visit: Open, tmp_path: Path) -> None:
    items = [{"user": "u", "question": f"{n}?", "profile": [], "answer": "a" * n, "rating": n / 10} for n in (1, 2, 5)]
    window = visit(site_of(tmp_path, items, MINE, task="ratings", condition=("none",)))
    assert window.texts("table.ratings tbody th") == ["mine"]
    assert window.texts("nav a") == ["Leaderboard"]
    window.assert_quiet()
    window.assert_fits()


def test_marks_that_turn_or_hide_text_are_shown_by_their_code(visit: Open, tmp_path: Path) -> None:
    row = make_row(1, chosen="Yes \u202eno\u202c.", question="Do\u2066 you?\u0007")
    page = visit(site_of(tmp_path, [row, make_row(2)]), "pairs.html#pair=r1").page
    assert "Yes ⟨U+202E⟩no⟨U+202C⟩." in page.locator(".chosen .text").inner_text()
    assert page.locator(".detail h2").inner_text() == "Do⟨U+2066⟩ you?⟨U+0007⟩"


def test_a_pair_shows_its_conversation_all_its_answers_and_past_choices(visit: Open, tmp_path: Path) -> None:
    row = make_row(
        1,
        context=[{"role": "user", "text": "Good morning."}, {"role": "assistant", "text": "Hello."}],
        choices=[{"question": "Tea?", "chosen": f"Yes. {EVIL}", "rejected": "No."}],
        chosen=["Once a week.", "Every Sunday."],
        rejected=["It depends.", "Never."],
    )
    page = visit(site_of(tmp_path, [row, make_row(2)], MINE), "pairs.html#pair=r1").page
    shown = page.locator("article").inner_text()
    for text in ("user: Good morning.", "assistant: Hello.", "Also right", "Every Sunday.", "Also wrong", "Never."):
        assert text in shown
    page.locator("#choices summary").click()
    assert f"Yes. {EVIL}" in page.locator("#choices").inner_text()


def test_markdown_is_rendered_without_html_or_links_and_long_texts_show_their_beginning(
    visit: Open, tmp_path: Path
) -> None:
    answer = "# Steps\n\n1. **Water** it\n2. See [this](javascript:alert(1))\n\n```\n<b>x = 1</b>\n```\n"
    unruled = make_row(1, chosen=answer + "word " * 400, rubric_aspects=[], narrative="", question="كيف حالك؟")
    window = visit(site_of(tmp_path, [unruled, make_row(2)], MINE), "pairs.html#pair=r1")
    chosen = window.page.locator(".answer.chosen")
    assert (window.texts(".chosen .heading"), window.texts(".chosen pre")) == (["Steps"], ["<b>x = 1</b>"])
    assert window.texts(".chosen li") == ["Water it", "See this (javascript:alert(1))"]
    assert chosen.locator("a, h1").count() == 0
    assert window.texts(".answer .badge") == ["this user prefers it", "this user does not"]
    assert window.page.locator("#question").evaluate("node => getComputedStyle(node).direction") == "rtl"
    short = chosen.bounding_box()["height"]
    chosen.get_by_role("button", name="show all").click()
    assert chosen.bounding_box()["height"] > short
    window.page.click("[data-way=raw]")
    window.page.locator(".chosen .text", has_text="# Steps").wait_for()
    assert "1 of 1 right" in window.texts(".standing")[0]
    window.assert_quiet()


def test_the_skip_link_leads_to_the_content_and_keeps_the_view(visit: Open, site: Path) -> None:
    window = visit(site, "index.html#tier=hard")
    window.page.keyboard.press("Tab")
    window.page.keyboard.press("Enter")
    assert window.page.evaluate("[document.activeElement.id, location.hash]") == ["main", "#tier=hard"]


def test_the_page_of_a_model_has_all_metrics_those_of_other_packages_too(
    visit: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def net_wins(rows: Rows) -> float | None:
        return 2 * float(rows.credit[rows.counted].mean()) - 1 if rows.counted.any() else None

    about: dict[str, Any] = {"unit": "points", "limits": (-1.0, 1.0), "reference": "coin: 0"}
    net = Metric(key="net", label="net wins", says="won less lost", of=net_wins, **about)
    monkeypatch.setattr(METRICS, "_known", {**METRICS, "net": net})
    window = visit(site_of(tmp_path, rows()), "model.html#model=knows")
    facts = "\n".join(window.texts("dl.facts > div"))
    for text in ("gain", "profile − none; 95", "control", "person effect", "net wins\n+100.0", "coin: 0"):
        assert text in facts
    window.assert_quiet()
    window.assert_fits()


def test_a_category_may_have_the_name_of_a_property_of_every_object(visit: Open, tmp_path: Path) -> None:
    odd = {"category": "__proto__", "tier": "constructor", "groups": {"__proto__": "toString"}}
    made = [make_row(n, **(odd if n < 3 else {})) for n in range(6)]
    site = site_of(tmp_path, made)
    window = visit(site, "model.html#model=knows")
    for group in ("category=__proto__", "tier=constructor"):
        assert window.page.locator(f'main a[href*="{group}"]').count() == 1
    assert "toString" in window.page.locator("main").inner_text()
    window.assert_quiet()
    pairs = visit(site, "pairs.html#category=__proto__")
    assert pairs.page.locator(".row").count() == 3
    pairs.assert_quiet()
