"""Scores of reward models as columns: from run folders of `prb evaluate`, `prb bon` and `prb ppo`.

Folders keep every item, so a column's uncertainty is found by drawing its clusters anew. All models answered the same
items, and one draw serves all columns on the same data, so what is shared between models and columns stays shared.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prb.analyse.best_of import curves
from prb.analyse.estimate import Floats
from prb.data.load import load
from prb.downstream.correlate_table import Column, Scores
from prb.errors import BadInput
from prb.store import CONFIG, SUMMARY, read_json, read_lines, read_outcomes

DRAWS = 2000
_CELLS = 1 << 22
Cells = dict[str, dict[str, list[float]]]
"""Model to cluster to the values of its items."""


@dataclass(frozen=True)
class Items:
    """What a column is the mean of."""

    name: str
    data: str
    """Fingerprint of the dataset: equal clusters of equal data are drawn together."""
    cells: Cells
    told: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """Value and standard error by model where the items cannot be told apart by cluster."""

    @property
    def models(self) -> Iterable[str]:
        return self.cells or self.told


def read_runs(
    bench: Sequence[str], downstream: Sequence[str], *, condition: str | None, best_of: int | None, seed: int
) -> Scores:
    ours = list(_merged(_benchmark(Path(folder), condition) for folder in bench))
    theirs = list(_merged(_downstream(Path(folder), best_of) for folder in downstream))
    names = tuple(dict.fromkeys(model for items in [*ours, *theirs] for model in items.models))
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
        both = [model for model in items.models if model in known.models]
        if both:
            raise BadInput(f"{both[0]!r} has two scores in {items.name!r}: leave one of the runs out")
        columns[items.name] = Items(known.name, known.data, known.cells | items.cells, known.told | items.told)
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
    return Items(f"{short(data['name'])}{split} ({wanted})", data["fingerprint"], cells)


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
        return _ppo(folder, summary)
    raise BadInput(f"{folder}: --downstream wants runs of `prb bon` or `prb ppo`")


def _best_of_n(folder: Path, settings: Mapping[str, Any], summary: Mapping[str, Any], best_of: int | None) -> Items:
    k = best_of or summary["n"]
    data = summary["dataset"]
    name = f"best of {k} on {short(data['name'])} ({summary['policy']['spec']}, {summary['condition']})"
    cluster_of = _clusters(settings, data["fingerprint"])
    if cluster_of is None:
        if k not in summary["ks"]:
            raise BadInput(
                f"{folder}: best of {k} is not in its summary, and its dataset cannot be found; it has {summary['ks']}"
            )
        at = summary["ks"].index(k)
        return Items(name, data["fingerprint"], {}, {r["model"]: _told(r["curve"][at]) for r in summary["results"]})
    cells: Cells = {}
    for model, pair, value in _picked(folder, summary["n"], k):
        cells.setdefault(model, {}).setdefault(cluster_of[pair], []).append(value)
    return Items(name, data["fingerprint"], cells)


def _clusters(settings: Mapping[str, Any], fingerprint: str) -> dict[str, str] | None:
    """Pair to cluster, from the dataset if it is still there and still the same."""
    try:
        dataset = load(settings["dataset"], split=settings["split"], skip_bad=settings["skip_bad"])
    except BadInput:
        return None
    if dataset.fingerprint != fingerprint:
        return None
    return dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))


def _told(point: Mapping[str, Any]) -> tuple[float, float | None]:
    """A value and, from its 95 % interval, about its standard error."""
    if point["value"] is None:
        return np.nan, None
    return point["value"], None if point["low"] is None else (point["high"] - point["low"]) / (2 * 1.96)


def _picked(folder: Path, n: int, k: int) -> Iterator[tuple[str, str, float]]:
    """Model, pair and expected grade of the best of k, for each query that was sampled, graded and scored whole."""
    text = {(line["pair"], line["n"]): line["text"] for line in read_lines(folder / "samples.jsonl")}
    grade_of = {(line["pair"], text[line["pair"], line["n"]]): line["score"] for line in _lines(folder, "grades.jsonl")}
    scores: dict[tuple[str, str], Floats] = {}
    for line in _lines(folder, "scores.jsonl"):
        scores.setdefault((line["model"], line["pair"]), np.full(n, np.nan))[line["n"]] = line["score"]
    for (model, pair), row in scores.items():
        grades = np.array([grade_of.get((pair, text.get((pair, i))), np.nan) for i in range(n)], dtype=np.float64)
        value = float(curves(row[None], grades[None], [k])[0, 0])
        if not np.isnan(value):
            yield model, pair, value


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    return (line for line in read_lines(folder / name) if line["score"] is not None)


def _ppo(folder: Path, summary: Mapping[str, Any]) -> Items:
    held_out = summary["held_out"]
    if not held_out["prompts"] or "grade" not in held_out:
        raise BadInput(f"{folder} has no graded held-out answers")
    cells: dict[str, list[float]] = {}
    for line in read_lines(folder / "answers.jsonl"):
        score = (line["grade"] or {}).get("score")
        if line["stage"] == "after" and score is not None:
            cells.setdefault(line["cluster"], []).append(score)
    data = summary["dataset"]
    name = f"PPO on {short(data['name'])} ({summary['policy']['spec']}, {summary['condition']})"
    return Items(name, data["fingerprint"], {summary["model"]["spec"]: cells})


def columns_of(tables: Sequence[Items], models: Sequence[str], seed: int = 0, draws: int = DRAWS) -> list[Column]:
    """The columns with their draws; each dataset's clusters are drawn once for all columns."""
    return [
        _told_column(items, models)
        if items.told
        else _drawn_column(items, models, _same_data(items, tables), seed, draws)
        for items in tables
    ]


def _same_data(items: Items, tables: Sequence[Items]) -> list[str]:
    alike = [other for other in tables if other.data == items.data]
    return sorted({cluster for other in alike for by_cluster in other.cells.values() for cluster in by_cluster})


def _told_column(items: Items, models: Sequence[str]) -> Column:
    told = [items.told.get(model, (np.nan, None)) for model in models]
    errors = np.array([np.nan if error is None else error for _, error in told], dtype=np.float64)
    return Column(items.name, np.array([v for v, _ in told]), None if np.isnan(errors).any() else errors)


def _drawn_column(items: Items, models: Sequence[str], clusters: Sequence[str], seed: int, draws: int) -> Column:
    cells = [[items.cells.get(model, {}).get(cluster, []) for model in models] for cluster in clusters]
    sums = np.array([[sum(cell) for cell in row] for row in cells])
    sizes = np.array([[len(cell) for cell in row] for row in cells], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        values = sums.sum(axis=0) / sizes.sum(axis=0)
    if len(clusters) < 2:
        return Column(items.name, values)
    rng = np.random.default_rng([seed, zlib.crc32(items.data.encode())])  # other data, other draws
    drawn = _redrawn(sums, sizes, values, rng, draws)
    return Column(items.name, values, drawn.std(axis=0, ddof=1), drawn)


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
