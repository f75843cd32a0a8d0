"""`prb correlate TABLE`, `prb correlate --bench RUN… --downstream RUN…`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prb.cli.parse import parse
from prb.cli.verbs import print_json
from prb.downstream.correlate import CorrelateConfig, correlate

if TYPE_CHECKING:
    from prb.progress import Progress


def command(args: Sequence[str]) -> None:
    config = parse(CorrelateConfig, args, "correlate")
    from prb.progress import watch
    from prb.reporting.downstream_tables import correlation_sentences, correlation_tables
    from prb.reporting.format import latex, markdown, show

    with watch(config.quiet) as progress:
        result = correlate(config, progress=progress)
        if config.out is not None:
            _write(config.out, result, progress)
    tables, sentences = list(correlation_tables(result)), correlation_sentences(result)
    if config.json:
        print_json({**result, "sentences": sentences})
    elif config.format == "table":
        show(*tables)
        print("\n".join(sentences))  # noqa: T201
        if config.out is not None:
            print(f"written: {config.out}")  # noqa: T201
    else:
        text, marker = (latex, "% ") if config.format == "latex" else (markdown, "")
        print("\n".join([*map(text, tables), *(marker + sentence for sentence in sentences)]))  # noqa: T201


def _write(folder: Path, result: Mapping[str, Any], progress: Progress) -> None:
    from prb.errors import BadInput
    from prb.reporting.downstream_figures import write_correlation
    from prb.reporting.downstream_tables import correlation_sentences, correlation_tables
    from prb.reporting.format import latex, markdown
    from prb.runs import write_json

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror}") from None
    tables, sentences = list(correlation_tables(result)), correlation_sentences(result)
    listed = "\n".join(f"- {sentence}" for sentence in sentences)
    (folder / "table.md").write_text("\n".join([*map(markdown, tables), listed, ""]), "utf-8")
    (folder / "table.tex").write_text("\n".join(map(latex, tables)), "utf-8")
    write_json(folder / "correlation.json", {**result, "sentences": sentences})
    write_correlation(result, folder, progress)
