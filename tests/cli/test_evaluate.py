"""`prb evaluate`: flags, files, JSON, gates and exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb import EvaluateConfig
from tests.cli.conftest import Prb
from tests.conftest import make_row, make_twins
from tests.runs import names, result, same_files

Write = Callable[..., Path]


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl([*make_twins(1), *make_twins(2), make_row(5)])


def stored(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text("utf-8"))["evaluate"])


def test_the_answer_comes_first_and_all_numbers_on_request(prb: Prb, tmp_path: Path) -> None:
    """What the first command prints is in the README."""
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    shown = re.search(r"```text\n(.*?)```", readme, re.S)
    words = ["evaluate", "--quiet", "--out", tmp_path / "run"]
    short, full = prb(*words).out, prb(*words, "--full").out.splitlines()
    assert shown
    assert short.startswith(shown[1])
    assert short.splitlines()[:4] == full[:4]
    assert "person effect" in full[5]


def test_the_same_command_resumes_and_a_changed_one_is_refused(prb: Prb, data: Path, tmp_path: Path) -> None:
    words = ["evaluate", "--dataset", data, "--model", "length", "--batch", "2", "--out", tmp_path / "run"]
    first = prb(*words)
    path = tmp_path / "run" / "replies.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    again = prb(*words)
    assert (again.code, again.out) == (0, first.out)
    assert "1 line of replies.jsonl cannot be read; what they replied to is asked again" in again.err
    assert "replies are there" in again.err
    other = prb(*words, "--k", "3")
    assert (other.code, other.out) == (2, "")
    assert f"evaluate.k: {EvaluateConfig().k} → 3" in other.err


def test_a_saved_config_repeats_the_run(prb: Prb, data: Path, tmp_path: Path) -> None:
    words = ["--dataset", data, "--model", "length", "--model", "random?seed=3", "--k", "1", "--seed", "5"]
    prb("evaluate", *words, "--condition", "none", "--condition", "shuffled", "--out", tmp_path / "one")
    said = prb("evaluate", "--config", tmp_path / "one" / "config.json", "--out", tmp_path / "two", "--quiet")
    assert said.code == 0
    assert same_files(tmp_path / "one", tmp_path / "two")
    assert prb("evaluate", f"--config={tmp_path / 'one' / 'config.json'}", "--out", tmp_path / "one").code == 0


def test_flags_beside_a_config_replace_what_it_holds(prb: Prb, data: Path, tmp_path: Path) -> None:
    words = ["--dataset", data, "--model", "length", "--model", "random", "--condition", "none", "--k", "1"]
    prb("evaluate", *words, "--out", tmp_path / "one")
    saved = tmp_path / "one" / "config.json"
    prb("evaluate", "--config", saved, "--model", "constant", "--seed", "9", "--out", tmp_path / "two")
    changed = {"model": ["constant"], "seed": 9}
    assert stored(tmp_path / "two") == {**stored(tmp_path / "one"), **changed}
    prb("evaluate", "--condition=profile", "--condition=oracle", "--config", saved, "--out", tmp_path / "three")
    assert stored(tmp_path / "three") == {**stored(tmp_path / "one"), "condition": ["profile", "oracle"]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        ("{", "is not JSON"),
        ('{"train": {}}', "holds no settings of `prb evaluate`"),
        ('{"evaluate": {"k": "many"}}', "k must be a whole number, not 'many'"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(content: str | None, says: str, prb: Prb, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    said = prb("evaluate", "--config", path, "--out", tmp_path / "run")
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--modle", "length"], "there is no flag --modle; did you mean --model?"),
        (["--condition", "proflie"], "proflie"),
        (["--limit", "few"], "few"),
        (["--limit", "9" * 30], "--limit must be at most"),
        (["--config", "."], "config.json does not exist"),
        (["--config"], ""),
        (["--task", "ratings"], "`rating` are missing; the columns are user, question"),
    ],
)
def test_a_wrong_request_exits_2_and_writes_nothing(
    words: list[str], says: str, prb: Prb, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = prb("evaluate", "--dataset", data, *words)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert names(tmp_path) == ["set.jsonl"]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("accuracy@none<=0.5", 0),
        ("accuracy>=0.4,control>=0,gain.low<=0", 0),
        ("accuracy>0.6", 1),
        ("control.low>0", 1),
        ("mirror_accuracy>0.25,accuracy>0", 1),
    ],
)
def test_a_requirement_decides_the_exit_code_after_the_work(
    wanted: str, code: int, prb: Prb, data: Path, tmp_path: Path
) -> None:
    words = ["--dataset", data, "--model", "length", "--json", "--quiet", "--out", tmp_path / "run"]
    said = prb("evaluate", *words, "--require", wanted)
    assert said.code == code
    assert result(said.json, "none", "length")["accuracy"]["value"] == 0.4  # the result is printed either way
    assert (tmp_path / "run" / "summary.json").exists()
    assert said.err.startswith("prb: requirements not met:\n") == bool(code)


def test_judges_cannot_rate(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    data = write_jsonl([{"user": "ann", "question": "Tea?", "profile": ["I hurry."], "answer": "Yes.", "rating": 0.5}])
    said = prb("evaluate", data, "--task", "ratings", "--model", "scripted-judge", "--out", tmp_path / "run")
    assert (said.code, said.out) == (2, "")
    assert "'scripted-judge' only compares answers; ratings need a model that scores them" in said.err
    assert not (tmp_path / "run").exists()
