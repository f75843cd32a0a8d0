"""`prb compare RUN_A RUN_B`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse
from prb.cli.verbs import print_json
from prb.evaluation.compare import CompareConfig, compare
from prb.reporting.format import show
from prb.reporting.tables import comparison


def command(args: Sequence[str]) -> None:
    config = parse(CompareConfig, args, "compare")
    result = compare(config)
    if config.json:
        print_json(result)
    else:
        show(comparison(result))
