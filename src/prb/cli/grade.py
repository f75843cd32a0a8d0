"""`prb grade`, and `prb grade --license JUDGE --human FILE`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_run
from prb.grading import GradeConfig
from prb.grading.license import LicenseConfig


def command(args: Sequence[str]) -> None:
    words = {word.partition("=")[0] for word in args}
    makes_license = "--license" in words and not words & {"--answers", "--validate"}
    config = parse(LicenseConfig, args, "grade") if makes_license else parse(GradeConfig, args, "grade")
    from prb.api import grade

    print_run(lambda: grade(config), lambda result: f"run: {result.folder}", json=config.json)
