"""`prb grade`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse_or_repeat
from prb.cli.verbs import print_json
from prb.grading.config import GradeConfig


def command(args: Sequence[str]) -> None:
    config = parse_or_repeat(GradeConfig, args, "grade")
    from prb.grading.run import grade
    from prb.progress import watch
    from prb.reporting.format import show
    from prb.reporting.tables import grade_table

    with watch(config.quiet) as progress:
        result = grade(config, progress=progress)
    if config.json:
        print_json(result.summary)
        return
    show(grade_table(result.summary))
    print(f"run: {result.folder}")  # noqa: T201
