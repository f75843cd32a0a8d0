"""`prb evaluate`."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from prb.cli.parse import parse, saved, take_option
from prb.cli.verbs import print_json
from prb.evaluate.config import EvaluateConfig


def command(args: Sequence[str]) -> None:
    config = _config(args)
    gc.set_threshold(100_000)  # rows come and go by the million and hold no cycles; looking for some costs a tenth
    from prb.evaluate.gate import require
    from prb.evaluate.run import evaluate
    from prb.progress import watch
    from prb.report.table import leaderboard, show

    with watch(config.quiet) as progress:
        result = evaluate(config, progress=progress)
    if config.json:
        print_json(result.summary)
    else:
        show(leaderboard(result.summary))
        print(f"run: {result.folder}   page: prb report {result.folder}")  # noqa: T201
    if config.require:
        require(config.require, result.summary)


def _config(args: Sequence[str]) -> EvaluateConfig:
    """`--config runs/x/config.json` repeats a run; flags beside it change what it holds."""
    path, rest = take_option(args, "--config")
    if path is None:
        return parse(EvaluateConfig, args, "evaluate")
    from prb.errors import BadInput
    from prb.store import read_json

    content = read_json(path)
    if not isinstance(content, dict) or "evaluate" not in content:
        raise BadInput(f"{path} is no config of `prb evaluate`")
    return parse(EvaluateConfig, rest, "evaluate", saved(EvaluateConfig, content["evaluate"]))
