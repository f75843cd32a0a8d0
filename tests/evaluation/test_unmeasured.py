"""Rows that cannot be measured are neither right, wrong nor failed; what explains a number is said beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prb.data.load import load
from prb.data.source import MemorySource
from prb.errors import GateFailed, TooManyFailures
from prb.evaluation.config import EvaluateConfig, check_failures, require
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.reporting.evaluation_results import evaluation_table
from prb.summary import TRAINED, Summary
from prb.types import Pair, TrainedOn
from tests.conftest import make_row
from tests.runs import by_length, outcomes, prefers, result

WITHOUT_RUBRIC = {"rubric_aspects": []}


def notes(summary: dict[str, Any]) -> str:
    return "\n".join(evaluation_table(Summary.read(summary)).notes)


def test_rows_without_a_rubric_are_not_measured_under_oracle_and_do_not_fail(write_jsonl):
    data = write_jsonl([make_row(n, **(WITHOUT_RUBRIC if n <= 3 else {})) for n in range(1, 11)])
    summary = evaluate(EvaluateConfig(dataset=data, model="length", out=data.parent / "run")).summary
    row = result(summary, "oracle", "length")
    assert (row["accuracy"]["n"], row["accuracy"]["failed"], row["failures"]) == (7, 0, {})
    assert row["not_measured"] == {"no rubric to show": 3}
    assert sum(estimate["failed"] for estimate in row["by_category"].values()) == 0
    assert "Not measured under oracle: 3 × no rubric to show (every model)." in notes(summary)
    check_failures(Summary.read(summary), 0.0)


def test_by_default_no_condition_is_run_that_applies_to_no_row(write_jsonl):
    data = write_jsonl([make_row(n, user="u", **WITHOUT_RUBRIC) for n in (1, 2, 3)])
    default = evaluate(EvaluateConfig(dataset=data, model="length", out=data.parent / "run")).summary
    assert [row["condition"] for row in default["results"]] == ["none", "profile"]
    both = ("profile", "shuffled")
    named = evaluate(EvaluateConfig(dataset=data, model="length", condition=both, out=data.parent / "named")).summary
    assert result(named, "shuffled", "length")["not_measured"] == {"no other user to borrow a history from": 3}
    assert evaluation_table(Summary.read(named)).columns == ("model", "profile", "control", "failed")
    check_failures(Summary.read(named), 0.0)


def test_scores_recorded_without_a_condition_have_no_gain_and_no_control(write_jsonl, tmp_path):
    data = write_jsonl([make_row(n) for n in range(1, 9)])
    scores = write_jsonl([{"pair": f"r{n}", "scores": [n % 2, 0.5]} for n in range(1, 9)], "scores.jsonl")
    config = EvaluateConfig(dataset=data, model=f"theirs:=scores?path={scores}", out=tmp_path / "run")
    summary = evaluate(config).summary
    assert [(row["kind"], row["value"]) for row in summary["contrasts"]] == [("gain", None), ("control", None)]
    table = evaluation_table(Summary.read(summary))
    assert table.columns == ("model", "profile", "gain", "control", "failed")
    assert table.rows[0][2:] == ("–", "–", "0")
    assert "Not measured under shuffled: 8 × not recorded under this condition" in notes(summary)
    check_failures(Summary.read(summary), 0.0)


def test_a_model_of_which_nothing_was_measured_is_refused(write_jsonl, evaluated):
    scores = write_jsonl([{"pair": "r1", "scores": [1, 0]}])
    done = evaluated([make_row(1)], {}, model=(f"mine:=scores?path={scores}",), condition=("none",))
    reason = r"mine: nothing was measured \(1 × not recorded under this condition, but without one"
    with pytest.raises(TooManyFailures, match=reason):
        check_failures(Summary.read(done.summary), 1.0)


def pair(n: int, **changes: Any) -> Pair:
    return replace(next(iter(load(MemorySource("rows", [make_row(n)])))), **{"id": f"x{n}", **changes})


class Trained(ScriptedScorer):
    trained_on = TrainedOn.of([pair(1), pair(2), pair(3, question="Something else?")])


def test_rows_of_the_training_data_are_recognized_whatever_their_id_and_label():
    trained_on = TrainedOn.of([pair(1)])
    twin = pair(1, id="other", user="someone else", answers=pair(1).answers[::-1])
    assert [trained_on.seen(p) for p in (pair(1, id="new"), twin, pair(2))] == ["row", "row", None]
    assert trained_on.seen(pair(1, question="Another one?")) == "user"
    assert TrainedOn.read({"trained_on": trained_on.as_card()}) == trained_on
    assert TrainedOn.read({"trained_on": {"rows": 3}}) == TrainedOn.read({}) == TrainedOn()


def test_rows_a_model_was_trained_on_are_said_and_do_not_count(evaluated):
    rows = [make_row(n) for n in range(1, 6)]
    done = evaluated(rows, Trained(by_length))
    row = result(done.summary, "profile")
    assert row["trained_on"] == {"rows": 2, "users": 3}
    assert (row["accuracy"]["n"], row["not_measured"]) == (3, {TRAINED: 2})
    assert [line["credit"] for line in outcomes(done.folder)][:2] == [None, None]
    assert "mine was trained on 2 of these rows, which are not counted; on 3 of these users." in notes(done.summary)
    counted = evaluated(rows, Trained(by_length), trained="count")
    assert result(counted.summary, "profile")["accuracy"]["n"] == 5
    assert result(counted.summary, "profile")["trained_on"] == {"rows": 2, "users": 3}
    assert "mine was trained on 2 of these rows, which are counted" in notes(counted.summary)


@pytest.mark.parametrize("orders", ["both", "one"])
def test_a_judge_that_always_says_a_does_not_look_like_a_clean_half(orders, evaluated):
    summary = evaluated([make_row(n) for n in range(1, 13)], prefers(lambda _: True), orders=orders).summary
    warning = "prefers the first answer in 100 % of its verdicts, whichever it is"
    assert f"mine {warning}" in notes(summary)
    for text in ("accuracy>0.99", "control>0.5"):
        with pytest.raises(GateFailed, match=warning):
            require(text, Summary.read(summary))
