"""`prb bon`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_run


def command(args: Sequence[str]) -> None:
    from prb.downstream.bon import BonConfig

    config = parse(BonConfig, args, "bon")
    from prb.api import best_of_n

    print_run(lambda: best_of_n(config), lambda result: f"run: {result.folder}", json=config.json)
