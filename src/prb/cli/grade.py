"""`prb grade`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import finished, parse, print_json
from prb.grading import GradeConfig


def command(args: Sequence[str]) -> None:
    config = parse(GradeConfig, args, "grade")
    from prb.api import grade
    from prb.reporting.format import show

    result, failed = finished(lambda: grade(config))
    if config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        print(f"run: {result.folder}")  # noqa: T201
    if failed:
        raise failed
