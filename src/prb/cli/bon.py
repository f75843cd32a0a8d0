"""`prb bon`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import finished, parse, print_json


def command(args: Sequence[str]) -> None:
    from prb.downstream.bon import BonConfig

    config = parse(BonConfig, args, "bon")
    from prb.api import best_of_n
    from prb.reporting.format import show

    result, failed = finished(lambda: best_of_n(config))
    if config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        print(f"run: {result.folder}")  # noqa: T201
    if failed:
        raise failed
