"""`prb …` in this process: what it printed, and the code it would exit with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from prb.cli import run


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


Prb = Callable[..., Said]


@pytest.fixture
def prb(capsys: pytest.CaptureFixture[str]) -> Prb:
    def call(*words: object) -> Said:
        capsys.readouterr()
        try:
            code = run([str(word) for word in words])
        except SystemExit as exit_:  # the parser of flags ends the process itself
            code = exit_.code if isinstance(exit_.code, int) else 1
        return Said(code, *capsys.readouterr())

    return call
