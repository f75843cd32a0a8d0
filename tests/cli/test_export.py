"""`prb export RUN --to FORMAT`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_twins

Write = Callable[..., Path]


@pytest.fixture
def run(prb: Prb, write_jsonl: Write, tmp_path: Path) -> Path:
    words = ["--dataset", write_jsonl(make_twins(1)), "--model", "length", "--condition", "none", "--quiet"]
    prb("evaluate", *words, "--out", tmp_path / "run")
    return tmp_path / "run"


def test_the_files_are_printed_one_per_line_or_as_json(prb: Prb, run: Path) -> None:
    files = [str(run / "export" / "csv" / f"{name}.csv") for name in ("estimates", "outcomes", "users")]
    assert prb("export", run, "--to", "csv", "--quiet") == (0, "\n".join(files) + "\n", "")
    assert prb("export", run, "--to", "csv", "--json", "--quiet").json == files


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "excel"), "no format named 'excel'; there are: "),
        ((), "prb: --to is required; see `prb export --help`"),
        (("--to", "hf"), "name the benchmark there: --to 'hf?dataset=owner/name'"),
    ],
)
def test_what_cannot_be_exported_is_one_line(prb: Prb, run: Path, words: tuple[str, ...], said: str) -> None:
    done = prb("export", run, *words, "--quiet")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert not (run / "export").exists()
