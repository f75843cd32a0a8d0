"""`prb models list | pull`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prb.models import MODELS
from tests.cli.conftest import Prb


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRB_CACHE", str(tmp_path / "cache"))


def test_one_model_is_listed_with_its_options_styles_and_backends(prb: Prb) -> None:
    said = prb("models", "list", "judge").out
    assert re.search(r"^style +pairwise$", said, re.M)
    assert re.search(r"^llm +required$", said, re.M)
    assert re.search(r"^mtbench +pairwise ", said, re.M)
    assert "llm=(openai/NAME?option=value&…)" in said
    assert prb("models", "list", "judge", "--json").json["styles"]["rating"] == "rating"
    assert prb("models", "list", "juge").err == "prb: no model named 'juge'; did you mean 'judge'?\n"


def test_known_checkpoints_are_listed_with_what_runs_them(prb: Prb) -> None:
    known = {entry["name"]: entry for entry in prb("models", "list", "--json").json["checkpoints"]}
    assert known["Skywork/Skywork-Reward-V2-Qwen3"]["runs"] == "engine"
    assert known["RLHFlow/ArmoRM-Llama3-8B"]["runs"] == "engine (own code)"
    assert known["infly/INF-ORM-Llama3.1-70B"] == {
        "name": "infly/INF-ORM-Llama3.1-70B",
        "runs": "plug-in",
        "tested": "",
        "why_not": "the class of its head is in its model card, not in its files",
    }
    listed = prb("models", "list").out
    assert [part for part in (*MODELS, "Qwen/Qwen2.5-Math-RM…", "prb models pull NAME") if part not in listed] == []
