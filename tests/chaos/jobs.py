"""One small job per resumable verb, with fakes in place of models; how many faults it meets; what it must end with."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.building.config import ROLES, BuildConfig
from prb.building.run import build
from prb.downstream.bon import best_of_n
from prb.evaluation.audit import AuditConfig, audit
from prb.evaluation.run import evaluate
from prb.grading import GradeConfig
from prb.grading.run import grade
from prb.runs import LOCK, REPLIES
from prb.training.config import TrainConfig
from prb.training.run import train
from tests.building.author import Author, make_record
from tests.conftest import Row, make_row, make_twins
from tests.downstream import fakes
from tests.downstream.ppo import runs as ppo_runs
from tests.engine.clusters import ENVIRONMENT
from tests.grading.test_run import Recording
from tests.runs import outcomes, recording, settings
from tests.training.synthetic import rows_of_twelve

Job = Callable[[Path, Path], Any]
"""From the folder with the data and the folder of the run to what is said of it."""
SHARE = float(os.environ.get("PRB_CHAOS", "0"))
"""Of the full number of faults: 0 in `make test`, 1 in `make chaos`."""
CLOCK = {"seconds", "crc", "at", "created"}
"""Fields that depend on the clock, and the checksum over them."""


def times(few: int, many: int) -> int:
    """How many faults: a few in every run of the tests, many in `make chaos`."""
    return max(few, round(many * SHARE))


def write(path: Path, rows: list[Row]) -> Path:
    """Once, so that several processes can read it meanwhile."""
    content = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)
    return path


def some_rows(data: Path) -> str:
    return str(write(data / "rows.jsonl", [*make_twins(1), make_row(5), make_row(6), *make_twins(2)]))


def evaluated(data: Path, folder: Path, engine: str = "local") -> Any:
    config = settings(some_rows(data), folder, model=("mine", "other"), batch=2, engine=engine)
    models = {"mine": recording()[0], "other": recording(lambda ask: float(len(ask.answer) % 3), "other")[0]}
    summary = evaluate(config, models=models).summary
    return summary, sorted(outcomes(folder), key=lambda line: (line["model"], line["condition"], line["pair"]))


def graded(data: Path, folder: Path, engine: str = "local") -> Any:
    said = [("r5", "abcd"), ("r6", "abcde"), ("r5", "no"), ("t1a", "abcde"), ("t2b", "abcdefgh"), ("r6", "abcde")]
    answers = write(data / "answers.jsonl", [{"pair": pair, "answer": answer} for pair, answer in said])
    config = GradeConfig(dataset=some_rows(data), answers=answers, grader="mine", out=folder, engine=engine)
    return grade(config, grader=Recording()).summary


def sampled(data: Path, folder: Path, engine: str = "local") -> Any:
    config = fakes.settings(some_rows(data), folder, engine=engine)
    return best_of_n(config, models=fakes.models(), policy=fakes.policy(), grader=fakes.Marks()).summary


def built(data: Path, folder: Path) -> Any:
    records = write(data / "records.jsonl", [make_record(n) for n in (1, 2, 3)])
    config = BuildConfig(input=str(records), llm="scripted/author", out=folder, mirror=False)
    build(config, llms=dict.fromkeys(ROLES, Author()))
    written = ("pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json", "hub/README.md")
    return [(folder / name).read_bytes() for name in written]


def trained(method: str, data: Path, folder: Path, engine: str = "local") -> Any:
    if method != "light":
        pytest.importorskip("torch", reason="needs the torch extra")
    rows = write(data / "train.jsonl", rows_of_twelve())
    return train(TrainConfig(method=method, dataset=str(rows), epochs=4, out=folder, engine=engine)).summary


light = partial(trained, "light")


def audited(data: Path, folder: Path, engine: str = "local") -> Any:
    reader = {"reader": recording(fingerprint="reader")[0]}
    config = AuditConfig(dataset=some_rows(data), out=folder, ceiling="reader", engine=engine)
    return audit(config, models=reader).summary


def optimized(data: Path, folder: Path) -> Any:
    pytest.importorskip("torch", reason="needs the torch extra")
    from prb.downstream.ppo import ppo

    policy, rows = data / "policy", data / "people.jsonl"
    if not policy.exists():
        ppo_runs.writer(policy)
        ppo_runs.people(rows, 12, ppo_runs.BRIEF)
    config = ppo_runs.config(policy, rows, folder, steps=2, epochs=1, grader="short")
    return ppo(config, reward=ppo_runs.scorer(), grader=ppo_runs.ShortIsGood()).summary


JOBS: dict[str, Job] = {
    "evaluate": evaluated,
    "grade": graded,
    "bon": sampled,
    "build": built,
    "train": light,
    "train, with torch": partial(trained, "bilinear"),
    "ppo": optimized,
    "audit": audited,
}
LIGHT = tuple(verb for verb in JOBS if verb not in ("train, with torch", "ppo"))
"""Those that load no model."""
ADDRESS = "ray-address"


def on_ray(job: Callable[[Path, Path, str], Any], data: Path, folder: Path) -> Any:
    """On the cluster whose address is in the data folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        return job(data, folder, f"ray?address={(data / ADDRESS).read_text()}&actors=2&cpus=1")


ON_RAY = {
    f"{verb}, on Ray": partial(on_ray, job)
    for verb, job in {"evaluate": evaluated, "grade": graded, "bon": sampled, "audit": audited, "train": light}.items()
}
JOBS |= ON_RAY


def contents(folder: Path, *, without: str = LOCK) -> dict[str, Any]:
    """Every file of a folder, but for the clock and the lock."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (LOCK, without)]
    return {str(path.relative_to(folder)): _content(path) for path in files}


def _content(path: Path) -> Any:
    if path.name == REPLIES:  # several workers finish in any order; nothing is there twice, and nothing is missing
        return sorted(str(_without_clock(orjson.loads(line))) for line in path.read_bytes().splitlines())
    if path.suffix == ".jsonl":
        return [_without_clock(orjson.loads(line)) for line in path.read_bytes().splitlines()]
    return path.read_bytes()


def _without_clock(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in CLOCK} if isinstance(value, dict) else value
