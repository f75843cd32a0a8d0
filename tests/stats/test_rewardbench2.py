"""Against numbers that RewardBench 2's own functions gave."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.stats.credit import SUBSETS, ScoredRow, credit_of_scores, final_score, ties_score

Golden = dict[str, list[dict[str, Any]]]


@pytest.fixture
def golden(shared_data: Path) -> Golden:
    return json.loads((shared_data / "formats" / "rewardbench2_scoring" / "golden.json").read_text())  # type: ignore[no-any-return]


def test_best_of_4_is_the_official_one(golden: Golden) -> None:
    for case in golden["best_of_4"]:
        assert credit_of_scores(case["scores"], 1).credit == pytest.approx(case["expected"], abs=1e-15)


def test_the_ties_score_is_the_official_one(golden: Golden) -> None:
    for case in golden["ties"]:
        flat = [[s[0] if isinstance(s, list) else s for s in row["scores"]] for row in case["rows"]]
        rows = [
            ScoredRow(row["id"], row["num_correct"], scores) for row, scores in zip(case["rows"], flat, strict=True)
        ]
        assert ties_score(rows) == pytest.approx(case["expected"], abs=1e-12), case["name"]


def test_a_perfect_model_and_one_that_ranks_a_wrong_answer_first() -> None:
    perfect = [ScoredRow("ref:1", 1, (5, 0)), ScoredRow("Ties-tied:1", 2, (5, 5, 0))]
    assert ties_score(perfect) == pytest.approx(1.01)  # 0.3 + 0.3 + 0.2 + 0.2 + 0.01 tanh(∞)
    upside_down = [row._replace(scores=[-s for s in row.scores]) for row in perfect]
    assert ties_score(upside_down) == pytest.approx(-0.01)
    assert ties_score([]) == 0.0


@given(st.lists(st.integers(-5, 5), min_size=3, max_size=6), st.integers(-9, 9))
def test_adding_a_constant_to_all_scores_changes_nothing(scores: list[int], constant: int) -> None:
    rows = [ScoredRow("ref:1", 1, scores), ScoredRow("tied:1", 2, scores)]
    moved = [row._replace(scores=[s + constant for s in row.scores]) for row in rows]
    assert ties_score(rows) == ties_score(moved)


def test_the_final_score_is_the_plain_mean_of_six_subsets() -> None:
    assert final_score(dict.fromkeys(SUBSETS, 0.5) | {"Ties": 1.01}) == pytest.approx((5 * 0.5 + 1.01) / 6)
