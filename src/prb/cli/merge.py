"""`prb merge RUN…`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_run
from prb.evaluation.merge import MergeConfig


def command(args: Sequence[str]) -> None:
    config = parse(MergeConfig, args, "merge")
    from prb.api import merge

    print_run(lambda: merge(config), lambda r: f"run: {r.folder}   site: prb report {r.folder}", json=config.json)
