"""`prb audit DATASET`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_run
from prb.evaluation.audit import AuditConfig


def command(args: Sequence[str]) -> None:
    config = parse(AuditConfig, args, "audit")
    from prb.api import audit

    print_run(lambda: audit(config), lambda r: f"{r.summary['verdict']}\nwritten: {r.folder}", json=config.json)
