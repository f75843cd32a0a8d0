"""`prb report RUN…`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_json


def command(args: Sequence[str]) -> None:
    from prb.reporting.site import ReportConfig, report_summaries, report_tables

    config = parse(ReportConfig, args, "report")
    if config.json:
        print_json(report_summaries(config))
    elif config.format == "site":
        from prb.api import report

        print(f"report: {report(config)}")
    else:
        print(report_tables(config), end="")
