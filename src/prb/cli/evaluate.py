"""`prb evaluate`."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from prb.cli.parse import finished, parse, print_json
from prb.evaluation.config import EvaluateConfig


def command(args: Sequence[str]) -> None:
    config = parse(EvaluateConfig, args, "evaluate")
    gc.set_threshold(100_000)  # rows come and go by the million and hold no cycles; looking for some costs a tenth
    from prb.api import evaluate
    from prb.reporting.format import show

    result, failed = finished(lambda: evaluate(config))
    if config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        print(f"run: {result.folder}   site: prb report {result.folder}")  # noqa: T201
    if failed:
        raise failed
