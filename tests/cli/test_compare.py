"""`prb compare RUN_A RUN_B`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_row

Write = Callable[..., Path]


@pytest.fixture
def run(prb: Prb, write_jsonl: Write, tmp_path: Path) -> Path:
    """Eight people alone; length is always wrong, constant always ties."""
    data = write_jsonl([make_row(n) for n in range(1, 9)])
    words = ["--dataset", data, "--model", "length", "--model", "constant", "--condition", "none"]
    prb("evaluate", *words, "--quiet", "--out", tmp_path / "run")
    return tmp_path / "run"


def test_two_models_of_one_run(prb: Prb, run: Path) -> None:
    said = prb("compare", run, run, "--model-a", "constant", "--model-b", "length")
    assert said.code == 0
    for part in ("constant", "length", "50.0", "0.0", "+50.0", "100.0", "Paired on rows both answered"):
        assert part in said.out


def test_json_is_the_comparison_and_nothing_else(prb: Prb, run: Path) -> None:
    found = prb("compare", run, run, "--model-a", "constant", "--model-b", "length", "--json").json
    (row,) = found["comparisons"]
    # every person speaks for the same side: 2 of 2^8 sign patterns are as extreme
    assert (row["value"], row["n"], row["p"], row["test"]) == (0.5, 8, pytest.approx(2 / 256), "sign-flip")
    assert (found["same_data"], found["a"]) == (True, str(run))


def test_two_runs(prb: Prb, run: Path, write_jsonl: Write, tmp_path: Path) -> None:
    data = write_jsonl([make_row(n) for n in range(3, 9)], name="fewer.jsonl")
    words = ["--dataset", data, "--model", "length", "--model", "scripted", "--condition", "none"]
    prb("evaluate", *words, "--quiet", "--out", tmp_path / "other")
    found = prb("compare", run, tmp_path / "other", "--json").json
    (row,) = found["comparisons"]
    assert (row["model_a"], row["model_b"], row["n"], row["only_in_one"]) == ("length", "length", 6, 2)
    said = prb("compare", run, tmp_path / "other")
    assert "did not use the same data file" in said.out
    assert "Up to 2 rows are in one run only" in said.out
    failed = prb("compare", run, tmp_path / "other", "--model-a", "length", "--model-b", "scripted", "--json")
    assert (failed.code, failed.out) == (2, "")
    assert "no row was answered in both" in failed.err


def test_what_cannot_be_compared_exits_2(prb: Prb, run: Path, tmp_path: Path) -> None:
    for words, says in (
        ([run, tmp_path / "nowhere"], "nowhere does not exist"),
        ([run, tmp_path], "is not an evaluation run: it has no outcomes.jsonl"),
        ([run, run, "--model-a", "lenght"], "has no model 'lenght'; it has constant, length"),
    ):
        said = prb("compare", *words)
        assert (said.code, said.out) == (2, "")
        assert says in said.err
    assert prb("compare", run).code == 2


def test_ratings_are_refused(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    row = {"user": "u", "question": "Q?", "profile": [], "answer": "a", "rating": 0.5}
    words = ["--task", "ratings", "--dataset", write_jsonl([row]), "--model", "length", "--condition", "none"]
    assert prb("evaluate", *words, "--quiet", "--out", tmp_path / "rated").code == 0
    said = prb("compare", tmp_path / "rated", tmp_path / "rated")
    assert (said.code, "holds ratings; compare works on pairs" in said.err) == (2, True)
