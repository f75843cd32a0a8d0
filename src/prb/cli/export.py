"""`prb export RUN --to FORMAT`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_json


def command(args: Sequence[str]) -> None:
    from prb.reporting.formats import ExportConfig

    config = parse(ExportConfig, args, "export")
    from prb.api import export

    paths = [str(path) for path in export(config)]
    if config.json:
        print_json(paths)
    else:
        print("\n".join(paths))
