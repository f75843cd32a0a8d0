"""`prb merge RUN…`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_json
from prb.evaluation.merge import MergeConfig


def command(args: Sequence[str]) -> None:
    config = parse(MergeConfig, args, "merge")
    from prb.api import merge
    from prb.reporting.format import show

    result = merge(config)
    if config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        print(f"run: {result.folder}   site: prb report {result.folder}")  # noqa: T201
