"""`prb evaluate`."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from prb.cli.parse import parse_or_repeat
from prb.cli.verbs import print_json
from prb.evaluation.config import EvaluateConfig


def command(args: Sequence[str]) -> None:
    config = parse_or_repeat(EvaluateConfig, args, "evaluate")
    gc.set_threshold(100_000)  # rows come and go by the million and hold no cycles; looking for some costs a tenth
    from prb.evaluation.gate import require
    from prb.evaluation.run import evaluate
    from prb.progress import watch
    from prb.reporting.format import show
    from prb.reporting.tables import leaderboard

    with watch(config.quiet) as progress:
        result = evaluate(config, progress=progress)
    if config.json:
        print_json(result.summary)
    else:
        show(leaderboard(result.summary))
        print(f"run: {result.folder}   site: prb report {result.folder}")  # noqa: T201
    if config.require:
        require(config.require, result.summary)
