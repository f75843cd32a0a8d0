"""What the cells and notes of each table say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.evaluation_results import Comparison, Evaluation, evaluation_table, verdict, verdict_table
from prb.reporting.format import Table, layout
from prb.summary import Contrast, Summary
from prb.types import Estimate, Failure
from tests.conftest import make_row, make_twins
from tests.runs import by_length, settings

Write = Callable[..., Path]


@pytest.fixture
def summary(write_jsonl: Write, tmp_path: Path) -> Summary:
    """Two twins, two models; one of them fails on one row in each condition."""

    def fails(ask: Any) -> float | Failure:
        return Failure("busy") if ask.answer.startswith("Once a week, plant 2") else 1.0

    models = {"long": ScriptedScorer(by_length), "shy": ScriptedScorer(fails)}
    data = write_jsonl([*make_twins(1), *make_twins(2)])
    return summary_of(settings(data, tmp_path / "run", model=("long", "shy")), models)


def summary_of(config: Any, models: Any) -> Summary:
    return Summary.read(evaluate(config, models=models).summary)


def test_the_leaderboard_has_a_row_per_model_and_a_column_per_condition(summary: Summary) -> None:
    table = evaluation_table(summary)
    assert table.columns == (
        "model", "none", "profile", "shuffled", "gain", "control", "person effect", "mirror", "failed"
    )  # fmt: skip
    # `long` is user-blind; `shy` ties on plant 1 and fails on plant 2, two rows under each of three conditions
    assert table.rows == (
        ("long", *["50.0 [50.0, 50.0]"] * 3, "+0.0", "+0.0", "50.0", "0.0", "0"),
        ("shy", *["50.0 [50.0, 50.0]"] * 3, "+0.0", "+0.0", "50.0", "0.0", "6"),
    )
    assert table.title == "set.jsonl: 4 rows, 4 users, 2 clusters"
    for part in (  # the notes say how to read it and name the user-blind values
        "failures are left out",
        "gain: accuracy under profile minus accuracy under none",
        "control: accuracy under profile minus accuracy under shuffled",
        "user-blind: exactly 50",
        "Failed under profile: 2 × busy (shy).",
    ):
        assert part in " ".join(table.notes)


def test_without_twins_and_contrasts_their_columns_are_gone(write_jsonl: Write, tmp_path: Path) -> None:
    config = settings(write_jsonl([make_row(1)]), tmp_path / "run", condition=("oracle",))
    table = evaluation_table(summary_of(config, {"mine": ScriptedScorer(by_length)}))
    assert table.columns == ("model", "oracle", "failed")
    assert len(table.notes) == 1


def test_the_short_table_keeps_measured_zeros_and_explains_only_its_own_columns(
    write_jsonl: Write, tmp_path: Path
) -> None:
    config = settings(write_jsonl([*make_twins(1), *make_twins(2)]), tmp_path / "run", condition=("none", "profile"))
    summary = summary_of(config, {"mine": ScriptedScorer(by_length)})
    table = evaluation_table(summary, ranked=True)
    assert table.columns == ("model", "none", "profile", "gain", "person effect", "mirror")  # nothing failed
    assert table.rows == (("mine", *["50.0 [50.0, 50.0]"] * 2, "+0.0", "50.0", "0.0"),)
    summary.contrasts = [replace(contrast, value=None) for contrast in summary.contrasts]
    without = evaluation_table(summary, ranked=True)
    assert "gain" not in without.columns
    assert not any("gain:" in note for note in without.notes)
    assert any("gain:" in note for note in table.notes)
    assert any("mirror:" in note for note in without.notes)


def test_ratings_have_their_own_table(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [
        {"user": "u", "question": f"{n}?", "profile": [], "answer": "a" * n, "rating": n / 10} for n in (1, 2, 5, 9)
    ]
    config = settings(write_jsonl(rows), tmp_path / "run", task="ratings", condition=("none",))
    table = evaluation_table(summary_of(config, {"mine": ScriptedScorer(by_length)}))
    assert table.columns[:3] == ("model", "condition", "alignment")
    # one user gives no interval
    assert table.rows == (("mine", "none", "1.000", "0.000", "1.000", "1.000", "1.000", "1", "0"),)


@pytest.fixture
def found(write_jsonl: Write, tmp_path: Path) -> Callable[..., Evaluation]:
    """The result of a run of these models, given accuracy with somebody else's history and own, and p after Holm."""

    def make(full: bool = False, **models: tuple[float, float, float]) -> Evaluation:
        scorers = {name: ScriptedScorer(by_length) for name in models}
        run = evaluate(settings(write_jsonl(make_twins(1)), tmp_path / "run", model=tuple(models)), models=scorers)
        summary = Summary.read(run.summary)
        for name, (others, own, _) in models.items():
            for condition, value in (("shuffled", others), ("profile", own)):
                result = summary.result(name, condition)
                assert result is not None
                result.metrics["accuracy"] = Estimate(value=value, low=value - 0.1, high=value + 0.1, n=240)
        summary.contrasts = [
            Contrast(
                model=name, kind="control", value=own - others, low=own - others - 0.05, high=own - others + 0.05, p=p,
                n=240, test="none" if p == 1 else "sign-flip", smallest_detectable=0 if p == 1 else 0.09, p_holm=p,
            )
            for name, (others, own, p) in models.items()
        ]  # fmt: skip
        return Evaluation(run.folder, summary.as_json(), full)

    return make


def test_the_answer_comes_first_and_says_not_shown_instead_of_no(found: Callable[..., Evaluation]) -> None:
    result = found(
        lexical=(0.488, 0.492, 0.9), reader=(0.538, 1.0, 0.0001), random=(0.5, 0.5, 1), third=(0.5, 0.56, 0.06)
    )
    assert result.verdict is not None
    headline, best, rest, size = str(result.verdict).split("\n")
    assert headline == "1 of 3 models knows whose preference it judges."
    assert best == (
        "reader: right in 100.0 % of the pairs with the user's own history and in 53.8 % with somebody else's."
    )
    assert rest == "For third and lexical no difference is shown."
    assert size.endswith("set.jsonl: 2 pairs · 2 users in 1 cluster · detects control from about 9 points")
    assert str(result).startswith(headline)


CLEAR, UNCLEAR = (0.5, 0.7, 0.001), (0.5, 0.7, 0.2)
WRONG = "wrong is right more often with somebody else's history than with the user's own."


@pytest.mark.parametrize(
    ("models", "who", "says"),
    [
        ({"one": CLEAR}, "one knows", "right in 70.0 %"),
        ({"one": UNCLEAR}, "one is not shown to know", "; no difference is shown."),
        ({"one": UNCLEAR, "two": (0.5, 0.6, 0.3)}, "None of 2 models is shown to know", "For two no difference is"),
        ({"one": CLEAR, "two": (0.5, 0.8, 0.02)}, "2 of 2 models know", "A difference is also shown for one."),
        ({"one": CLEAR, "two": (0.5, 0.8, 0.2)}, "1 of 2 models knows", "A difference is shown for one."),
        ({"one": CLEAR, "wrong": (0.8, 0.3, 0.001)}, "1 of 2 models knows", WRONG),
        (dict.fromkeys("abcdef", UNCLEAR), "None of 6 models is shown to know", "For 5 more models no difference is"),
        ({"random": (0.5, 0.5, 1)}, "random is not shown to know", "no difference is shown"),
    ],
)
def test_the_conclusion_follows_the_corrected_tests(
    models: dict[str, Any], who: str, says: str, found: Callable[..., Evaluation]
) -> None:
    told = found(**models).verdict
    assert told is not None
    assert told.headline == f"{who} whose preference {'they judge' if who.startswith('2 of') else 'it judges'}."
    assert says in " ".join(told.sentences)


def test_the_short_table_is_sorted_by_control_and_folds_user_blind_models(found: Callable[..., Evaluation]) -> None:
    models = {"random": (0.5, 0.5, 1), "low": (0.5, 0.52, 0.9), "length": (0.5, 0.5, 1), "high": (0.4, 0.9, 0.0001)}
    (table,) = found(**models).tables()
    assert table.columns == ("model", "other's → own", "control", "95 %", "verdict", "p")
    assert table.rows == (
        ("high", "40.0 → 90.0", "+50.0", "[45.0, 55.0]", "● personalizes", "<0.001"),
        ("low", "50.0 → 52.0", "+2.0", "[-3.0, 7.0]", "○ not shown", "0.900"),
    )
    assert table.title == "1 of 2 models knows whose preference it judges."
    assert "For comparison: random, length 50.0 (user-blind)." in table.notes
    (full,) = found(full=True, **models).tables()
    assert full.columns[:4] == ("model", "none", "profile", "shuffled")
    assert [row[0] for row in full.rows] == list(models)
    assert (full.title, full.lead) == (table.title, table.lead)


def test_the_short_table_fits_80_columns(found: Callable[..., Evaluation]) -> None:
    models = {"a model whose name is much longer than the others": (0.5, 1.0, 0.0001), "short": (0.5, 0.4, 0.9)}
    (table,) = found(**models).tables()
    lines = layout(table, 80)
    assert max(map(len, lines)) <= 80
    assert any("50.0 → 100.0" in line and "● personalizes  <0.001" in line for line in lines)


def test_failures_are_a_column_of_the_short_table(summary: Summary) -> None:
    told = verdict(summary)
    assert told is not None
    table = verdict_table(summary, told)
    assert table.columns[-1] == "failed"
    assert {row[0]: row[-1] for row in table.rows} == {"long": "0", "shy": "6"}
    assert "Failed under profile: 2 × busy (shy)." in table.notes


def test_without_control_models_are_ranked_by_accuracy(write_jsonl: Write, tmp_path: Path) -> None:
    models = {"short": ScriptedScorer(lambda ask: -by_length(ask)), "long": ScriptedScorer(by_length)}
    rows = [make_row(1, chosen="a longer answer", rejected="short")]
    config = settings(write_jsonl(rows), tmp_path / "run", model=tuple(models), condition=("none",))
    run = evaluate(config, models=models)
    (table,) = Evaluation(run.folder, run.summary).tables()
    assert table.title.endswith("was not measured: it takes profile and shuffled, and two users with a history.")
    assert table.columns == ("model", "none")
    assert [row[0] for row in table.rows] == ["long", "short"]


def comparison_row(**changes: Any) -> dict[str, Any]:
    return {
        "condition": "profile", "model_a": "a", "model_b": "b", "accuracy_a": 0.75, "accuracy_b": 0.5, "value": 0.25,
        "low": 0.1, "high": 0.4, "p": 0.0004, "p_holm": 0.0008, "changed_sides": 0.3, "n": 40, "dropped": 2,
        "test": "sign-flip", "smallest_detectable": 0.12, "only_in_one": 0, **changes,
    }  # fmt: skip


def comparison(rows: list[dict[str, Any]], *, same_data: bool) -> Table:
    return Comparison(Path(), {"a": "x", "b": "y", "same_data": same_data, "comparisons": rows}).tables()[0]


def test_a_comparison_is_a_table_with_its_doubts() -> None:
    rows = [comparison_row(), comparison_row(value=None, low=None, high=None, p=None, p_holm=None, only_in_one=7)]
    table = comparison(rows, same_data=False)
    assert table.rows[0] == (
        "profile", "a", "b", "75.0", "50.0", "+25.0***", "[+10.0, +40.0]", "<0.001", "<0.001", "30.0", "40", "2"
    )  # fmt: skip
    assert table.rows[1][5:9] == ("–", "–", "–", "–")
    notes = " ".join(table.notes)
    for part in ("p by sign-flip", "about 12.0 points", "did not use the same data file", "Up to 7 rows"):
        assert part in notes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "a is better than b with the user's own history, by 25.0 points."),
        ({"value": -0.25}, "b is better than a with the user's own history, by 25.0 points."),
        ({"p_holm": 0.06}, "Neither a nor b is shown to be better with the user's own history."),
        ({"model_b": "a"}, "a in A is better than a in B with the user's own history, by 25.0 points."),
    ],
)
def test_a_comparison_says_which_model_is_better_for_these_users(changes: dict[str, Any], says: str) -> None:
    rows = [comparison_row(**changes), comparison_row(condition="none")]
    assert comparison(rows, same_data=True).lead == (says,)


@pytest.mark.parametrize("detectable", [None, 0.0], ids=["unknown", "no difference in any cluster"])
def test_so_few_users_that_nothing_can_be_significant_are_named(
    found: Callable[..., Evaluation], detectable: float | None
) -> None:
    result = found(one=(0.5, 0.7, 0.2))
    summary = Summary.read(result.summary)
    summary.contrasts[0] = replace(summary.contrasts[0], smallest_detectable=detectable)
    verdict = Evaluation(result.folder, summary.as_json()).verdict
    assert verdict is not None
    assert verdict.size.endswith("2 users in 1 cluster · too few users to detect control")
