"""The trackers themselves, offline: what a run tells them is read back from their own files (`make test-extras`)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prb.evaluation.run import evaluate
from tests.conftest import make_twins
from tests.runs import recording, settings

Write = Callable[..., Path]


@pytest.fixture
def follow(write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[[str], Any]:
    """Evaluate with a hook; the summary. A hook that failed would have said so."""
    monkeypatch.chdir(tmp_path)
    data = write_jsonl([row for n in range(4) for row in make_twins(n)])

    def call(hook: str) -> Any:
        config = settings(data, tmp_path / "run", batch=4, hook=(hook,))
        done = evaluate(config, models={"mine": recording()[0]})
        assert "failed in on_" not in capsys.readouterr().err
        return done.summary

    return call


def leveldb_records(content: bytes, block: int = 32_768) -> Iterator[bytes]:
    """The records of a LevelDB log, the format of wandb's offline files; wandb itself reads it in Go only."""
    at, parts = 7, []  # after the file's own header
    while at + 7 <= len(content):
        if block - at % block < 7:  # the rest of a block is too short for a header
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def test_wandb_keeps_settings_progress_and_estimates(follow, tmp_path):
    wandb = pytest.importorskip("wandb", reason="needs the wandb extra; `make test-extras` has it")
    from wandb.proto.wandb_internal_pb2 import Record

    follow("wandb?mode=offline&project=mine")
    wandb.teardown()  # its own process has written everything
    (log,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    logged: dict[str, str] = {}
    configured = set()
    for data in leveldb_records(log.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        for item in record.history.item:
            logged["/".join(item.nested_key) or item.key] = item.value_json
        configured |= {item.key for item in record.run.config.update}
    assert logged["mine/profile/accuracy"] == "0.5"
    assert logged["mine/rows"] == "8"
    assert {"k", "dataset", "folder"} <= configured


def test_mlflow_keeps_settings_progress_and_estimates(follow, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the mlflow extra; `make test-extras` has it")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    summary = follow(f"mlflow?uri={uri}&experiment=mine")
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["k"] == "5"
    assert run.data.metrics["mine/profile/accuracy"] == summary["results"][1]["accuracy"]["value"]
    assert [point.value for point in client.get_metric_history(run.info.run_id, "mine/rows")] == [4, 8]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["summary.json"]


def test_trackio_keeps_settings_progress_and_estimates(follow, tmp_path, monkeypatch):
    pytest.importorskip("trackio", reason="needs the trackio extra; `make test-extras` has it")
    from trackio import sqlite_storage, utils

    for module in (sqlite_storage, utils):
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    follow("trackio?project=mine&name=first")
    storage = sqlite_storage.SQLiteStorage
    logs = storage.get_logs("mine", "first")
    assert [row["mine/rows"] for row in logs if "mine/rows" in row] == [4, 8]
    assert logs[-1]["mine/profile/accuracy"] == 0.5
