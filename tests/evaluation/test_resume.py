"""A run that was killed, torn, interrupted or repeated ends with the same files as one that was left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.errors import RunConflict
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.types import Ask, RewardModel
from tests.conftest import make_row, make_twins
from tests.runs import Notes, by_length, names, outcomes, prefers, same_files, settings

ROWS = [*make_twins(1), make_row(5), *make_twins(2), make_row(6, profile=[])]
CHILD = """
import os, signal, sys
from prb.cli import main
from prb.models import MODELS
from prb.models.scripted import ScriptedScorer

last, name, *words = sys.argv[1:]
calls = 0

def score(ask):
    global calls
    calls += 1
    if calls == int(last):
        os.kill(os.getpid(), getattr(signal, name))
    return float(len(ask.answer))

MODELS.register("mine")(lambda: ScriptedScorer(score, "recording"))
main(["evaluate", "--model", "mine", *words])
"""


@pytest.fixture
def whole(write_jsonl, tmp_path):
    """The settings and models of a small run of a scorer and a comparer."""
    config = settings(write_jsonl(ROWS), tmp_path / "whole", model=("mine", "judge"), batch=4)
    models: dict[str, RewardModel] = {"mine": ScriptedScorer(by_length), "judge": prefers(lambda _: True)}
    evaluate(config, models=models)
    return config, models


def test_a_run_in_out_is_extended_by_rows_models_and_conditions(write_jsonl, tmp_path):
    """What was asked is not asked again, and the result is that of a run with these settings from the beginning."""
    data = write_jsonl(ROWS)
    asked: list[str] = []

    def count(ask: Ask) -> float:
        asked.append(ask.answer)
        return float(len(ask.answer))

    def run(folder: str, **changes: Any) -> tuple[dict[str, Any], list[str]]:
        notes, scorer = Notes(), ScriptedScorer(count)
        config = settings(data, tmp_path / folder, **{"condition": ("none",), "limit": 2, **changes})
        return evaluate(config, models={"mine": scorer, "other": scorer}, progress=notes).summary, notes.notes

    more = {"limit": None, "model": ("mine", "other"), "condition": ("none", "profile")}
    whole, _ = run("whole", **more)
    everything = len(asked)
    asked.clear()
    run("run")
    run("run", batch=1)
    first = len(asked)
    summary, notes = run("run", **more)
    assert summary == whole
    assert len(asked) == everything
    assert first == 2  # twins under `none` ask the same
    assert any("evaluate.limit: 2 → null" in note and '"other"' in note for note in notes)
    with pytest.raises(RunConflict, match="was made with other settings"):
        run("run")


def test_edited_data_in_a_folder_that_was_named_is_told_in_words(write_jsonl, tmp_path):
    config = settings(write_jsonl([make_row(0)]), tmp_path / "run", model=("length",))
    evaluate(config)
    write_jsonl([make_row(1)])
    with pytest.raises(RunConflict, match=r"change these back:\n  dataset: its rows have changed$"):
        evaluate(config)


def test_the_same_command_on_edited_data_is_another_run_in_the_default_folder(write_jsonl, tmp_path, monkeypatch):
    data = write_jsonl(ROWS)
    monkeypatch.chdir(tmp_path)
    config = replace(settings(data, tmp_path), out=None)
    first = evaluate(config, models={"mine": ScriptedScorer(by_length)}).folder
    assert evaluate(config, models={"mine": ScriptedScorer(by_length)}).folder == first
    data.write_bytes(data.read_bytes().replace(b"Once a week", b"Once a year"))
    assert evaluate(config, models={"mine": ScriptedScorer(by_length)}).folder != first


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"k": 3}, ["evaluate.k: 5 → 3"]),
        ({"seed": 7, "history": "both"}, ["evaluate.seed: 0 → 7", 'evaluate.history: "both?ranker=recency" → "both"']),
        ({"model": ("judge",)}, ['evaluate.model: ["mine","judge"] → ["judge"]']),
        ({"condition": ("none",)}, ['evaluate.condition: ["none","profile","shuffled"] → ["none"]']),
        ({"limit": 3}, ["evaluate.limit: null → 3"]),
        ({"planner": "extractive?aspects=2"}, ['evaluate.planner: "extractive" → "extractive?aspects=2"']),
    ],
)
def test_another_configuration_is_refused_and_every_difference_named(changes, says, whole):
    config, models = whole
    before = {name: (config.out / name).read_bytes() for name in names(config.out)}
    with pytest.raises(RunConflict) as caught:
        evaluate(replace(config, **changes), models=models)
    assert caught.value.exit_code == 2
    told = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert set(says) <= set(told)
    assert not [line for line in told if line.startswith(("evaluate.task", "evaluate.batch", "prb"))]
    assert {name: (config.out / name).read_bytes() for name in names(config.out)} == before


def child(last: int, name: str, data: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """`prb evaluate` in a process of its own, whose model sends it a signal at its `last` call."""
    conditions = ["--condition", "none", "--condition", "profile", "--condition", "shuffled"]
    words = ["--dataset", str(data), "--out", str(out), "--history", "both?ranker=recency", "--k", "5", "--batch", "2"]
    command = [sys.executable, "-c", CHILD, str(last), name, *words, *conditions]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def undisturbed(write_jsonl, tmp_path):
    data = write_jsonl([row for n in range(1, 6) for row in make_twins(n)])
    config = settings(data, tmp_path / "undisturbed", batch=2)
    evaluate(config, models={"mine": ScriptedScorer(by_length, "recording")})
    return config


# a batch is one twin: 2 calls under none, 4 under profile, 4 under shuffled; five batches are 50 calls


def test_interrupted_a_run_exits_130_and_can_be_resumed(undisturbed, tmp_path):
    stopped = child(27, "SIGINT", Path(undisturbed.dataset), tmp_path / "run")
    assert stopped.returncode == 130
    last = stopped.stderr.splitlines()[-1]
    assert last == "prb: interrupted; run the same command again to resume"
    assert stopped.stdout == ""
    assert len(outcomes(tmp_path / "run")) == 12
    evaluate(replace(undisturbed, out=tmp_path / "run"), models={"mine": ScriptedScorer(by_length, "recording")})
    assert same_files(tmp_path / "undisturbed", tmp_path / "run")
