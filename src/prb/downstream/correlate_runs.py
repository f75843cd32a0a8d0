"""Scores of reward models as columns: from run folders of `prb evaluate`, `prb bon` and `prb ppo`.

Folders keep every item, so a column's uncertainty is found by drawing its clusters anew. All models answered the same
items, and one draw serves all columns on the same data, so what is shared between models and columns stays shared.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.downstream.correlate_table import Column, Scores
from prb.downstream.curves import trust
from prb.errors import BadInput
from prb.runs import CONFIG, SUMMARY, read_json, read_lines, read_outcomes
from prb.stats.best_of import curves
from prb.stats.estimate import Floats

DRAWS = 2000
_CELLS = 1 << 22
FREE = frozenset({"model", "condition", "dataset"})
"""Settings in which two runs may differ and still make one column; the data are compared by what is in them."""
Cells = dict[str, dict[str, list[float]]]
"""Model to cluster to the values of its items."""


@dataclass(frozen=True)
class Items:
    """What a column is the mean of."""

    name: str
    data: str
    """Fingerprint of the dataset: equal clusters of equal data are drawn together."""
    cells: Cells
    how: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings: columns of runs that differ in one are not the same column."""
    note: str = ""
    """How far the numbers can be trusted."""


def read_runs(
    bench: Sequence[str], downstream: Sequence[str], *, condition: str | None, best_of: int | None, seed: int
) -> Scores:
    ours = list(_merged(_benchmark(Path(folder), condition) for folder in bench))
    theirs = list(_merged(_downstream(Path(folder), best_of) for folder in downstream))
    names = tuple(dict.fromkeys(model for items in [*ours, *theirs] for model in items.cells))
    columns = columns_of([*ours, *theirs], names, seed)
    return Scores(names, tuple(columns[: len(ours)]), tuple(columns[len(ours) :]))


def _merged(found: Iterable[Items]) -> Iterator[Items]:
    """Folders with some models each on the same data are one column."""
    columns: dict[str, Items] = {}
    for items in found:
        known = columns.setdefault(items.name, items)
        if known is items:
            continue
        if known.data != items.data:
            raise BadInput(f"two runs on {items.name!r} did not use the same data; correlate them one at a time")
        other = sorted(name for name in {*known.how, *items.how} if known.how.get(name) != items.how.get(name))
        if other:
            raise BadInput(f"two runs on {items.name!r} differ in {', '.join(other)}; correlate them one at a time")
        both = [model for model in items.cells if model in known.cells]
        if both:
            raise BadInput(f"{both[0]!r} has two scores in {items.name!r}: leave one of the runs out")
        columns[items.name] = replace(known, cells=known.cells | items.cells)
    return iter(columns.values())


def _finished(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind, settings and summary of a run."""
    if not (folder / CONFIG).exists():
        raise BadInput(f"{folder} is not a run: it has no {CONFIG}")
    config = read_json(folder / CONFIG)
    kind = next((kind for kind in ("evaluate", "bon", "ppo") if kind in config), None)
    if kind is None:
        raise BadInput(f"{folder} is no run of `prb evaluate`, `prb bon` or `prb ppo`")
    if not (folder / SUMMARY).exists():
        raise BadInput(f"{folder} is not finished: it has no {SUMMARY}; the command that made it goes on from there")
    return kind, config[kind], read_json(folder / SUMMARY)


def _benchmark(folder: Path, condition: str | None) -> Items:
    kind, settings, summary = _finished(folder)
    if kind != "evaluate" or summary["task"] != "pairs":
        raise BadInput(f"{folder}: --bench wants runs of `prb evaluate` on pairs")
    conditions = settings["condition"]
    wanted = condition or ("profile" if "profile" in conditions else conditions[0])
    if wanted not in conditions:
        raise BadInput(f"{folder} has no condition {wanted!r}; it has {', '.join(conditions)}")
    cells: Cells = {model: {} for model in settings["model"]}
    for line in read_outcomes(folder):
        if line["condition"] == wanted and line["credit"] is not None:
            cells[line["model"]].setdefault(line["cluster"], []).append(line["credit"])
    data = summary["dataset"]
    split = f" {data['split']}" if data["split"] else ""
    return Items(f"{short(data['name'])}{split} ({wanted})", data["fingerprint"], cells, _how(settings))


def short(name: str) -> str:
    """A dataset's name without the folders its file is in."""
    if name.startswith("hub:"):
        return name
    spec, _, path = name.partition("?path=")
    return f"{spec} {Path(path).name}" if path else Path(name).name


def _downstream(folder: Path, best_of: int | None) -> Items:
    kind, settings, summary = _finished(folder)
    if kind == "bon":
        return _best_of_n(folder, settings, summary, best_of)
    if kind == "ppo":
        return _ppo(folder, settings, summary)
    raise BadInput(f"{folder}: --downstream wants runs of `prb bon` or `prb ppo`")


def _best_of_n(folder: Path, settings: Mapping[str, Any], summary: Mapping[str, Any], best_of: int | None) -> Items:
    k, data = best_of or summary["n"], summary["dataset"]
    if "clusters" not in summary:
        raise BadInput(f"{folder} was summed up by an older prb: run its command again, nothing is sampled anew")
    name = f"best of {k} on {short(data['name'])} ({summary['policy']['spec']}, {summary['condition']})"
    # a model that joined after the summary may be scored in part
    cells: Cells = {result["model"]: {} for result in summary["results"]}
    for model, pair, value in _picked(folder, summary["n"], k):
        if model in cells:
            cells[model].setdefault(summary["clusters"][pair], []).append(value)
    return Items(name, data["fingerprint"], cells, _how(settings), trust(summary))


def _picked(folder: Path, n: int, k: int) -> Iterator[tuple[str, str, float]]:
    """Model, pair and expected grade of the best of k, for each query that was sampled, graded and scored whole."""
    text = {(line["pair"], line["n"]): line["text"] for line in _lines(folder, "samples.jsonl")}
    graded = _lines(folder, "grades.jsonl")
    grade_of = {(line["pair"], text[line["pair"], line["n"]]): line["score"] for line in graded}
    scores: dict[tuple[str, str], Floats] = {}
    for line in _lines(folder, "scores.jsonl"):
        scores.setdefault((line["model"], line["pair"]), np.full(n, np.nan))[line["n"]] = line["score"]
    for (model, pair), row in scores.items():
        grades = np.array([grade_of.get((pair, text.get((pair, i)))) for i in range(n)], dtype=np.float64)
        value = float(curves(row[None], grades[None], [k])[0, 0])
        if not np.isnan(value):
            yield model, pair, value


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    if not (folder / name).exists():
        raise BadInput(f"{folder} is no whole run: it has no {name}")
    return read_lines(folder / name)


def _how(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in FREE}


def _ppo(folder: Path, settings: Mapping[str, Any], summary: Mapping[str, Any]) -> Items:
    held_out = summary["held_out"]
    if not held_out["prompts"] or "grade" not in held_out:
        raise BadInput(f"{folder} has no graded held-out answers")
    cells: dict[str, list[float]] = {}
    for line in _lines(folder, "answers.jsonl"):
        score = (line["grade"] or {}).get("score")
        if line["stage"] == "after" and score is not None:
            cells.setdefault(line["cluster"], []).append(score)
    data = summary["dataset"]
    name = f"PPO on {short(data['name'])} ({summary['policy']['spec']}, {summary['condition']})"
    return Items(name, data["fingerprint"], {summary["model"]["spec"]: cells}, _how(settings), trust(summary))


def columns_of(tables: Sequence[Items], models: Sequence[str], seed: int = 0, draws: int = DRAWS) -> list[Column]:
    """The columns with their draws; each dataset's clusters are drawn once for all columns."""
    return [_drawn_column(items, models, _same_data(items, tables), seed, draws) for items in tables]


def _same_data(items: Items, tables: Sequence[Items]) -> list[str]:
    alike = [other for other in tables if other.data == items.data]
    return sorted({cluster for other in alike for by_cluster in other.cells.values() for cluster in by_cluster})


def _drawn_column(items: Items, models: Sequence[str], clusters: Sequence[str], seed: int, draws: int) -> Column:
    cells = [[items.cells.get(model, {}).get(cluster, []) for model in models] for cluster in clusters]
    sums = np.array([[sum(cell) for cell in row] for row in cells])
    sizes = np.array([[len(cell) for cell in row] for row in cells], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        values = sums.sum(axis=0) / sizes.sum(axis=0)
    if len(clusters) < 2:
        return Column(items.name, values, note=items.note)
    rng = np.random.default_rng([seed, zlib.crc32(items.data.encode())])  # other data, other draws
    drawn = _redrawn(sums, sizes, values, rng, draws)
    return Column(items.name, values, drawn.std(axis=0, ddof=1), drawn, items.note)


def _redrawn(sums: Floats, sizes: Floats, values: Floats, rng: np.random.Generator, draws: int) -> Floats:
    """Columns of means over clusters drawn with replacement; a draw without any item of a model repeats its value."""
    count = len(sums)
    rows = []
    step = max(1, _CELLS // count)
    for start in range(0, draws, step):
        weights = rng.multinomial(count, np.full(count, 1 / count), size=min(step, draws - start)).astype(np.float64)
        total, size = weights @ sums, weights @ sizes
        rows.append(np.where(size > 0, total / np.where(size > 0, size, 1), values))
    return np.concatenate(rows)
