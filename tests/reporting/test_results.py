"""What verbs other than evaluations print: tables, the sentences a correlation allows, its scatter plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prb.reporting.figures import scatter
from prb.reporting.format import markdown
from prb.reporting.results import BestOfN, BuiltBenchmark, Correlation, Ppo
from prb.runs import read_json
from tests.reporting.results import bon_run, ppo_run, svg_texts

POWER = {"rho": 0.5, "power": 0.107, "wanted": 0.8, "needed": 31}


def cell(**changes: Any) -> dict[str, Any]:
    base = {"bench": "B", "downstream": "D", "measure": "spearman", "value": 9 / 35, "p": 0.658, "p_holm": 0.658}
    return {**base, "exact": True, "orders": 720, "interval": None, "noise": None, **changes}


def contrast(**changes: Any) -> dict[str, Any]:
    base = {"downstream": "D", "first": "B", "second": "C", "measure": "spearman", "difference": 0.3, "test": "swap"}
    return {**base, "p": 0.02, "p_holm": 0.02, "exact": True, **changes}


def part(*cells: dict[str, Any], comparisons: tuple[dict[str, Any], ...] = (), **changes: Any) -> dict[str, Any]:
    base = {"set": "all models", "n": 6, "problem": None, "correlations": cells, "comparisons": comparisons}
    return {**base, "power": POWER, **changes}


def result(*parts: dict[str, Any], models: int = 6, **changes: Any) -> Correlation:
    values = [float(n) for n in range(models)]
    base = {
        "models": [f"model-{n}" for n in range(models)],
        "constructed": [],
        "left_out": [],
        "bench": [{"name": "B", "values": values, "errors": None}],
        "downstream": [{"name": "D", "values": values[::-1], "errors": [0.1] * models, "note": ""}],
    }
    return Correlation(Path(), {**base, "sets": parts, **changes})


def test_six_models_are_too_few_and_the_sentence_says_how_many_are_needed() -> None:
    assert result(part(cell())).lines() == [
        "With 6 models, B does not predict D significantly better than chance (Spearman's ρ 0.26, p = 0.66).",
        "A true ρ of 0.5 would be detected in 11 % of studies with 6 models; 31 models would be needed for 80 %.",
    ]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (cell(value=0.9, p_holm=0.0004), "B predicts D better than chance (Spearman's ρ 0.90, p < 0.001)."),
        (cell(value=-0.9, p_holm=0.01), "B predicts D worse than chance: it reverses their order"),
        (
            cell(measure="regret", value=0.0, p_holm=0.01),
            "B predicts D better than chance (top-1 regret 0.00, p = 0.01).",
        ),
        (cell(value=0.9, p=0.03, p_holm=0.06), "does not predict D significantly better than chance"),
    ],
)
def test_a_claim_follows_the_corrected_p_and_the_sign(found: dict[str, Any], says: str) -> None:
    assert says in result(part(found)).lines()[0]


def test_a_correction_is_told() -> None:
    said = result(part(cell(p_holm=0.04, value=0.9), cell(bench="C", p_holm=0.9))).lines()
    assert "p = 0.04 corrected for 2 tests" in said[0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (contrast(), "With 6 models, B predicts D better than C (Spearman's ρ differs by 0.30, p = 0.02)."),
        (contrast(difference=-0.3), "With 6 models, C predicts D better than B"),
        (contrast(p_holm=0.2), "With 6 models, B does not predict D significantly better than C ("),
        (contrast(measure="regret"), "With 6 models, C predicts D better than B"),  # less regret is better
    ],
)
def test_two_benchmarks_are_told_apart_or_not(row: dict[str, Any], says: str) -> None:
    assert result(part(cell(measure=row["measure"]), comparisons=(row,))).lines()[1].startswith(says)


def test_several_sets_are_told_by_name_and_one_that_is_too_small_says_so() -> None:
    small = part(set="without constructed models", n=2, problem="2 models with all scores: too few", power=None)
    said = result(part(cell()), small).lines()
    assert said[0].startswith("All models: With 6 models, B")
    assert said[-1] == "Without constructed models: 2 models with all scores: too few."


def test_how_far_grades_can_be_trusted_is_said_with_the_rest() -> None:
    column = {"name": "best of 4", "values": [], "errors": None, "note": "Graded by marks. Right on 3 of 4."}
    said = result(models=0, downstream=[column, {**column, "name": "x", "note": ""}]).lines()
    assert said == ["best of 4: Graded by marks. Right on 3 of 4."]


def test_a_table_holds_value_intervals_and_both_ps() -> None:
    drawn = cell(exact=False, p=0.0001, p_holm=0.0002, value=0.5, interval=(0.1, 0.8), noise=(0.2, 0.7))
    first, second = result(part(cell(), drawn, comparisons=(contrast(),)), left_out=["x"]).tables()
    assert first.title == "All models: 6 (1 with missing scores left out)"
    assert first.rows[0] == ("B", "D", "Spearman's ρ", "0.257", "–", "–", "0.658", "0.658")
    assert first.rows[1][3:] == ("0.500***", "[0.10, 0.80]", "[0.20, 0.70]", "≈ <0.001", "<0.001")
    assert second.rows == (("B − C", "D", "Spearman's ρ", "+0.300*", "swap", "0.020", "0.020"),)
    assert "| B | D | Spearman's ρ | 0.257 |" in markdown(first)


def test_families_are_told_with_what_is_left_without_one() -> None:
    left = {"low": 0.11, "high": 0.4, "highest_p": 0.7, "family": "axes on static", "value": 0.11, "p": 0.7}
    made = result(part(cell(leave_one_out=left), cell(measure="kendall"), set="all families"), unit="family")
    assert made.lines() == [
        "With 6 families, B does not predict D significantly better than chance (Spearman's ρ 0.26, p = 0.66).",
        "Without any one family, Spearman's ρ of B and D is 0.11 to 0.40, p at most 0.700; it changes most "
        "without axes on static: 0.11 (p = 0.7).",
        "A true ρ of 0.5 would be detected in 11 % of studies with 6 families; 31 families would be needed for 80 %.",
    ]
    (table,) = made.tables()
    assert (table.title, table.columns[4], table.columns[-1]) == ("All families: 6", "over families", "without one")
    assert [row[-1] for row in table.rows] == ["[0.11, 0.40], p ≤ 0.700", "–"]
    undefined = {**left, "value": None}
    assert "static: undefined (p = 0.7)" in result(part(cell(leave_one_out=undefined)), unit="family").lines()[1]


def test_the_plot_names_every_model_and_says_what_was_found(tmp_path: Path) -> None:
    scatter(result(part(cell())), tmp_path / "s.svg")
    said = svg_texts(tmp_path / "s.svg")
    assert set(said) >= {"B", "D", *(f"model-{n}" for n in range(6)), "ρ = 0.26", "all models, n = 6: 0.26, p = 0.66"}
    first = (tmp_path / "s.svg").read_bytes()
    scatter(result(part(cell())), tmp_path / "s.svg")
    assert (tmp_path / "s.svg").read_bytes() == first


def test_many_models_are_drawn_by_family_without_their_names(tmp_path: Path) -> None:
    made = result(part(cell()), models=30)
    named = {model: f"$f_{n % 8}$ & <b>" for n, model in enumerate(made.summary["models"])}
    scatter(result(part(cell()), models=30, constructed=["model-3"], families=named), tmp_path / "s.svg")
    said = svg_texts(tmp_path / "s.svg")
    assert set(said) >= {"ρ = 0.26", "others", "$f_0$ & <b>", "$f_5$ & <b>"}  # 8 families: six, and the two smallest
    assert not {"$f_6$ & <b>", "model-1"} & set(said)
    scatter(result(part(cell()), models=30, constructed=["model-3"]), tmp_path / "s.svg")
    assert {"model", "constructed"} <= set(svg_texts(tmp_path / "s.svg"))


def test_best_of_n_prints_its_curves_its_differences_and_its_grader_with_both(tmp_path: Path) -> None:
    run = bon_run(tmp_path / "bon")
    curves, paired = BestOfN(run, read_json(run / "summary.json")).numbers()
    assert curves.columns == ("model", "best of 1", "best of 2", "best of 4", "headroom", "peak", "failed")
    assert [row[0] for row in curves.rows][-2:] == ["(random pick)", "(oracle pick)"]
    assert [row[-3:] for row in curves.rows][-2:] == [("0", "–", "–"), ("100", "–", "–")]
    assert paired.columns == ("models", "difference", "95 %", "p", "p (Holm)", "queries")
    assert [row[0].count("(random pick)") for row in paired.rows] == [1, 1, 0]
    assert {table.notes[-1] for table in (curves, paired)} == {"Graded by marks. Right on 3 of 4 known pairs."}


def test_best_of_n_tells_why_queries_failed(tmp_path: Path) -> None:
    summary = read_json(bon_run(tmp_path / "bon") / "summary.json")
    summary["queries"]["failures"] = {"HTTP 400": 2}
    summary["results"][0]["failures"] = {"no verdict": 3}
    notes = BestOfN(tmp_path, summary).numbers()[0].notes
    assert "Failed in sampling or grading: 2 × HTTP 400." in notes
    assert "Failed, knows: 3 × no verdict." in notes


def test_ppo_prints_the_held_out_prompts_before_and_after(tmp_path: Path) -> None:
    summary = read_json(ppo_run(tmp_path / "ppo", stopped="KL 9.0") / "summary.json")
    (table,) = Ppo(tmp_path, summary).tables()
    assert table.rows[0] == ("reward", "0.100", "0.900", "+0.800", "[+0.010, +0.400]", "0.020", "1")
    assert [row[0] for row in table.rows] == ["reward", "grade"]
    assert Ppo(tmp_path, summary).lines() == ["Graded by marks. Right on 3 of 4 known pairs.", "Stopped early: KL 9.0"]
    assert Ppo(tmp_path, {**summary, "held_out": {"prompts": 0}}).tables() == []


def test_a_build_says_why_requests_failed() -> None:
    counts = {"rows": 0, "people": 0, "mirror_rows": 0, "rejected": 0, "rejected_by_gate": {}}
    card = {"counts": counts, "cost": {}, "usd": 0.0, "user_blind_accuracy": {}}
    built = BuiltBenchmark(Path(), {**card, "failures": {"HTTP 400": 6}})
    assert built.lines()[-1] == "failed requests: 6 × HTTP 400"
