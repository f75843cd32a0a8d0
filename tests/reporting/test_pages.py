"""From run folders and result files to the data of the downstream, study and audit pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.reporting.gather import gather
from prb.reporting.pages import evidence_data
from prb.runs import read_json, write_json
from tests.reporting.results import correlation, ppo_run


def only(pages: Any) -> Any:
    ((_, data),) = pages
    return data


def test_steps_a_resumed_run_will_do_again_are_not_shown(tmp_path: Path) -> None:
    folder = ppo_run(tmp_path / "ppo", steps=6)
    summary = read_json(folder / "summary.json")
    write_json(folder / "summary.json", {**summary, "train": {**summary["train"], "steps": 4}})
    (found,) = only(evidence_data("downstream", gather([folder])))["ppo"]
    assert found["curves"]["step"] == [1, 2, 3, 4]


def test_a_file_and_its_folder_are_the_same_result(tmp_path: Path) -> None:
    folder = correlation(tmp_path / "corr")
    by_file = evidence_data("downstream", gather([folder / "correlation.json"]))
    assert only(by_file) == only(evidence_data("downstream", gather([folder])))


def test_a_damaged_result_is_one_clear_line(tmp_path: Path) -> None:
    folder = ppo_run(tmp_path / "ppo")
    summary = read_json(folder / "summary.json")
    write_json(folder / "summary.json", {key: summary[key] for key in ("train", "policy")})
    with pytest.raises(BadInput, match=r"was edited or .*: Object missing required field `dataset`"):
        evidence_data("downstream", gather([folder]))
