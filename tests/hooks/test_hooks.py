"""What hooks are told, and that none of them can cost a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prb.errors import BadInput, UnknownName
from prb.evaluation.run import evaluate
from prb.hooks import Batch, Hooks, RunResult, RunStart, Tracker, final_metrics
from prb.types import Failure
from tests.conftest import make_row, make_twins
from tests.runs import by_length, recording, same_files, settings

Write = Callable[..., Path]


class Diary:
    def __init__(self) -> None:
        self.entries: list[RunStart | Batch | RunResult] = []

    def on_run_start(self, run: RunStart) -> None:
        self.entries.append(run)

    def on_batch(self, batch: Batch) -> None:
        self.entries.append(batch)

    def on_result(self, result: RunResult) -> None:
        self.entries.append(result)


class Broken:
    """Fails in the middle of a run, after it has printed something."""

    def on_batch(self, batch: Batch) -> None:
        print("a tracker's advertisement")
        raise ConnectionError("the tracker\nis down")


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl([make_row(n) for n in range(5)])


def test_a_hook_is_told_of_the_start_of_every_batch_and_of_the_result(data, tmp_path):
    diary = Diary()
    config = settings(data, tmp_path / "run", batch=2, condition=("none", "profile"))
    done = evaluate(config, models={"mine": recording()[0]}, hooks=[diary])
    start, *batches, result = diary.entries
    assert isinstance(start, RunStart)
    assert (start.verb, start.folder, start.settings["k"], start.dataset["rows"]) == ("evaluate", done.folder, 5, 5)
    assert [(b.model, b.done, b.total, len(b.outcomes)) for b in batches if isinstance(b, Batch)] == [
        ("mine", 2, 5, 4),
        ("mine", 4, 5, 4),
        ("mine", 5, 5, 2),
    ]
    assert isinstance(result, RunResult)
    assert result.summary == done.summary


def test_a_hook_that_raises_costs_one_line_and_no_result(data, tmp_path, capsys):
    diary = Diary()
    config = settings(data, tmp_path / "run", batch=2)
    evaluate(config, models={"mine": recording()[0]}, hooks=[Broken(), diary])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("the tracker is down") == 1
    assert said.err.splitlines()[-1] == (
        "prb: hook 'Broken' failed in on_batch and is left out from here on (ConnectionError: the tracker is down)"
    )
    assert len(diary.entries) == 5
    evaluate(settings(data, tmp_path / "plain", batch=2), models={"mine": recording()[0]})
    assert same_files(tmp_path / "run", tmp_path / "plain")


def test_a_wrong_hook_is_refused_before_anything_is_written(data, tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'wandb'"):
        evaluate(settings(data, tmp_path / "run", hook=("wand",)), models={"mine": recording()[0]})
    with pytest.raises(BadInput, match="mode"):
        Hooks(["wandb?mode=loud"])
    assert not (tmp_path / "run").exists()


def test_failures_are_counted_and_never_averaged_and_what_cannot_be_measured_is_none(write_jsonl, tmp_path):
    diary, tracker = Diary(), Tracker()
    data = write_jsonl([*(make_row(n) for n in range(4)), make_row(4, rubric_aspects=[])])
    model, _ = recording(lambda ask: Failure("busy") if "number 3" in ask.query.question else by_length(ask))
    config = settings(data, tmp_path / "run", batch=2, condition=("oracle",))
    done = evaluate(config, models={"mine": model}, hooks=[diary])
    metrics: dict[str, float] = {}
    for entry in diary.entries:
        metrics |= tracker.so_far(entry) if isinstance(entry, Batch) else {}
    accuracy = done.summary["results"][0]["accuracy"]
    assert metrics["mine/oracle/accuracy so far"] == accuracy["value"] == 0
    assert (metrics["mine/failed"], accuracy["failed"]) == (1, 1)
    assert (metrics["mine/rows"], tracker.rows) == (5, 5)


def test_final_metrics_are_the_estimates_of_the_summary(write_jsonl, tmp_path):
    done = evaluate(settings(write_jsonl(make_twins(4)), tmp_path / "run"), models={"mine": recording()[0]})
    metrics = final_metrics(done.summary)
    assert metrics["mine/profile/accuracy"] == 0.5
    assert {"mine/gain", "mine/gain_low", "mine/control_p", "mine/profile/person_effect"} <= set(metrics)
    assert all(isinstance(value, float | int) for value in metrics.values())
