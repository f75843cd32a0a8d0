"""`prb correlate TABLE`, `prb correlate --bench RUN… --downstream RUN…`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_json


def command(args: Sequence[str]) -> None:
    from prb.downstream.correlate import CorrelateConfig

    config = parse(CorrelateConfig, args, "correlate")
    from prb.api import correlate
    from prb.reporting.format import say, show

    result = correlate(config)
    if config.json:
        print_json(result.summary)
        return
    show(*result.tables())
    say(*result.summary["sentences"])
    if config.out is not None:
        print(f"written: {config.out}")
