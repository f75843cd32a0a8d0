"""Two runs, paired: what is compared with what, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import prb
from prb.errors import BadInput
from prb.evaluation.compare import CompareConfig, compare
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.summary import METRICS, Metric
from prb.types import Ask, Failure
from tests.conftest import make_row, make_twins
from tests.runs import settings


def right_on(*numbers: int, fails_on: int = -1) -> ScriptedScorer:
    """A scorer that prefers the chosen answer (the short one) of these plants, and the other one elsewhere."""

    def score(ask: Ask) -> float | Failure:
        plant = int(ask.query.question.removesuffix("?").split()[-1])
        if plant == fails_on:
            return Failure("busy")
        return len(ask.answer) * (-1.0 if plant in numbers else 1.0)

    return ScriptedScorer(score)


@pytest.fixture
def make(write_jsonl, tmp_path):
    """A run over plants 1 to 4 of the models given by name."""

    def run(name: str, rows: Any = None, condition: Any = ("none",), **models: ScriptedScorer) -> Path:
        data = write_jsonl(rows or [make_row(n) for n in (1, 2, 3, 4)], name=f"{name}.jsonl")
        evaluate(settings(data, tmp_path / name, model=tuple(models), condition=condition), models=models)
        return tmp_path / name

    return run


def one(run: Path, other: Path | None = None) -> dict[str, Any]:
    (row,) = compare(CompareConfig(run_a=run, run_b=other or run))["comparisons"]
    return dict(row)


def test_two_models_of_one_run(make):
    # A right on 4 of 4, B on 1 of 4: three pairs speak for A, none for B; mid-p = 2·(1/8) − 1/8
    run = make("run", a=right_on(1, 2, 3, 4), b=right_on(2))
    row = one(run)
    assert (row["model_a"], row["model_b"], row["condition"]) == ("a", "b", "none")
    assert (row["accuracy_a"], row["accuracy_b"], row["value"]) == (1.0, 0.25, 0.75)
    assert (row["p"], row["p_holm"], row["test"]) == (pytest.approx(1 / 8), pytest.approx(1 / 8), "mcnemar-midp")
    assert (row["changed_sides"], row["n"], row["dropped"], row["only_in_one"]) == (0.75, 4, 0, 0)


def test_two_user_blind_models_do_not_differ_by_construction(make):
    # margins of twins cancel, so both are at exactly 50 %; one failed call costs both twins and changes nothing
    twins = [row for n in range(8) for row in make_twins(n)]
    longer, shorter = ScriptedScorer(lambda ask: float(len(ask.answer))), right_on(*range(8), fails_on=3)
    run = make("run", rows=twins, longer=longer, shorter=shorter)
    row = one(run)
    assert (row["value"], row["low"], row["high"], row["p"], row["test"]) == (0.0, 0.0, 0.0, 1.0, "none")
    assert (row["n"], row["dropped"]) == (14, 2)


def test_two_runs_are_compared_on_the_models_they_share(make):
    old = make("old", a=right_on(1), b=right_on(2))
    new = make("new", b=right_on(2, 3), c=right_on(4))
    found = compare(CompareConfig(run_a=new, run_b=old))
    (row,) = found["comparisons"]
    assert (row["model_a"], row["model_b"], row["value"]) == ("b", "b", 0.25)
    assert (found["a"], found["b"]) == (str(new), str(old))


def test_of_runs_that_share_no_model_every_two_are_compared(make):
    x, y = make("x", a=right_on(1)), make("y", b=right_on(1), c=right_on(2))
    found = compare(CompareConfig(run_a=x, run_b=y))
    assert [(row["model_a"], row["model_b"]) for row in found["comparisons"]] == [("a", "b"), ("a", "c")]


def test_a_pair_that_failed_on_either_side_is_dropped_and_counted(make):
    run = make("run", a=right_on(1, 2, 3, 4, fails_on=1), b=right_on(1, fails_on=2))
    row = one(run)
    assert (row["n"], row["dropped"]) == (2, 2)
    assert (row["accuracy_a"], row["accuracy_b"], row["value"]) == (1.0, 0.0, 1.0)


def test_twins_are_one_cluster_here_too(make):
    # a is right on both twins of both couples, b on none: sums 2 and 2, of four sign patterns two are as extreme
    rows = [*make_twins(1), *make_twins(2)]

    def knows(ask: Ask) -> float:
        return len(ask.answer) * (-1.0 if str(ask.query.user).startswith("a") else 1.0)

    right, wrong = ScriptedScorer(knows), ScriptedScorer(lambda ask: -knows(ask))
    run = make("run", rows=rows, condition=("profile",), a=right, b=wrong)
    row = one(run)
    assert (row["value"], row["p"], row["test"]) == (1.0, 0.5, "sign-flip")


def test_every_other_metric_stands_beside_the_accuracy(make, monkeypatch):
    """Those that compare conditions once, those of a condition under each; what neither has is left out."""
    wins = Metric(key="wins", label="net wins", says="won", of=lambda rows: float(rows.margin.mean()), unit="number")
    unseen = Metric(key="unseen", label="unseen", says="won", of=lambda rows: 1.0, column=False)
    monkeypatch.setattr(METRICS, "_known", {**METRICS, "wins": wins, "unseen": unseen})
    run = make("run", condition=("none", "profile"), a=right_on(1, 2), b=right_on(1))
    config = CompareConfig(run_a=run, run_b=run)
    none, profile = (row["metrics"] for row in compare(config)["comparisons"])
    assert [key for key in ("gain", "wins", "unseen") if key in none] == ["wins"]
    assert [key for key in ("gain", "wins", "unseen") if key in profile] == ["gain", "wins"]
    assert none["wins"] == {"a": 0.0, "b": -15.5}
    assert profile["gain"] == {"a": 0.0, "b": 0.0}
    table = prb.compare(config).tables()[1]
    of_profile = dict(zip(table.columns, table.rows[1], strict=True))
    assert of_profile | {"gain": "+0.0 / +0.0", "net wins": "0.000 / -15.500", "condition": "profile"} == of_profile


def test_one_cluster_cannot_be_tested(make):
    rows = [{**make_row(n), "user": "ana"} for n in (1, 2, 3, 4)]
    run = make("run", rows, ("profile",), a=right_on(1, 2, 3, 4), b=right_on(1))
    row = one(run)
    assert (row["value"], row["p"], row["low"]) == (0.75, None, None)
    assert "cannot be tested: all rows are in one cluster" in str(prb.compare(run_a=run, run_b=run))


def test_rows_of_one_run_only_are_left_out_and_counted(make):
    old = make("old", rows=[make_row(n) for n in (1, 2, 3)], a=right_on(1))
    new = make("new", rows=[make_row(n) for n in (2, 3, 4, 5)], a=right_on(2, 3))
    found = compare(CompareConfig(run_a=new, run_b=old))
    (row,) = found["comparisons"]
    assert (row["n"], row["only_in_one"], row["value"], found["same_data"]) == (2, 3, 1.0, False)


def test_what_cannot_be_compared_is_refused(make, write_jsonl, tmp_path):
    x, y = make("x", a=right_on(1)), make("y", a=right_on(1), condition=("profile",))
    other, unfinished = make("other", rows=[make_row(9)], a=right_on(1)), make("new", a=right_on(1, 2))
    (unfinished / "summary.json").unlink()
    rated = write_jsonl([{"user": "u", "question": "Q?", "profile": [], "answer": "a", "rating": 0.5}])
    config = settings(rated, tmp_path / "rated", task="ratings", condition=("none",))
    evaluate(config, models={"mine": ScriptedScorer(lambda _: 1.0)})
    for run, says in (
        (other, "nothing to compare: no row was answered in both"),
        (unfinished, r"new is not finished: it has no summary\.json; run its command again to resume"),
        (x, "share no condition, or hold one model"),
        (y, "share no condition, or hold one model"),
        (tmp_path / "rated", "holds ratings; compare works on pairs"),
    ):
        with pytest.raises(BadInput, match=says):
            compare(CompareConfig(run_a=run, run_b=x))
