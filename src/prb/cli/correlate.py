"""`prb correlate TABLE`, `prb correlate --bench RUN… --downstream RUN…`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prb.cli.parse import parse
from prb.cli.verbs import print_json
from prb.downstream.correlate import CorrelateConfig, correlate


def command(args: Sequence[str]) -> None:
    config = parse(CorrelateConfig, args, "correlate")
    from prb.progress import watch
    from prb.reporting.correlation import latex, tables
    from prb.reporting.table import markdown, show

    with watch(config.quiet) as progress:
        result = correlate(config, progress=progress)
    if config.out is not None:
        _write(config.out, result)
    if config.json:
        print_json({**result, "sentences": said(result)})
        return
    for table in tables(result):
        if config.format == "table":
            show(table)
        else:
            print(latex(table) if config.format == "latex" else markdown(table))  # noqa: T201
    marker = "% " if config.format == "latex" else ""
    print("\n".join(marker + sentence for sentence in said(result)))  # noqa: T201
    if config.out is not None and config.format == "table":
        print(f"written: {config.out}")  # noqa: T201


def said(result: Mapping[str, Any]) -> list[str]:
    """What may be said of it, and how far the grades behind it can be trusted."""
    from prb.reporting.correlation import sentences

    notes = [f"{column['name']}: {column['note']}" for column in result["downstream"] if column["note"]]
    return [*sentences(result), *notes]


def _write(folder: Path, result: Mapping[str, Any]) -> None:
    from prb.errors import BadInput, MissingExtra
    from prb.reporting.correlation import latex, tables
    from prb.reporting.scatter import scatter
    from prb.reporting.table import markdown
    from prb.runs import write_json

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror}") from None
    made = list(tables(result))
    listed = "\n".join(f"- {sentence}" for sentence in said(result))
    (folder / "table.md").write_text("\n".join([*map(markdown, made), listed, ""]), "utf-8")
    (folder / "table.tex").write_text("\n".join(map(latex, made)), "utf-8")
    write_json(folder / "correlation.json", {**result, "sentences": said(result)})
    try:
        scatter(result, folder / "scatter.svg")
    except MissingExtra as missing:
        import sys

        print(f"no scatter.svg: {missing}", file=sys.stderr)  # noqa: T201
