"""A real third-party package adds a model, a dataset, a hook, a metric and a condition through its entry points."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reporting.sites import data_of

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The plug-in built and installed into a folder of its own, as pip would, then put on the path."""
    target = tmp_path_factory.mktemp("site")
    base = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*base, "--target", str(target), str(PLUGIN)], check=True, capture_output=True)
    places = [str(target), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def prb(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "prb", *words], capture_output=True, text=True, env=env, check=False)


def test_a_plugged_in_model_dataset_and_hook_work_like_our_own(environment, tmp_path):
    words = ["evaluate", "--model", "briefest", "--dataset", "tiny?rows=3", "--condition", "none", "--json", "--quiet"]
    done = prb(*words, "--hook", "diary", "--out", str(tmp_path / "run"), env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "diary: run is done\n"
    (result,) = json.loads(done.stdout)["results"]
    assert (result["accuracy"]["value"], result["accuracy"]["n"]) == (1.0, 3)


def test_a_plugged_in_metric_and_condition_are_in_the_table_the_gate_the_site_and_the_export(environment, tmp_path):
    run = str(tmp_path / "run")
    words = ["evaluate", "--model", "briefest", "--dataset", "tiny?rows=3", "--quiet", "--full", "--out", run]
    words += ["--condition", "newest", "--condition", "profile"]
    done = prb(*words, "--require", "confident@newest>=1", env=environment)
    assert done.returncode == 0, done.stderr
    header = next(line for line in done.stdout.splitlines() if line.startswith("model"))
    assert header.split() == ["model", "newest", "profile", "confident", "net", "failed"]
    assert "confident: share of pairs won by more than 10 (coin: 0); net: share of pairs won minus" in done.stdout
    gate = prb(*words, "--require", "confident@newest>1", env=environment)
    assert "confident@newest>1: briefest under newest has 1.0000" in gate.stderr
    assert prb("report", run, "--quiet", env=environment).returncode == 0
    site = tmp_path / "run" / "report"
    assert {"confident", "net"} <= {metric["label"] for metric in data_of(site, "site")["datasets"][0]["metrics"]}
    (row,) = data_of(site, "d0/board")["slices"]["all"]
    for key in ("confident", "net_wins"):  # an estimate, and a plain number
        assert {name: estimate["value"] for name, estimate in row[key].items()} == {"newest": 1.0, "profile": 1.0}
    assert ".newest { --c: light-dark(#5b3fd0, #8f7bff); }" in (site / "assets" / "site.css").read_text("utf-8")
    assert prb("export", run, "--to", "csv", env=environment).returncode == 0
    assert ",confident," in (tmp_path / "run" / "export" / "csv" / "estimates.csv").read_text("utf-8").replace('"', "")
    assert ",newest," in (tmp_path / "run" / "export" / "csv" / "estimates.csv").read_text("utf-8")
    unknown = prb("evaluate", "--model", "random", "--condition", "newst", env=environment)
    assert "'newest'" in unknown.stderr


def test_a_plugged_in_contrast_belongs_to_the_condition_it_is_about(environment, tmp_path):
    run = str(tmp_path / "run")
    words = ["evaluate", "--model", "briefest", "--dataset", "tiny?rows=3", "--quiet", "--out", run]
    done = prb(*words, "--condition", "newest", "--condition", "none", env=environment)
    assert done.returncode == 0, done.stderr
    assert prb("export", run, "--to", "csv", env=environment).returncode == 0
    with (tmp_path / "run" / "export" / "csv" / "estimates.csv").open(newline="") as file:
        gains = {row["condition"]: (row["recency_gain"], row["recency_gain_n"]) for row in csv.DictReader(file)}
    assert gains == {"newest": ("0.0", "3"), "none": ("", "")}
    code = "import sys, prb; frame = prb.open_run(sys.argv[1]).frame().set_index('condition')"
    code += "; print(frame['recency_gain.value'].to_json())"
    frame = subprocess.run(
        [sys.executable, "-c", code, run], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(frame.stdout) == {"newest": 0.0, "none": None}


def test_a_failure_does_not_count_in_a_plugged_in_metric_and_a_condition_keeps_the_conversation(environment, tmp_path):
    (tmp_path / "mine.py").write_text(
        """
from prb.types import Failure

class Mine:
    fingerprint = "mine"

    def score(self, asks):
        assert all([turn.text for turn in ask.query.context] == ["Hello there."] for ask in asks)
        assert all([post.text for post in ask.query.posts] == ["Newer."] for ask in asks)
        return [Failure("busy") if "day 1" in ask.query.question else 1.0 * len(ask.answer) for ask in asks]
"""
    )
    about = {"context": [{"role": "user", "text": "Hello there."}], "rejected": "No."}
    about["profile"] = [{"id": text, "category": "x", "text": text} for text in ("Older.", "Newer.")]
    rows = [{"question": f"Tea on day {n}?", "chosen": "Assam, and plenty of it.", **about} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluate", str(tmp_path / "rows.jsonl"), "--model", f"{tmp_path / 'mine.py'}:Mine", "--json", "--quiet"]
    words += ["--condition", "newest", "--max-failed", "1", "--out", str(tmp_path / "run")]
    done = prb(*words, env=environment)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert {key: result["confident"][key] for key in ("value", "n", "failed")} == {"value": 1.0, "n": 2, "failed": 1}


def test_the_list_of_models_names_the_plugged_in_one(environment):
    models = json.loads(prb("models", "list", "--json", env=environment).stdout)["models"]
    listed = {model["name"]: (model["options"], model["what"]) for model in models}
    assert listed["briefest"] == ([], "Prefers the shorter answer.")
