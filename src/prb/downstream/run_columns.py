"""Scores of reward models as columns, read from run folders of `prb evaluate`, `prb bon` and `prb ppo`.

Folders hold every item, so a column's uncertainty comes from resampling its clusters. One resample serves all models
and all columns on the same data, so what they share stays shared.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.downstream.bon import trust
from prb.downstream.ppo import ANSWERS, read_answers
from prb.downstream.stages import GRADES, SAMPLES, SCORES, STAGES, read_stage
from prb.downstream.tables import ScoreColumn, Scores
from prb.errors import BadInput
from prb.evaluation.outcomes import read_outcomes
from prb.registry import split_alias
from prb.runs import CONFIG, SUMMARY, read_identity, read_result
from prb.stats.best_of import curves
from prb.stats.estimate import Floats
from prb.summary import shown_condition

RESAMPLES = 2000
MAX_CELLS = 1 << 22
"""Resampling weights held in memory at once."""
IGNORED_SETTINGS = frozenset({"model", "condition", "dataset"})
"""Settings in which two runs of one column may differ; the data are compared by fingerprint."""
Cells = dict[str, dict[str, list[float]]]
"""Model → cluster → the values of its items."""


@dataclass(frozen=True)
class RunColumn:
    """A column as a run folder holds it: item by item."""

    name: str
    data: str
    """Fingerprint of the dataset; columns on equal data are resampled together."""
    cells: Cells
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run; runs that differ in one are not the same column."""
    note: str = ""


def read_runs(
    bench: Sequence[str], downstream: Sequence[str], *, condition: str | None, best_of: int | None, seed: int
) -> Scores:
    predictors = _merged(_benchmark(Path(folder), condition) for folder in bench)
    targets = _merged(_downstream(Path(folder), best_of) for folder in downstream)
    models = tuple(dict.fromkeys(model for column in [*predictors, *targets] for model in column.cells))
    columns = resampled([*predictors, *targets], models, seed)
    return Scores(models, tuple(columns[: len(predictors)]), tuple(columns[len(predictors) :]))


def _merged(read: Iterable[RunColumn]) -> list[RunColumn]:
    """Folders that hold different models on the same data are one column."""
    columns: dict[str, RunColumn] = {}
    for column in read:
        known = columns.setdefault(column.name, column)
        if known is column:
            continue
        if known.data != column.data:
            raise BadInput(f"two runs on {column.name!r} did not use the same data; correlate them one at a time")
        names = sorted({*known.settings, *column.settings})
        differing = [name for name in names if known.settings.get(name) != column.settings.get(name)]
        if differing:
            raise BadInput(
                f"two runs on {column.name!r} differ in {', '.join(differing)}; correlate them one at a time"
            )
        both = [model for model in column.cells if model in known.cells]
        if both:
            raise BadInput(f"{both[0]!r} has two scores in {column.name!r}: leave one of the runs out")
        columns[column.name] = replace(known, cells=known.cells | column.cells)
    return list(columns.values())


def _finished(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Verb, settings and summary of a run."""
    if not (folder / CONFIG).exists():
        raise BadInput(f"{folder} is not a run: it has no {CONFIG}")
    config = read_identity(folder)
    verb = next((verb for verb in ("evaluate", "bon", "ppo") if verb in config), None)
    if verb is None:
        raise BadInput(f"{folder} is not a run of `prb evaluate`, `prb bon` or `prb ppo`")
    return verb, config[verb], read_result(folder, SUMMARY)


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}


def short_name(dataset: str) -> str:
    """A dataset's name without the folders its file is in."""
    if dataset.startswith("hub:"):
        return dataset
    spec, _, path = dataset.partition("?path=")
    return f"{spec} {Path(path).name}" if path else Path(dataset).name


def _benchmark(folder: Path, condition: str | None) -> RunColumn:
    verb, settings, summary = _finished(folder)
    if verb != "evaluate" or summary["task"] != "pairs":
        raise BadInput(f"{folder}: --bench must be a run of `prb evaluate` on pairs")
    conditions = settings["condition"]
    condition = condition or shown_condition(conditions)
    if condition not in conditions:
        raise BadInput(f"{folder} has no condition {condition!r}; it has {', '.join(conditions)}")
    cells: Cells = {split_alias(model)[0]: {} for model in settings["model"]}
    outcomes = read_outcomes(folder)
    for (model, shown), column in outcomes.of.items():
        if shown == condition:
            for cluster, credit in zip(outcomes.clusters, column.credit.tolist(), strict=True):
                if not math.isnan(credit):
                    cells[model].setdefault(cluster, []).append(credit)
    data = summary["dataset"]
    split = f" {data['split']}" if data["split"] else ""
    name = f"{short_name(data['name'])}{split} ({condition})"
    return RunColumn(name, data["fingerprint"], cells, _comparable(settings))


def _downstream(folder: Path, best_of: int | None) -> RunColumn:
    verb, settings, summary = _finished(folder)
    if verb not in ("bon", "ppo"):
        raise BadInput(f"{folder}: --downstream must be a run of `prb bon` or `prb ppo`")
    data, where = summary["dataset"], f"({summary['policy']['spec']}, {summary['condition']})"
    comparable = _comparable(settings)
    if verb == "ppo":
        name, cells = f"PPO on {short_name(data['name'])} {where}", _ppo_cells(folder, summary)
    else:
        k = best_of or summary["n"]
        name, cells = f"best of {k} on {short_name(data['name'])} {where}", _best_of_cells(folder, summary, k)
        if settings["policy"] is None:  # answers of a file, whose name does not say what it holds
            comparable["candidates"] = summary["policy"]["fingerprint"]
    return RunColumn(name, data["fingerprint"], cells, comparable, trust(summary))


def _best_of_cells(folder: Path, summary: Mapping[str, Any], k: int) -> Cells:
    """The expected grade of the best of k, for each query that was sampled, graded and scored completely."""
    if "clusters" not in summary:
        raise BadInput(f"{folder} was summarized by an older prb: run its command again, nothing is sampled again")
    for name in STAGES:
        _require(folder, name)
    samples, scores, grades = (read_stage(folder / name, STAGES[name]) for name in (SAMPLES, SCORES, GRADES))
    n = summary["n"]
    text = {place: line["text"] for place, line in samples.items()}
    if lost := [pair for pair in summary["clusters"] if any((pair, i) not in text for i in range(n))]:
        raise _incomplete(folder, SAMPLES, lost)
    grade_of = {(pair, text.get((pair, number))): line["score"] for (pair, number), line in grades.items()}
    usable = [pair for pair in summary["clusters"] if all(text[pair, i] is not None for i in range(n))]
    if lost := [pair for pair in usable if any((pair, text[pair, i]) not in grade_of for i in range(n))]:
        raise _incomplete(folder, GRADES, lost)
    models = [result["model"] for result in summary["results"]]
    if lost := [pair for pair in usable if any((m, pair, i) not in scores for m in models for i in range(n))]:
        raise _incomplete(folder, SCORES, lost)
    rows: dict[tuple[str, str], Floats] = {}
    for (model, pair, number), line in scores.items():
        rows.setdefault((model, pair), np.full(n, np.nan))[number] = line["score"]
    cells: Cells = {model: {} for model in models}
    for (model, pair), row in rows.items():
        if model not in cells:  # added after the summary, so perhaps not scored completely
            continue
        graded = np.array([grade_of.get((pair, text.get((pair, i)))) for i in range(n)], dtype=np.float64)
        value = float(curves(row[None], graded[None], [k])[0, 0])
        if not np.isnan(value):
            cells[model].setdefault(summary["clusters"][pair], []).append(value)
    return cells


def _ppo_cells(folder: Path, summary: Mapping[str, Any]) -> Cells:
    held_out = summary["held_out"]
    if not held_out["prompts"] or "grade" not in held_out:
        raise BadInput(f"{folder} has no graded held-out answers")
    cells: dict[str, list[float]] = {}
    answers = [a for (stage, _), a in read_answers(_require(folder, ANSWERS)).items() if stage == "after"]
    if len(answers) < held_out["prompts"]:
        raise BadInput(f"{folder / ANSWERS} lacks answers to held-out prompts; run its command again")
    for answer in answers:
        if answer.grade is not None and answer.grade.score is not None:
            cells.setdefault(answer.cluster, []).append(answer.grade.score)
    return {summary["model"]["spec"]: cells}


def _incomplete(folder: Path, name: str, pairs: Sequence[str]) -> BadInput:
    return BadInput(f"{folder / name} lacks lines of {len(pairs)} rows, such as {pairs[0]!r}; run its command again")


def _require(folder: Path, name: str) -> Path:
    if not (folder / name).exists():
        raise BadInput(f"{folder} is incomplete: it has no {name}")
    return folder / name


def resampled(
    columns: Sequence[RunColumn], models: Sequence[str], seed: int = 0, draws: int = RESAMPLES
) -> list[ScoreColumn]:
    """The columns with their resamples; the clusters of a dataset are drawn once for all columns on it."""
    clusters: dict[str, set[str]] = {}
    for column in columns:
        clusters.setdefault(column.data, set()).update(c for by_cluster in column.cells.values() for c in by_cluster)
    return [_resampled(column, models, sorted(clusters[column.data]), seed, draws) for column in columns]


def _resampled(column: RunColumn, models: Sequence[str], clusters: Sequence[str], seed: int, draws: int) -> ScoreColumn:
    """Means over clusters drawn with replacement; a draw without any item of a model repeats its value."""
    cells = [[column.cells.get(model, {}).get(cluster, []) for model in models] for cluster in clusters]
    sums = np.array([[sum(cell) for cell in row] for row in cells])
    sizes = np.array([[len(cell) for cell in row] for row in cells], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        values = sums.sum(axis=0) / sizes.sum(axis=0)
    count = len(clusters)
    if count < 2:
        return ScoreColumn(column.name, values, note=column.note)
    rng = np.random.default_rng([seed, zlib.crc32(column.data.encode())])  # other data, other draws
    rows, step = [], max(1, MAX_CELLS // count)
    for start in range(0, draws, step):
        weights = rng.multinomial(count, np.full(count, 1 / count), size=min(step, draws - start)).astype(np.float64)
        total, size = weights @ sums, weights @ sizes
        rows.append(np.where(size > 0, total / np.where(size > 0, size, 1), values))
    drawn = np.concatenate(rows)
    return ScoreColumn(column.name, values, drawn.std(axis=0, ddof=1), drawn, column.note)
