"""`prb report RUN…`: a site on disk, or a table on standard output."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]


@pytest.fixture
def run(prb: Prb, write_jsonl: Write, tmp_path: Path) -> Path:
    words = [
        "--dataset",
        write_jsonl(make_twins(1)),
        "--model",
        "length",
        "--condition",
        "none",
        "--condition",
        "profile",
    ]
    prb("evaluate", *words, "--quiet", "--out", tmp_path / "run")
    return tmp_path / "run"


def test_a_site_is_written_beside_the_run(prb: Prb, run: Path) -> None:
    assert prb("report", run, "--quiet") == (0, f"report: {run / 'report' / 'index.html'}\n", "")
    assert (run / "report" / "pairs.html").exists()
    # what stands beside it does not keep the run from being opened or reported again
    assert prb("report", run, "--quiet").code == 0


def test_a_site_can_be_written_elsewhere_and_of_several_runs(prb: Prb, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "second")
    said = prb("report", run, tmp_path / "second", "--out", tmp_path / "site", "--quiet")
    assert said.out == f"report: {tmp_path / 'site' / 'index.html'}\n"
    assert not (run / "report").exists()
    text = (tmp_path / "site" / "data" / "site.js").read_text("utf-8")
    assert '"length (run)"' in text
    assert '"length (second)"' in text


def test_progress_goes_to_standard_error(prb: Prb, run: Path) -> None:
    said = prb("report", run)
    assert f"reading {run}" in said.err
    assert said.out.startswith("report: ")


def test_texts_can_be_left_out(prb: Prb, run: Path) -> None:
    prb("report", run, "--no-texts", "--quiet")
    data = b"".join(path.read_bytes() for path in (run / "report" / "data").rglob("*.js"))
    assert b"plant" not in data


def test_figures_are_drawn_when_asked_for(prb: Prb, run: Path) -> None:
    pytest.importorskip("matplotlib")
    prb("report", run, "--figures", "--quiet")
    drawn = {path.name for path in (run / "report" / "figures").iterdir()}
    assert {"leaderboard.svg", "leaderboard.pdf"} <= drawn


def test_markdown_goes_to_standard_output(prb: Prb, run: Path) -> None:
    said = prb("report", run, "--format", "markdown")
    lines = said.out.splitlines()
    assert lines[2] == "| model | none | profile | gain | person effect | mirror | failed |"
    assert lines[4].startswith("| length | 50.0 [50.0, 50.0] |")
    assert not (run / "report").exists()


def test_csv_goes_to_standard_output(prb: Prb, run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(prb("report", run, "--format", "csv").out)))
    assert [(row["run"], row["model"], row["condition"]) for row in rows] == [
        (str(run), "length", "none"),
        (str(run), "length", "profile"),
    ]
    texts = {"run", "dataset", "split", "model", "condition"}
    assert all(not value or math.isfinite(float(value)) for row in rows for k, value in row.items() if k not in texts)
    assert (rows[1]["accuracy"], rows[1]["accuracy_low"], rows[1]["accuracy_n"]) == (
        "0.5",
        "0.5",
        rows[0]["accuracy_n"],
    )
    assert (rows[0]["gain"], float(rows[1]["gain"])) == ("", 0.0)


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


def test_only_evaluations_are_written_as_csv(prb: Prb, others: list[Path]) -> None:
    says = f"prb: {others[0]} is not a run of `prb evaluate`; only those can be written as CSV\n"
    assert prb("report", others[0], "--format", "csv") == (2, "", says)


def test_json_is_the_summaries_and_nothing_else(prb: Prb, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert prb("report", run, run, "--json").json == [summary, summary]


@pytest.mark.parametrize("words", [[], ["--format", "csv"]])
def test_an_unfinished_run_says_what_to_do(words: list[str], prb: Prb, run: Path) -> None:
    (run / "summary.json").unlink()
    said = prb("report", run, *words)
    assert said == (2, "", f"prb: {run} is not finished; run the same `prb evaluate` again to resume it\n")
    assert not (run / "report").exists()


def test_what_is_not_a_run_is_refused(prb: Prb, tmp_path: Path) -> None:
    assert prb("report", tmp_path) == (2, "", f"prb: {tmp_path} is not a run\n")
    assert prb("report") == (2, "", "prb: the following arguments are required: RUNS; see `prb report --help`\n")
    assert prb("report", tmp_path, "--format", "pdf").code == 2
    (tmp_path / "x.json").write_text("[]")
    assert prb("report", tmp_path / "x.json").code == 2


def test_a_folder_with_other_things_is_not_overwritten(prb: Prb, run: Path, tmp_path: Path) -> None:
    said = prb("report", run, "--out", tmp_path, "--quiet")
    assert said == (2, "", f"prb: {tmp_path} is not empty and not a report; choose another --out\n")


def test_a_damaged_summary_is_refused(prb: Prb, run: Path) -> None:
    (run / "summary.json").write_text("{")
    said = prb("report", run)
    assert (said.code, "summary.json is not JSON" in said.err) == (2, True)


def test_a_run_under_way_is_watched_until_ctrl_c(prb: Prb, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "summary.json").unlink()
    assert prb("report", run, "--quiet").code == 2
    assert prb("report", run, "--partial", "--format", "csv").out.count("\n") == 3

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("prb.reporting.gather.time.sleep", interrupt)
    said = prb("report", run, "--watch")
    assert said.code == 130
    assert "under way: length 2 of 2 rows" in said.err
    assert (run / "report" / "index.html").exists()
