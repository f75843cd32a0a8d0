"""`prb audit DATASET`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import finished, parse, print_json
from prb.evaluation.audit import AuditConfig


def command(args: Sequence[str]) -> None:
    config = parse(AuditConfig, args, "audit")
    from prb.api import audit
    from prb.reporting.format import show

    result, failed = finished(lambda: audit(config))
    if config.json:
        print_json(result.summary)
    else:
        show(*result.tables())
        print(f"{result.summary['verdict']}\nwritten: {result.folder}")  # noqa: T201
    if failed:
        raise failed
