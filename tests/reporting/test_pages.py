"""From run folders and result files to the data of the downstream, study and audit pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.reporting.gather import gather
from prb.reporting.pages import evidence_data
from prb.runs import read_json, write_json
from prb.study.agreement import summarize
from tests.reporting.results import correlation, judgments, ppo_run
from tests.study.test_agreement import judged, rated, row


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


def test_ratings_are_counted_by_criterion_answer_and_step() -> None:
    rows = [row(1, 1, ratings=rated(5, 3)), row(1, 2, ratings=rated(5, 1)), row(2, 1, ratings={})]
    counts = summarize(judged(rows), draws=0).ratings
    assert list(counts) == ["correctness", "relevance", "helpfulness"]
    assert counts["relevance"] == {"chosen": [0, 0, 0, 0, 2], "rejected": [1, 0, 1, 0, 0]}


def test_of_each_item_the_votes_are_kept() -> None:
    first = summarize(judged(judgments()), draws=0).items[0]
    assert first.item == "i0"
    assert (first.before, first.after) == (
        {"chosen": 3, "rejected": 0, "neither": 0},
        {"chosen": 0, "rejected": 3, "neither": 0},
    )
    assert first.difference == {"quality": 3}
    assert first.means == {"chosen": pytest.approx(13 / 3), "rejected": 4.0}
