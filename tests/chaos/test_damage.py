"""Whatever is damaged in a run folder: its command and its readers give the same result, or one clear refusal."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

import prb
from prb.api import open_run
from prb.downstream.correlate import read_runs
from prb.errors import PrbError
from prb.evaluation.compare import CompareConfig, compare
from prb.evaluation.outcomes import read_outcomes
from prb.evaluation.run import evaluate
from prb.runs import CONFIG, OUTCOMES, SUMMARY
from tests.chaos.damage import damage, edit_sealed_line
from tests.chaos.jobs import (
    SHARE,
    Job,
    audited,
    built,
    evaluated,
    graded,
    sampled,
    some_rows,
    times,
)
from tests.reporting.sites import write_site
from tests.runs import recording, settings

pytestmark = pytest.mark.chaos


@dataclass(frozen=True)
class Kind:
    make: Job
    readers: tuple[Job, ...]
    stop: Callable[[Path, Path], None] = lambda data, folder: None
    """Leaves the folder unfinished."""
    times: int = 60
    """Fewer where one attempt loads a model."""


class Damaged:
    """A folder of a kind, what its readers say of it while it is whole, and what they say when it is not."""

    def __init__(self, kind: Kind, tmp_path: Path) -> None:
        self.data, self.folder, self._whole = tmp_path, tmp_path / "run", tmp_path / "whole"
        kind.make(tmp_path, self.folder)
        self.expected = {reader: reader(tmp_path, self.folder) for reader in kind.readers}
        kind.stop(tmp_path, self.folder)
        shutil.copytree(self.folder, self._whole)

    def reader(self, seed: int) -> Job:
        """One of them, in turn."""
        return list(self.expected)[seed % len(self.expected)]

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._whole, self.folder)

    def problem(self, seed: int, reader: Job) -> str | None:
        self.restore()
        what = f"{damage(self.folder, random.Random(seed))} (seed {seed})"
        try:
            said = reader(self.data, self.folder)
        except PrbError as error:
            return None if str(error) else f"{reader.__name__} does not say why it refuses {what}"
        except Exception as error:
            return f"{reader.__name__} raises {error!r} after {what}"
        return None if said == self.expected[reader] else f"{reader.__name__} says something else after {what}"


# what else reads the folders


def read(data: Path, folder: Path) -> Any:
    return {cell: column.credit.tolist() for cell, column in read_outcomes(folder).of.items()}


def opened(data: Path, folder: Path) -> Any:
    run = open_run(folder)
    return dict(run.summary), str(run)


def compared(data: Path, folder: Path) -> Any:
    return compare(CompareConfig(run_a=folder, run_b=folder, model_a="mine", model_b="other"))


def reported(data: Path, folder: Path) -> Any:
    site = data / "site"
    shutil.rmtree(site, ignore_errors=True)
    write_site([folder], site)
    return {path.name: path.read_bytes() for path in sorted(site.rglob("*")) if path.is_file()}


def correlated(data: Path, folder: Path) -> Any:
    """With an evaluation that is whole."""
    bench = data / "bench"
    if not bench.exists():
        models = {name: recording(fingerprint=name)[0] for name in ("knows", "errs", "mine")}
        evaluate(settings(some_rows(data), bench, model=tuple(models), condition=("profile",)), models=models)
    return read_runs([str(bench)], [str(folder)], condition=None, best_of=None, seed=0).downstream[0].values.tobytes()


def measured(data: Path, folder: Path) -> Any:
    table = data / "scores.csv"
    table.write_text("model,bench,bon\n" + "".join(f"m{n},{n / 10},{(n * 3) % 7 / 10}\n" for n in range(6)), "utf-8")
    return prb.correlate(table=table, downstream=("bon",), out=folder, quiet=True).summary


# what leaves them unfinished


def cut_in_half(*journals: str) -> Callable[[Path, Path], None]:
    def cut(data: Path, folder: Path) -> None:
        for name in journals:
            lines = (folder / name).read_bytes().splitlines(keepends=True)
            (folder / name).write_bytes(b"".join(lines[: len(lines) // 2 - 1]))
        (folder / SUMMARY).unlink()
        config = orjson.loads((folder / CONFIG).read_bytes())
        del config["digests"]
        (folder / CONFIG).write_bytes(orjson.dumps(config))

    return cut


KINDS = {
    "evaluate": Kind(evaluated, (evaluated, read, opened, compared, reported)),
    "evaluate, unfinished": Kind(evaluated, (evaluated,), cut_in_half(OUTCOMES)),
    "grade": Kind(graded, (graded, opened)),
    "grade, unfinished": Kind(graded, (graded,), cut_in_half("grades.jsonl")),
    "bon": Kind(sampled, (sampled, opened, correlated, reported)),
    "bon, unfinished": Kind(sampled, (sampled,), cut_in_half("grades.jsonl", "scores.jsonl")),
    "build": Kind(built, (built, opened)),
    "audit": Kind(audited, (audited, opened, reported)),
    "correlate": Kind(measured, (opened, reported)),
}
JOURNALS = {
    "evaluate": (OUTCOMES,),
    "grade": ("grades.jsonl",),
    "bon": ("samples.jsonl", "scores.jsonl", "grades.jsonl"),
    "build": ("log.jsonl",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    folder = Damaged(KINDS[kind], tmp_path)
    seeds = range(times(KINDS[kind].times, 1000))
    wrong = [
        folder.problem(seed, job) for seed in seeds for job in (folder.expected if SHARE else [folder.reader(seed)])
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("kind", JOURNALS)
def test_a_line_of_another_shape_is_no_traceback(kind: str, tmp_path: Path) -> None:
    folder = Damaged(KINDS[kind], tmp_path)
    for seed in range(times(KINDS[kind].times, 1000)):
        draws = random.Random(seed)
        folder.restore()
        edit_sealed_line(folder.folder / draws.choice(JOURNALS[kind]), draws)
        with suppress(PrbError):
            folder.reader(seed)(tmp_path, folder.folder)


@pytest.mark.parametrize("name", ["audit.json", "correlation.json", "config.json"])
@pytest.mark.parametrize("content", [b"{}", b"[]", b"5", b"null", b"", b'{"a": 1}'])
def test_a_file_with_anything_else_in_it_is_no_run(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    for reader in (opened, reported):
        with pytest.raises(PrbError):
            reader(tmp_path / "elsewhere", tmp_path)
