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
    """A static site from finished runs: leaderboard, models, pairs, comparison, downstream results; or a table."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of evaluate, bon and ppo runs; correlation.json, audit.json and agreement JSON, or their folders."""
    out: Path | None = None
    """Folder to write to; RUN/report if absent. Only a report is ever overwritten."""
    texts: bool = True
    """Questions, answers, posts and what judges wrote; without them the site holds ids and numbers only."""
    figures: bool = False
    """Figures for papers too, as SVG and PDF in figures/."""
    format: Literal["site", "markdown", "csv"] = "site"
    """site writes files; the others print a table to stdout."""
    json: bool = False
    """Print the summaries as JSON instead."""
    quiet: bool = False
    """No progress."""


def command(args: Sequence[str]) -> None:
    config = parse(ReportConfig, args, "report")
    from prb.errors import BadInput

    if not config.runs:
        raise BadInput("name at least one run folder")
    if config.format == "site" and not config.json:
        print(f"report: {_site(config)}")  # noqa: T201
        return
    from prb.reporting.format import as_csv, markdown
    from prb.reporting.gather import summary_of
    from prb.reporting.tables import leaderboard

    summaries = [summary_of(run) for run in config.runs]
    if config.json:
        print_json(summaries)
        return
    print_table = markdown if config.format == "markdown" else as_csv
    for summary in summaries:
        print(print_table(leaderboard(summary)), end="")  # noqa: T201


def _site(config: ReportConfig) -> Path:
    from prb.progress import watch
    from prb.reporting.site import write_site

    first = config.runs[0]
    out = config.out or (first if first.is_dir() else first.parent) / "report"
    with watch(config.quiet) as progress:
        return write_site(config.runs, out, texts=config.texts, figures=config.figures, progress=progress)
