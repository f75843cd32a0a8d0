"""What the cells and notes of each table say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.reporting.evaluation_results import comparison, evaluation_table
from prb.types import Failure
from tests.conftest import make_row, make_twins
from tests.runs import by_length, settings

Write = Callable[..., Path]


@pytest.fixture
def summary(write_jsonl: Write, tmp_path: Path) -> dict[str, Any]:
    """Two twins, two models; one of them fails on one row in each condition."""

    def fails(ask: Any) -> float | Failure:
        return Failure("busy") if ask.answer.startswith("Once a week, plant 2") else 1.0

    models = {"long": ScriptedScorer(by_length), "shy": ScriptedScorer(fails)}
    data = write_jsonl([*make_twins(1), *make_twins(2)])
    return evaluate(settings(data, tmp_path / "run", model=("long", "shy")), models=models).summary


def test_the_leaderboard_has_a_row_per_model_and_a_column_per_condition(summary: dict[str, Any]) -> None:
    table = evaluation_table(summary)
    assert table.columns == (
        "model", "none", "profile", "shuffled", "gain", "control", "person effect", "mirror", "failed"
    )  # fmt: skip
    # `long` is user-blind; `shy` ties on plant 1 and fails on plant 2, two rows under each of three conditions
    assert table.rows == (
        ("long", *["50.0 [50.0, 50.0]"] * 3, "+0.0", "+0.0", "50.0", "0.0", "0"),
        ("shy", *["50.0 [50.0, 50.0]"] * 3, "+0.0", "+0.0", "50.0", "0.0", "6"),
    )
    assert table.title.endswith("set.jsonl: 4 rows, 4 users, 2 clusters")


def test_notes_say_how_to_read_it_and_name_the_user_blind_values(summary: dict[str, Any]) -> None:
    notes = " ".join(evaluation_table(summary).notes)
    for part in (
        "failures are left out",
        "gain: accuracy under profile minus accuracy under none",
        "control: accuracy under profile minus accuracy under shuffled",
        "user-blind: exactly 50",
        "Failed under profile: 2 × busy (shy).",
    ):
        assert part in notes


def test_without_twins_and_contrasts_their_columns_are_gone(write_jsonl: Write, tmp_path: Path) -> None:
    config = settings(write_jsonl([make_row(1)]), tmp_path / "run", condition=("oracle",))
    table = evaluation_table(evaluate(config, models={"mine": ScriptedScorer(by_length)}).summary)
    assert table.columns == ("model", "oracle", "failed")
    assert len(table.notes) == 1


def test_a_model_without_any_answer_has_dashes(write_jsonl: Write, tmp_path: Path) -> None:
    config = settings(write_jsonl(make_twins(1)), tmp_path / "run")
    table = evaluation_table(
        evaluate(config, models={"mine": ScriptedComparer(lambda _: Failure("no verdict"))}).summary
    )
    assert table.rows == (("mine", "–", "–", "–", "–", "–", "6"),)
    assert table.notes[-1] == "Failed under shuffled: 2 × no verdict (every model)."


def test_rows_without_a_rubric_are_named_with_the_reason(write_jsonl: Write, tmp_path: Path) -> None:
    config = settings(write_jsonl([make_row(1, rubric_aspects=[]), make_row(2)]), tmp_path / "run")
    models = {"mine": ScriptedScorer(by_length), "other": ScriptedScorer(by_length)}
    config = replace(config, model=tuple(models), condition=("none", "oracle"))
    table = evaluation_table(evaluate(config, models=models).summary)
    assert table.notes[-1] == "Not measured under oracle: 1 × no rubric to show (every model)."


def test_split_and_rows_left_out_are_in_the_title(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [make_row(1, split="dev"), make_row(2, split="dev", chosen=None)]
    config = settings(write_jsonl(rows), tmp_path / "run", split="dev", skip_bad=True, condition=("none",))
    table = evaluation_table(evaluate(config, models={"mine": ScriptedScorer(by_length)}).summary)
    assert table.title.endswith("split dev: 1 rows, 1 users, 1 clusters; 1 rows with errors left out")


def test_ratings_have_their_own_table(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [
        {"user": "u", "question": f"{n}?", "profile": [], "answer": "a" * n, "rating": n / 10} for n in (1, 2, 5, 9)
    ]
    config = settings(write_jsonl(rows), tmp_path / "run", task="ratings", condition=("none",))
    table = evaluation_table(evaluate(config, models={"mine": ScriptedScorer(by_length)}).summary)
    assert table.columns[:3] == ("model", "condition", "alignment")
    # one user gives no interval
    assert table.rows == (("mine", "none", "1.000", "0.000", "1.000", "1.000", "1.000", "1", "0"),)


def comparison_row(**changes: Any) -> dict[str, Any]:
    return {
        "condition": "profile", "model_a": "a", "model_b": "b", "accuracy_a": 0.75, "accuracy_b": 0.5, "value": 0.25,
        "low": 0.1, "high": 0.4, "p": 0.0004, "p_holm": 0.0008, "changed_sides": 0.3, "n": 40, "dropped": 2,
        "test": "sign-flip", "smallest_detectable": 0.12, "only_in_one": 0, **changes,
    }  # fmt: skip


def test_a_comparison_is_a_table_with_its_doubts() -> None:
    rows = [comparison_row(), comparison_row(value=None, low=None, high=None, p=None, p_holm=None, only_in_one=7)]
    table = comparison({"a": "x", "b": "y", "same_data": False, "comparisons": rows})
    assert table.rows[0] == (
        "profile", "a", "b", "75.0", "50.0", "+25.0***", "[+10.0, +40.0]", "<0.001", "<0.001", "30.0", "40", "2"
    )  # fmt: skip
    assert table.rows[1][5:9] == ("–", "–", "–", "–")
    notes = " ".join(table.notes)
    for part in ("p by sign-flip", "about 12.0 points", "did not use the same data file", "Up to 7 rows"):
        assert part in notes


def test_a_comparison_without_doubts_has_one_note() -> None:
    rows = [comparison_row(smallest_detectable=None)]
    assert len(comparison({"a": "x", "b": "y", "same_data": True, "comparisons": rows}).notes) == 1
