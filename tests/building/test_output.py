from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from prb.building.config import ROLES, BuildConfig
from prb.building.gates import Check
from prb.building.run import build, pass_rates
from tests.building.author import Author, make_record


@pytest.fixture
def built(write_jsonl, tmp_path: Path) -> Path:
    source = write_jsonl([make_record(n) for n in range(1, 4)], "records.jsonl")
    config = BuildConfig(input=str(source), llm="scripted/author", out=tmp_path / "out", mirror=False)
    return build(config, llms=dict.fromkeys(ROLES.values(), Author())).folder


def test_the_hub_folder_is_read_by_the_hubs_own_library(built) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the hub extra")
    rows = datasets.load_dataset(str(built / "hub"), split="test", cache_dir=str(built / "cache"))
    assert list(rows["id"]) == ["r1", "r2", "r3"]
    assert rows[0]["rubric_aspects"][0]["evidence"] == "My mornings belong to balcony tomatoes1"


def test_the_readme_tells_counts_gates_cost_and_prompts(built) -> None:
    text = (built / "hub" / "README.md").read_text()
    assert "3 pairs of 3 users" in text
    assert "| aspects | 12 of 12 |" in text
    assert "| answer | 12 | 0 | 120 | 60 | 0.0120 |" in text
    assert "blind-judge 50.0 %" in text
    assert "build_rubric `" in text


def test_every_reply_is_kept_with_its_stage(built) -> None:
    lines = [orjson.loads(line) for line in (built / "replies.jsonl").read_bytes().splitlines()]
    assert {line["model"] for line in lines} == {"rubric", "negative", "answer", "grade", "quality", "blind"}
    assert all(line["key"] and line["value"] for line in lines)


def test_pass_rates_count_each_gate_over_all_rounds() -> None:
    checks = [
        Check("a", 1, "x", "length", None),
        Check("a", 2, "x", "length", "too long"),
        Check("b", 1, "x", "form", None),
    ]
    assert pass_rates(checks) == {"length": {"applied": 2, "passed": 1}, "form": {"applied": 1, "passed": 1}}
