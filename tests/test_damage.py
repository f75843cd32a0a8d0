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
from prb.building.config import ROLES, BuildConfig
from prb.building.run import build
from prb.downstream.bon import best_of_n
from prb.downstream.run_columns import read_runs
from prb.errors import PrbError
from prb.evaluation.audit import AuditConfig, audit
from prb.evaluation.compare import CompareConfig, compare
from prb.evaluation.outcomes import read_outcomes
from prb.evaluation.run import evaluate
from prb.grading.config import GradeConfig
from prb.grading.run import grade
from prb.models.personal.scorer import load_personal
from prb.reporting.site import write_site
from prb.results import open_run
from prb.runs import CONFIG, OUTCOMES, SUMMARY
from prb.training.config import TrainConfig
from prb.training.loop import Training
from prb.training.run import train
from prb.types import Ask, Query
from tests.building.author import Author, make_record
from tests.conftest import Row, make_row, make_twins
from tests.damage import damage, edit_sealed_line
from tests.downstream import fakes
from tests.downstream.ppo import runs as ppo_runs
from tests.grading.test_run import Recording
from tests.runs import outcomes, recording, settings
from tests.training.synthetic import rows_of_twelve

Reader = Callable[[Path, Path], Any]
"""From the folder with the data and the folder of the run to what is said of it."""


@dataclass(frozen=True)
class Kind:
    make: Reader
    readers: tuple[Reader, ...]
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

    def reader(self, seed: int) -> Reader:
        """One of them, in turn."""
        return list(self.expected)[seed % len(self.expected)]

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._whole, self.folder)

    def problem(self, seed: int, reader: Reader) -> str | None:
        self.restore()
        what = f"{damage(self.folder, random.Random(seed))} (seed {seed})"
        try:
            said = reader(self.data, self.folder)
        except PrbError as error:
            return None if str(error) else f"{reader.__name__} does not say why it refuses {what}"
        except Exception as error:
            return f"{reader.__name__} raises {error!r} after {what}"
        return None if said == self.expected[reader] else f"{reader.__name__} says something else after {what}"


# what makes and reads the folders


def write(path: Path, rows: list[Row]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    return path


def some_rows(data: Path) -> str:
    return str(write(data / "rows.jsonl", [*make_twins(1), make_row(5), make_row(6), *make_twins(2)]))


def evaluated(data: Path, folder: Path) -> Any:
    config = settings(some_rows(data), folder, model=("mine", "other"), batch=2)
    models = {"mine": recording()[0], "other": recording(lambda ask: float(len(ask.answer) % 3), "other")[0]}
    summary = evaluate(config, models=models).summary
    return summary, sorted(outcomes(folder), key=lambda line: (line["model"], line["condition"], line["pair"]))


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


def graded(data: Path, folder: Path) -> Any:
    said = [("r5", "abcd"), ("r6", "abcde"), ("r5", "no"), ("t1a", "abcde"), ("t2b", "abcdefgh"), ("r6", "abcde")]
    answers = write(data / "answers.jsonl", [{"pair": pair, "answer": answer} for pair, answer in said])
    config = GradeConfig(dataset=some_rows(data), answers=answers, grader="mine", batch=2, out=folder)
    return grade(config, grader=Recording()).summary


def sampled(data: Path, folder: Path) -> Any:
    config = fakes.settings(some_rows(data), folder, at_once=4)
    return best_of_n(config, models=fakes.models(), policy=fakes.policy(), grader=fakes.Marks()).summary


def correlated(data: Path, folder: Path) -> Any:
    """With an evaluation that is whole."""
    bench = data / "bench"
    if not bench.exists():
        models = {name: recording(fingerprint=name)[0] for name in ("knows", "errs", "mine")}
        evaluate(settings(some_rows(data), bench, model=tuple(models), condition=("profile",)), models=models)
    return read_runs([str(bench)], [str(folder)], condition=None, best_of=None, seed=0).downstream[0].values.tobytes()


def built(data: Path, folder: Path) -> Any:
    records = write(data / "records.jsonl", [make_record(n) for n in (1, 2, 3)])
    config = BuildConfig(input=str(records), llm="scripted/author", out=folder, mirror=False)
    build(config, llms=dict.fromkeys(ROLES.values(), Author()))
    written = ("pairs.jsonl", "rejects.jsonl", "gates.jsonl", "card.json", "hub/README.md")
    return [(folder / name).read_bytes() for name in written]


def trained_as(method: str, data: Path, folder: Path) -> Any:
    rows = write(data / "train.jsonl", rows_of_twelve())
    return train(TrainConfig(method=method, dataset=str(rows), epochs=4, out=folder)).summary


def light(data: Path, folder: Path) -> Any:
    return trained_as("light", data, folder)


def bilinear(data: Path, folder: Path) -> Any:
    pytest.importorskip("torch", reason="needs the torch extra")
    return trained_as("bilinear", data, folder)


def scored(data: Path, folder: Path) -> Any:
    query = Query(user="u1", question="What now, 1?", posts=())
    return [float(score) for score in load_personal(folder).score([Ask(query, "Rye bread."), Ask(query, "A train.")])]


def audited(data: Path, folder: Path) -> Any:
    reader = {"reader": recording(fingerprint="reader")[0]}
    return audit(AuditConfig(dataset=some_rows(data), out=folder, ceiling="reader"), models=reader).summary


def measured(data: Path, folder: Path) -> Any:
    table = data / "scores.csv"
    table.write_text("model,bench,bon\n" + "".join(f"m{n},{n / 10},{(n * 3) % 7 / 10}\n" for n in range(6)), "utf-8")
    return prb.correlate(table=table, downstream=("bon",), out=folder, quiet=True).summary


def optimized(data: Path, folder: Path) -> Any:
    for module in ("torch", "accelerate"):
        pytest.importorskip(module, reason="needs the torch extra")
    from prb.downstream.ppo import ppo

    policy, rows = data / "policy", data / "people.jsonl"
    if not policy.exists():
        ppo_runs.writer(policy)
        ppo_runs.people(rows, 12, ppo_runs.BRIEF)
    config = ppo_runs.config(policy, rows, folder, steps=2, epochs=1, checkpoint_every=1, grader="short")
    return ppo(config, reward=ppo_runs.scorer(), grader=ppo_runs.ShortIsGood()).summary


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


def interrupt(where: Any, method: str, make: Reader, data: Path, folder: Path) -> None:
    """Make it again, and press Ctrl-C at the second call."""
    shutil.rmtree(folder)
    original, calls = getattr(where, method), iter(range(2))

    def interrupted(*parts: Any) -> Any:
        if next(calls):
            raise KeyboardInterrupt
        return original(*parts)

    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(where, method, interrupted)
        make(data, folder)


def stop_training(data: Path, folder: Path) -> None:
    interrupt(Training, "epoch", bilinear, data, folder)


def stop_optimizing(data: Path, folder: Path) -> None:
    from prb.downstream.ppo.loop import Trainer

    interrupt(Trainer, "step", optimized, data, folder)


KINDS = {
    "evaluate": Kind(evaluated, (evaluated, read, opened, compared, reported)),
    "evaluate, unfinished": Kind(evaluated, (evaluated,), cut_in_half(OUTCOMES)),
    "grade": Kind(graded, (graded, opened)),
    "grade, unfinished": Kind(graded, (graded,), cut_in_half("grades.jsonl")),
    "bon": Kind(sampled, (sampled, opened, correlated, reported)),
    "bon, unfinished": Kind(sampled, (sampled,), cut_in_half("grades.jsonl", "scores.jsonl")),
    "build": Kind(built, (built, opened)),
    "train": Kind(light, (light, scored, opened)),
    "train, unfinished": Kind(bilinear, (bilinear,), stop_training, times=20),
    "audit": Kind(audited, (audited, opened, reported)),
    "correlate": Kind(measured, (opened, reported)),
    "ppo": Kind(optimized, (optimized, opened, reported, correlated), times=20),
    "ppo, unfinished": Kind(optimized, (optimized,), stop_optimizing, times=20),
}
JOURNALS = {
    "evaluate": (OUTCOMES,),
    "grade": ("grades.jsonl",),
    "bon": ("samples.jsonl", "scores.jsonl", "grades.jsonl"),
    "build": ("log.jsonl",),
    "ppo, unfinished": ("answers.jsonl",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    folder = Damaged(KINDS[kind], tmp_path)
    wrong = [folder.problem(seed, folder.reader(seed)) for seed in range(KINDS[kind].times)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damages_are_refused_or_change_nothing(kind: str, tmp_path: Path) -> None:
    folder = Damaged(KINDS[kind], tmp_path)
    wrong = [folder.problem(seed, reader) for seed in range(1000) for reader in folder.expected]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("kind", JOURNALS)
def test_a_line_of_another_shape_is_no_traceback(kind: str, tmp_path: Path) -> None:
    folder = Damaged(KINDS[kind], tmp_path)
    for seed in range(KINDS[kind].times):
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
