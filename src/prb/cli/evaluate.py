"""`prb evaluate`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_run
from prb.evaluation.config import EvaluateConfig


def command(args: Sequence[str]) -> None:
    config = parse(EvaluateConfig, args, "evaluate")
    from prb.api import evaluate

    print_run(lambda: evaluate(config), lambda r: f"run: {r.folder}   site: prb report {r.folder}", json=config.json)
