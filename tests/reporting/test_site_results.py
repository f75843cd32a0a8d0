"""The downstream, study and audit pages, opened from disk in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.runs import read_json
from tests.reporting.results import EVIL, agreement, audit, bon_run, correlation, ppo_run
from tests.reporting.sites import write_site

Open = Callable[..., Any]
PAGES = ("downstream", "study", "audit")
NAMES_MEET = """() => [...document.querySelectorAll('figure.card svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text.tag')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], n) => boxes.slice(0, n).filter(([, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1)
    .map(([b]) => `${a} on ${b}`));
})"""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of every kind, once for all tests here."""
    folder = tmp_path_factory.mktemp("results")
    bon_run(folder / "bon")
    ppo_run(folder / "trained", stopped=f"KL too far {EVIL}")
    ppo_run(folder / "ungraded", graded=False, steps=1)
    correlation(folder / "corr")
    audit(folder / "audit")
    agreement(folder / "people.json")
    return folder


@pytest.fixture(scope="module")
def site(material: Path) -> Path:
    names = ("bon/run", "trained", "ungraded", "corr", "audit", "people.json")
    return write_site([material / name for name in names], material / "site").parent


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_safe_and_fits_desk_and_phone(visit: Open, site: Path, name: str) -> None:
    for width in (1280, 390):
        window = visit(site, f"{name}.html", width=width)
        window.assert_quiet()
        window.assert_fits()
        assert EVIL in window.page.locator("main").inner_text()
        assert window.page.locator("main img, main script").count() == 0
        unnamed = window.page.locator("main svg:not([role=img]):not([aria-hidden])").count()
        assert unnamed == 0


def test_pages_stand_in_the_top_bar_only_if_there_is_something_to_show(
    visit: Open, site: Path, material: Path, tmp_path: Path
) -> None:
    window = visit(site, "downstream.html")
    assert window.texts(".top nav a")[-3:] == ["Downstream", "Study", "Audit"]
    alone = write_site([material / "people.json"], tmp_path / "alone").parent
    assert not (alone / "downstream.html").exists()
    window = visit(alone, "study.html")
    window.assert_quiet()
    assert "Downstream" not in window.texts(".top nav a")


def test_best_of_n_shows_the_numbers_of_the_run(visit: Open, site: Path, material: Path) -> None:
    summary = read_json(material / "bon" / "run" / "summary.json")
    window = visit(site, "downstream.html")
    rows = window.page.locator("#bon tbody tr")
    first = rows.nth(0).locator("th, td").all_inner_texts()
    best = max(summary["results"], key=lambda r: float(r["headroom"][-1]["value"]))
    assert first[0] == best["model"] == "knows"
    shown = [cell.splitlines()[0] for cell in first[1 : 1 + len(summary["ks"])]]
    assert shown == [f"{100 * point['value']:.1f}" for point in best["curve"]]
    assert first[1 + len(summary["ks"])].splitlines()[0] == f"{100 * best['headroom'][-1]['value']:.1f}"


def test_a_point_stands_where_its_number_says(visit: Open, site: Path, material: Path) -> None:
    """Heights in the chart are a straight line of the values: two points give the line, the others must lie on it."""
    summary = read_json(material / "bon" / "run" / "summary.json")
    script = """() => [...document.querySelectorAll('#bon svg.plot g')].filter(g => g.querySelector('circle'))
      .map(g => [...g.querySelectorAll('circle')].map(c => Number(c.getAttribute('cy'))))"""
    window = visit(site, "downstream.html")
    heights = window.page.evaluate(script)
    by_model = {r["model"]: [p["value"] for p in r["curve"]] for r in summary["results"]}
    values = [by_model[EVIL], by_model["knows"]]  # the chosen one is drawn last, on top
    flat = sorted((v, y) for vs, ys in zip(values, heights, strict=True) for v, y in zip(vs, ys, strict=True))
    (low, bottom), (high, top) = flat[0], flat[-1]
    for value, y in flat:
        assert y == pytest.approx(bottom + (top - bottom) * (value - low) / (high - low), abs=0.01)


def test_over_optimisation_is_marked_where_it_happens_and_only_there(visit: Open, site: Path) -> None:
    window = visit(site, "downstream.html")
    marked = window.page.locator("#bon tbody tr", has_text="▼").locator("th").all_inner_texts()
    rings = window.page.locator("#bon svg .dot.hollow").count()
    tags = window.page.locator("#bon svg.plot text.tag").all_text_contents()
    assert marked == [EVIL]
    assert rings == 1
    assert tags == ["▼ below its peak"]


def test_validity_of_the_grader_stands_beside_everything_graded(visit: Open, site: Path) -> None:
    window = visit(site, "downstream.html")
    for section in ("#bon section", "#ppo section:has(h3:text-is('trained'))", "#ppo .card:has(table)"):
        assert "Right on 3 of 4 known pairs." in window.page.locator(section).inner_text(), section
    ungraded = window.page.locator("#ppo section:has(h3:text-is('ungraded'))").inner_text()
    assert "Grade" not in ungraded


def test_a_model_is_chosen_by_click_by_permalink_and_undone_by_going_back(visit: Open, site: Path) -> None:
    pressed = "#bon .legend button[aria-pressed=true]"
    window = visit(site, "downstream.html")
    assert window.texts(pressed) == ["knows"]
    window.page.locator("#bon .legend button", has_text=EVIL).click()
    window.page.locator("#bon p", has_text=f"95 % interval of {EVIL}").wait_for()
    assert window.texts(pressed) == [EVIL]
    link = window.page.url
    window.page.go_back()
    window.page.locator("#bon p", has_text="95 % interval of knows").wait_for()
    window = visit(site, "downstream.html#" + link.partition("#")[2])
    assert window.texts(pressed) == [EVIL]
    window.assert_quiet()


def test_curves_can_be_seen_against_the_kl_bound(visit: Open, site: Path) -> None:
    window = visit(site, "downstream.html")
    window.page.get_by_role("button", name="against the KL bound").click()
    window.page.locator("#bon svg.plot text", has_text="bound on the KL").wait_for()
    ticks = window.page.locator("#bon svg.plot text.tick").all_text_contents()
    assert "x=kl" in window.page.url
    assert any(tick.startswith("0.636") for tick in ticks), ticks  # log 4 − 3/4


def test_ppo_shows_four_curves_a_run_and_what_stopped_it(visit: Open, site: Path) -> None:
    window = visit(site, "downstream.html")
    trained = window.page.locator("#ppo section:has(h3:text-is('trained'))")
    assert trained.locator("figure svg").count() == 4
    assert f"Stopped early: KL too far {EVIL}" in trained.inner_text()
    alts = [svg.get_attribute("aria-label") for svg in trained.locator("figure svg").all()]
    assert alts[0] == "reward over 12 steps: 0.1 → 1.2"
    assert "40.0 → 55.0" in window.page.locator("#ppo table").first.inner_text()


def test_the_scatter_names_every_model_and_no_name_covers_another(visit: Open, site: Path) -> None:
    for width in (1280, 390):
        window = visit(site, "downstream.html", width=width)
        window.page.wait_for_function("document.querySelector('figure.card text.tag[transform]')")
        names = window.page.locator("figure.card text.tag").all_text_contents()
        assert sorted(names) == sorted([EVIL, *(f"model-{n}" for n in range(1, 6))])
        assert window.page.evaluate(NAMES_MEET) == []
        assert window.page.locator("figure.card .dot.hollow").count() == 1  # the constructed one


def test_many_models_are_not_named_in_the_plot_whose_rho_is_large(visit: Open, tmp_path: Path) -> None:
    page = write_site([correlation(tmp_path / "corr", models=20)], tmp_path / "site").parent / "downstream.html"
    window = visit(page.parent, page.name)
    assert window.page.locator("figure.card text.tag").count() == 0
    assert window.texts("figure.card .rho")[0].startswith("ρ ")


def test_the_study_says_what_holds_in_words_not_only_in_colour(visit: Open, site: Path, material: Path) -> None:
    verdicts = read_json(material / "people.json")["verdicts"]
    window = visit(site, "study.html")
    badges = window.texts(".gate .badge")
    left_out = window.page.locator(".note.bad").inner_text()
    text = window.page.locator("main").inner_text()
    assert sorted(badge == "✓ holds" for badge in badges) == sorted(verdicts.values())
    assert len(set(badges)) == 2, "the example has both kinds"
    assert EVIL in left_out
    assert "most prefer the other answer" in text


def test_ratings_are_drawn_as_they_were_given(visit: Open, site: Path) -> None:
    script = """() => [...document.querySelectorAll('svg[role=img]')]
      .filter(s => s.getAttribute('aria-label').startsWith('relevance, labeled answer'))
      .map(s => [s.getAttribute('aria-label'),
                 [...s.querySelectorAll('rect')].map(r => parseFloat(r.getAttribute('width')))])"""
    window = visit(site, "study.html")
    ((alt, widths),) = window.page.evaluate(script)
    assert alt == "relevance, labeled answer: 1: 0, 2: 0, 3: 0, 4: 12, 5: 12"
    assert widths == [50, 50]


def test_every_item_can_be_looked_up(visit: Open, site: Path) -> None:
    window = visit(site, "study.html")
    window.page.locator("summary", has_text="All 8 items").click()
    row = window.page.locator("details tr", has_text="i0").inner_text()
    assert "3 : 0" in row
    assert "0 : 3" in row
    assert "most say the answers differ in quality" in row


def test_the_audit_draws_every_line_of_its_table(visit: Open, site: Path) -> None:
    window = visit(site, "audit.html")
    names = window.texts(".bar .name")
    numbers = window.texts(".bar .num")
    assert names == [
        "floor: length",
        "floor: lexical",
        "user-blind learner: answer alone",
        "user-blind learner: question and answer",
        "reading the rubric: aspect-match",
    ]
    assert numbers[-1] == "80.0 [75.0, 85.0]"
