"""`prb report RUN…`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from prb.cli.parse import parse
from prb.cli.verbs import print_json


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """A page (index.html) and tables (table.md, table.csv) from finished runs; or a table on stdout."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""
    out: Path | None = None
    """Folder to write to; RUN/report if absent."""
    format: Literal["page", "markdown", "csv"] = "page"
    """page writes files; the others print to stdout."""
    json: bool = False
    """Print the summaries as JSON instead."""


def command(args: Sequence[str]) -> None:
    config = parse(ReportConfig, args, "report")
    from prb.errors import BadInput
    from prb.report.page import finished, write_report
    from prb.report.table import as_csv, leaderboard, markdown

    if not config.runs:
        raise BadInput("name at least one run folder")
    if config.format == "page" and not config.json:
        page = write_report(config.runs, config.out or config.runs[0] / "report")
        print(f"report: {page}")  # noqa: T201
        return
    summaries = [finished(run) for run in config.runs]
    if config.json:
        print_json(summaries)
        return
    print_table = markdown if config.format == "markdown" else as_csv
    for summary in summaries:
        print(print_table(leaderboard(summary)), end="")  # noqa: T201
