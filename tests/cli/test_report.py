"""`prb report RUN…`: a site on disk, or a table on standard output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]


@pytest.fixture
def run(prb: Prb, write_jsonl: Write, tmp_path: Path) -> Path:
    words = ["--model", "length", "--condition", "none", "--condition", "profile"]
    prb("evaluate", "--dataset", write_jsonl(make_twins(1)), *words, "--quiet", "--out", tmp_path / "run")
    return tmp_path / "run"


def test_a_site_is_written_beside_the_run(prb: Prb, run: Path) -> None:
    assert prb("report", run, "--quiet") == (0, f"report: {run / 'report' / 'index.html'}\n", "")
    assert (run / "report" / "pairs.html").exists()
    # what stands beside it does not keep the run from being opened or reported again
    assert prb("report", run, "--quiet").code == 0


@pytest.fixture
def others(prb: Prb, write_jsonl: Write, tmp_path: Path) -> list[Path]:
    """Runs of grade, train and audit."""
    data = write_jsonl([make_row(n) for n in range(1, 9)], name="others.jsonl")
    prb("grade", "--dataset", data, "--validate", "--quiet", "--out", tmp_path / "graded")
    prb("train", "light", "--dataset", data, "--quiet", "--out", tmp_path / "head")
    prb("audit", data, "--quiet", "--out", tmp_path / "audited")
    return [tmp_path / name for name in ("graded", "head", "audited")]


def test_a_folder_of_any_verb_can_be_reported(prb: Prb, others: list[Path], tmp_path: Path) -> None:
    assert prb("report", *others, "--quiet", "--out", tmp_path / "site").code == 0
    data = (tmp_path / "site" / "data" / "other.js").read_text("utf-8")
    assert "light: fitted on" in data
    assert "others.jsonl" in data
    assert (tmp_path / "site" / "audit.html").exists()
    said = prb("report", *others, "--format", "markdown")
    assert said.code == 0
    assert "light: fitted on" in said.out
    assert len(prb("report", *others, "--json").json) == 3


@pytest.mark.parametrize("words", [["--json"], ["--format", "markdown"]])
def test_numbers_of_an_unfinished_run_are_refused_and_it_says_what_to_do(words: list[str], prb: Prb, run: Path) -> None:
    (run / "summary.json").unlink()
    said = prb("report", run, *words)
    assert said == (2, "", f"prb: {run} is not finished; run the same `prb evaluate` again to resume it\n")
    assert not (run / "report").exists()
