"""`prb ppo`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import finished, parse, print_json


def command(args: Sequence[str]) -> None:
    from prb.downstream.ppo import PpoConfig

    config = parse(PpoConfig, args, "ppo")
    from prb.api import ppo
    from prb.reporting.downstream import ppo_lines
    from prb.reporting.format import say, show

    result, _ = finished(lambda: ppo(config))
    if not result.main_process:  # one of several that accelerate started
        return
    if config.verl:
        print(result.message)
    elif config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        say(*ppo_lines(result.summary))
        paths = f"curves: {result.folder / 'curves.csv'}   policy: transformers/{result.folder / 'policy'}"
        print(f"run: {result.folder}   {paths}")
