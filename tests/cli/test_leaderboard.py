"""`prb leaderboard SUBMISSIONS --out SITE`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_twins

Write = Callable[..., Path]


@pytest.fixture
def data(prb: Prb, write_jsonl: Write, tmp_path: Path) -> Path:
    data = write_jsonl([row for n in range(2) for row in make_twins(n)])
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    conditions = [word for name in ("none", "profile", "shuffled") for word in ("--condition", name)]
    prb("evaluate", "--dataset", data, "--model", "length", *conditions, "--quiet", "--out", tmp_path / "runs" / "ours")
    return data


def test_accepted_and_refused_submissions_are_printed(prb: Prb, data: Path, tmp_path: Path) -> None:
    words = ["leaderboard", tmp_path / "runs", "--config", tmp_path / "runs" / "ours", "--out", tmp_path / "site"]
    words += ["--quiet"]
    index = tmp_path / "site" / "index.html"
    reason = "it has no config.json: it is not a finished run of `prb evaluate`"
    assert prb(*words) == (0, f"accepted: ours\nrefused:  empty: {reason}\nreport: {index}\n", "")
    strict = prb(*words, "--strict", "--json")
    assert strict.json == {"site": str(index), "accepted": ["ours"], "refused": {"empty": reason}}
    assert (strict.code, strict.err) == (1, "prb: 1 of 2 submissions were refused\n")


def test_if_all_are_refused_there_is_no_site_and_the_command_fails(prb: Prb, data: Path, tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text(json.dumps({"evaluate": {"dataset": str(data), "k": 3}}))
    words = ["leaderboard", tmp_path / "runs", "--config", tmp_path / "reference.json", "--out", tmp_path / "site"]
    said = prb(*words, "--quiet")
    assert said.code == 1
    assert "refused:  ours: it was run with other settings: k is 10, not 3\n" in said.out
    assert said.err == "prb: 2 of 2 submissions were refused\n"
    assert not (tmp_path / "site").exists()
