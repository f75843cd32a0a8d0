"""Disks that fill up, folders in the way, names that are too long: one line that names the path, and the
same bytes once there is room again."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prb.errors import PrbError
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from prb.grading import GradeConfig
from prb.grading.run import grade
from prb.runs import OUTCOMES, SUMMARY, write_json
from tests.conftest import make_row, make_twins


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes; a write that crosses the limit is cut short, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def rows(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl([*make_twins(1), *(make_row(n) for n in range(3, 9))])


def run(verb: str, rows: Path, out: Path) -> Any:
    if verb == "grade":
        return grade(GradeConfig(dataset=rows, validate=True, out=out))
    models = ("length", "lexical")
    return evaluate(EvaluateConfig(dataset=rows, model=models, condition=("none", "profile"), batch=3, out=out))


@pytest.mark.parametrize("verb", ["evaluate", "grade"])
@pytest.mark.parametrize(
    "size", [0, 500, 900, *(pytest.param(size, marks=pytest.mark.slow) for size in (10, 400, 1200))]
)
def test_a_full_disk_is_one_line_and_the_run_is_resumed(verb, size, rows, tmp_path):
    run(verb, rows, tmp_path / "whole")  # also fills the caches of encoders, which are not the point here
    with room_for(size), pytest.raises(PrbError) as caught:
        run(verb, rows, tmp_path / "run")
    assert str(caught.value).startswith(str(tmp_path / "run"))
    assert "\n" not in str(caught.value)
    run(verb, rows, tmp_path / "run")
    assert (tmp_path / "run" / SUMMARY).read_bytes() == (tmp_path / "whole" / SUMMARY).read_bytes()
    assert not list((tmp_path / "run").glob(".*.part"))


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path, rows):
    run("evaluate", rows, tmp_path / "run")
    (tmp_path / "run" / OUTCOMES).unlink()
    (tmp_path / "run" / OUTCOMES).mkdir()
    with pytest.raises(PrbError, match=rf"{tmp_path / 'run' / OUTCOMES} cannot be written: Is a directory"):
        run("evaluate", rows, tmp_path / "run")


@pytest.mark.parametrize("length", [250, 256, 5000])
def test_a_name_that_is_too_long_is_one_line(length, tmp_path, rows):
    if length > 255:
        with pytest.raises(PrbError, match="cannot be a run folder: File name too long"):
            run("evaluate", rows, tmp_path / ("x" * length))
    with pytest.raises(PrbError, match="cannot be written: File name too long"):
        write_json(tmp_path / ("x" * length), {})
