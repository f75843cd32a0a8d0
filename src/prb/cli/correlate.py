"""`prb correlate TABLE`, `prb correlate --bench RUN… --downstream RUN…`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import parse, print_json


def command(args: Sequence[str]) -> None:
    from prb.downstream.correlate import CorrelateConfig

    config = parse(CorrelateConfig, args, "correlate")
    from prb.api import correlate
    from prb.reporting.format import latex, markdown, say, show

    result = correlate(config)
    sentences = result.summary["sentences"]
    if config.json:
        print_json(result.summary)
    elif config.format == "table":
        show(*result.tables())
        say(*sentences)
        if config.out is not None:
            print(f"written: {config.out}")
    else:
        text, marker = (latex, "% ") if config.format == "latex" else (markdown, "")
        print("\n".join([*map(text, result.tables()), *(marker + sentence for sentence in sentences)]))
