"""`prb compare RUN RUN`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_json
from prb.evaluation.compare import CompareConfig


def command(args: Sequence[str]) -> None:
    config = parse(CompareConfig, args, "compare")
    from prb.api import compare
    from prb.reporting.format import show

    result = compare(config)
    print_json(result.summary) if config.json else show(*result.tables())
