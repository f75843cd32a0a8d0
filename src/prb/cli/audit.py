"""`prb audit DATASET`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse
from prb.cli.verbs import print_json
from prb.evaluation.audit import AuditConfig, audit


def command(args: Sequence[str]) -> None:
    config = parse(AuditConfig, args, "audit")
    from prb.progress import watch
    from prb.reporting.figures import write_audit
    from prb.reporting.format import show
    from prb.reporting.tables import audit_tables

    with watch(config.quiet) as progress:
        finished = audit(config, progress=progress)
        result = finished.result
        write_audit(result, finished.folder, progress)
    if config.json:
        print_json(result)
        return
    show(*audit_tables(result))
    print(f"{result['verdict']}\nwritten: {finished.folder}")  # noqa: T201
