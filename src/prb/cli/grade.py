"""`prb grade`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_run
from prb.grading import GradeConfig


def command(args: Sequence[str]) -> None:
    config = parse(GradeConfig, args, "grade")
    from prb.api import grade

    print_run(lambda: grade(config), lambda result: f"run: {result.folder}", json=config.json)
