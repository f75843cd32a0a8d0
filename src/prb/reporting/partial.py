"""Runs under way: what they have done so far as a report of its own, and what is still missing.

Models are compared on the same rows. So the report shows the models that are finished, or, while there is none, those
that have begun on the rows that all of them have done. The others are in the table of progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prb.data.load import Dataset
from prb.errors import BadInput, PrbError
from prb.evaluation.config import EvaluateConfig, shown_condition
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.run import load_rows
from prb.evaluation.summary import summarize
from prb.registry import split_alias
from prb.reporting.format import Table, percent
from prb.reporting.gather import EvaluationRun
from prb.runs import CONFIG, OUTCOMES, SUMMARY, read_identity, read_lines

COLUMNS = ("run", "model", "rows done", "rows missing", "failed", "accuracy so far, %")


@dataclass
class Done:
    """Of one model: lines by condition, and credit under the condition that is shown."""

    lines: dict[str, int]
    failed: int = 0
    credit: float = 0.0
    credited: int = 0

    @property
    def rows(self) -> int:
        """Rows that have an outcome under every condition."""
        return min(self.lines.values())

    def add(self, line: Mapping[str, Any], condition: str) -> None:
        self.lines[line["condition"]] += 1
        self.failed += line["failure"] is not None
        if line["condition"] == condition and line["credit"] is not None:
            self.credit += line["credit"]
            self.credited += 1


def is_under_way(place: Path) -> bool:
    """Whether a folder is an evaluation that has not finished."""
    return (place / CONFIG).exists() and not (place / SUMMARY).exists() and "evaluate" in read_identity(place)


def read_partial(folder: Path) -> tuple[EvaluationRun | None, Table]:
    """What a run has done so far, if it is enough to report, and its progress."""
    config = read_identity(folder)
    settings = EvaluateConfig(**EvaluateConfig.restore(config))
    dataset = _dataset(folder, config, settings)
    tallies = _tallies(folder, settings)
    total = len(dataset)
    done = {model: tally.rows for model, tally in tallies.items()}
    shown = [model for model, rows in done.items() if rows == total] or [model for model, rows in done.items() if rows]
    table = _table(folder, settings, tallies, total, shown)
    if not shown:
        return None, table
    rows = min(done[model] for model in shown)
    specs = tuple(spec for spec in settings.models if split_alias(spec)[0] in shown)
    part = replace(settings, model=specs)
    first = dataset.first(rows) if rows < total else dataset
    outcomes = Outcomes(first.index.ids, [(m, c) for m in shown for c in settings.condition], details=True)
    taken = dict.fromkeys(outcomes.of, 0)
    for number, line in enumerate(_lines(folder), 1):
        cell = line["model"], line["condition"]
        if cell in taken and taken[cell] < rows:
            taken[cell] += 1
            outcomes.read(line, f"{folder / OUTCOMES}, line {number}")
    summary, _ = summarize(part, first, outcomes)
    shortened = {**config, "evaluate": {**config["evaluate"], "model": list(specs)}}
    return EvaluationRun(folder, shortened, summary, outcomes, first), table


def _dataset(folder: Path, config: Mapping[str, Any], settings: EvaluateConfig) -> Dataset:
    try:
        dataset = load_rows(settings)
    except (PrbError, OSError) as error:
        raise BadInput(f"{folder} is not finished, and its dataset cannot be read: {error}") from None
    if dataset.fingerprint != config["dataset"]["fingerprint"]:
        raise BadInput(f"{folder} is not finished, and {settings.dataset} has changed since it began")
    return dataset


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    return read_lines(folder / OUTCOMES) if (folder / OUTCOMES).exists() else iter(())


def _tallies(folder: Path, settings: EvaluateConfig) -> dict[str, Done]:
    tallies = {model: Done(dict.fromkeys(settings.condition, 0)) for model in settings.names}
    condition = shown_condition(settings.condition)
    for number, line in enumerate(_lines(folder), 1):
        try:
            tallies[line["model"]].add(line, condition)
        except (KeyError, TypeError):
            raise BadInput(f"{folder / OUTCOMES}, line {number}: not an outcome of this run") from None
    return tallies


def _table(
    folder: Path, settings: EvaluateConfig, tallies: Mapping[str, Done], total: int, shown: Sequence[str]
) -> Table:
    rows = []
    for model, tally in tallies.items():
        accuracy = percent(tally.credit / tally.credited if tally.credited else None)
        cells = (f"{tally.rows:,} of {total:,}", f"{total - tally.rows:,}", f"{tally.failed:,}", accuracy)
        rows.append((folder.name, model, *cells))
    complete = [model for model in shown if tallies[model].rows == total]
    if complete:
        what = f"The report shows the models that are finished: {', '.join(complete)}."
    elif shown:
        what = f"The report shows the first {min(tallies[m].rows for m in shown):,} rows; numbers will change."
    else:
        what = "Nothing can be shown yet."
    note = f"{what} Accuracy so far is under {shown_condition(settings.condition)}."
    return Table("Under way", COLUMNS, tuple(rows), (note,))


def rebuild_while_growing(runs: Sequence[Path], build: Callable[[], Path], *, every: float) -> Path:
    """Build, and build again whenever files of the runs have changed, until all of them are finished."""
    while True:
        seen, under_way = _sizes(runs), any(is_under_way(run) for run in runs)
        index = build()
        if not under_way:
            return index
        while _sizes(runs) == seen:
            time.sleep(every)


def _sizes(runs: Sequence[Path]) -> list[tuple[int, int] | None]:
    files = [run / name for run in runs for name in (CONFIG, OUTCOMES, SUMMARY)]
    stats = [file.stat() if file.exists() else None for file in files]
    return [(stat.st_size, stat.st_mtime_ns) if stat else None for stat in stats]
