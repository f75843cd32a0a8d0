"""`prb build`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.building.config import BuildConfig
from prb.cli.parse import finished, parse, print_json


def command(args: Sequence[str]) -> None:
    config = parse(BuildConfig, args, "build")
    from prb.api import build
    from prb.reporting.format import say, show
    from prb.reporting.results import build_lines

    result, failed = finished(lambda: build(config))
    if config.json:
        print_json(result.summary)
    elif config.dry_run:
        show(*result.tables())
    else:
        say(*build_lines(result.summary))
        usable = result.summary["counts"]["rows"] and not result.summary["stopped_after"]
        hint = f"   try: prb evaluate --dataset {result.pairs}" if usable else ""
        print(f"build: {result.folder}{hint}")
    if failed:
        raise failed
