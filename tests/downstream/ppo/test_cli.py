"""`prb ppo` as a person uses it: flags, wrong words, kill -9, Ctrl-C, two processes."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from prb.cli import run
from tests.downstream.ppo.runs import BRIEF, people, writer

pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("accelerate", reason="needs the torch extra")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writer(tmp_path_factory.mktemp("ppo") / "tiny")


@pytest.fixture
def words(policy: Path, tmp_path: Path) -> list[str]:
    """A small run against `length`, which prefers the longer answer."""
    data = people(tmp_path / "people.jsonl", 40, BRIEF)
    asked = (
        f"--policy transformers/{policy} --model length --dataset {data} --steps 6 --batch 8 --minibatch 4 --lr 1e-3"
    )
    less = "--max-tokens 6 --max-prompt 128 --holdout 4 --grader None --quiet"
    return ["ppo", *asked.split(), *less.split()]


def curve(folder: Path) -> list[dict[str, str]]:
    path = folder / "curves.csv"
    with path.open() as file:
        return list(csv.DictReader(file))


def finished(folder: Path) -> dict[str, bytes]:
    names = ("curves.csv", "answers.jsonl", "summary.json", "policy/model.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


def start(words: list[str], out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "prb", *words, "--out", str(out)], stderr=subprocess.PIPE)


def wait_for_steps(process: subprocess.Popen[bytes], folder: Path, steps: int) -> None:
    while process.poll() is None and not ((folder / "curves.csv").exists() and len(curve(folder)) >= steps):
        time.sleep(0.01)
    assert process.poll() is None, process.stderr.read() if process.stderr else ""


def stop_and_resume(words: list[str], tmp_path: Path, signals: list[signal.Signals]) -> None:
    """Stop a run from outside, a few steps further each time; resumed, it must end with the bytes of a whole one."""
    out = tmp_path / "stopped"
    for n, stop in enumerate(signals):
        process = start(words, out)
        wait_for_steps(process, out, 2 * n + 3)
        process.send_signal(stop)
        _, printed = process.communicate()
        if stop == signal.SIGINT:
            assert process.returncode == 130
            assert b"interrupted" in printed
        assert len(curve(out)) < 12
    assert run([*words, "--out", str(out)]) == 0
    assert run([*words, "--out", str(tmp_path / "whole")]) == 0
    assert finished(out) == finished(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_stopped_twice_resumes_to_the_same_bytes(words: list[str], tmp_path: Path) -> None:
    stop_and_resume([*words, "--steps", "12"], tmp_path, [signal.SIGINT, signal.SIGKILL])


def test_a_run_is_shown_as_table_and_json_and_repeated_from_its_config(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--out", str(tmp_path / "one")]) == 0
    printed = capsys.readouterr().out
    assert "4 held-out prompts, one answer each, before and after 6 steps" in printed
    assert "reward" in printed
    assert f"policy: transformers/{tmp_path / 'one' / 'policy'}" in printed
    assert run([*words, "--out", str(tmp_path / "one"), "--json"]) == 0
    summary = orjson.loads(capsys.readouterr().out)
    assert summary == orjson.loads((tmp_path / "one" / "summary.json").read_bytes())
    assert summary["train"]["steps"] == 6
    again = ["ppo", "--config", str(tmp_path / "one" / "config.json"), "--out", str(tmp_path / "two"), "--quiet"]
    assert run(again) == 0
    assert finished(tmp_path / "one") == finished(tmp_path / "two")
    assert run(["ppo", "--config", str(tmp_path / "people.jsonl")]) == 2
    assert "is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--model", "judgement"], "no model named 'judgement'"),
        (["--model", "scripted-judge"], "only compares answers"),
        (["--grader", "professor", "--holdout", "4"], "no grader named 'professor'"),
        (["--batch", "7"], "batch must be a multiple of minibatch (4), not 7"),
        (["--condition", "none", "--condition", "profile"], "--condition takes one value"),
    ],
)
def test_wrong_words_end_with_one_line_and_leave_nothing(
    words: list[str], tmp_path: Path, more: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--out", str(tmp_path / "run"), *more]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert why in told[0]
    assert not (tmp_path / "run").exists()


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from prb.cli import run\n"
        "try: run(['ppo', '--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--holdout" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_two_processes_learn_what_one_does(words: list[str], tmp_path: Path) -> None:
    """Half of each batch a process, gradients averaged by accelerate: the same up to rounding."""
    assert run([*words, "--out", str(tmp_path / "one"), "--steps", "2"]) == 0
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "prb"]
    told = subprocess.run(
        [*launch, *words, "--out", str(tmp_path / "two"), "--steps", "2"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    for one, two in zip(curve(tmp_path / "one"), curve(tmp_path / "two"), strict=True):
        for name in ("reward", "kl", "length", "entropy", "samples", "failed"):
            assert float(one[name]) == pytest.approx(float(two[name]), rel=1e-3, abs=1e-4), name
