"""`prb report RUN…`."""

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse
from prb.cli.verbs import print_json


def command(args: Sequence[str]) -> None:
    from prb.reporting.site import ReportConfig, report, report_summaries, report_tables

    config = parse(ReportConfig, args, "report")
    if config.json:
        print_json(report_summaries(config))
    elif config.format != "site":
        print(report_tables(config), end="")  # noqa: T201
    else:
        from prb.progress import watch

        with watch(config.quiet) as progress:
            index = report(config, progress=progress)
        print(f"report: {index}")  # noqa: T201
