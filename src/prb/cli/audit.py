"""`prb audit DATASET`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse
from prb.cli.verbs import print_json
from prb.evaluation.audit import AuditConfig, audit


def command(args: Sequence[str]) -> None:
    config = parse(AuditConfig, args, "audit")
    from prb.errors import MissingExtra
    from prb.progress import watch
    from prb.reporting.audit import plot, tables
    from prb.reporting.table import show

    with watch(config.quiet) as progress:
        finished = audit(config, progress=progress)
        result = finished.result
        try:
            plot(result, finished.folder / "audit.svg")
        except MissingExtra as missing:
            progress.note(f"no audit.svg: {missing}")
    if config.json:
        print_json(result)
        return
    for table in tables(result):
        show(table)
    print(f"{result['verdict']}\nwritten: {finished.folder}")  # noqa: T201
