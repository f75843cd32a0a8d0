"""From the lines of a best-of-N run to `summary.json`. Nothing here depends on the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from prb.stats.best_of import curves, headroom, kl_bound, overoptimization
from prb.stats.estimate import Floats, Ints, average, codes
from prb.stats.paired import correct, difference

Line = Mapping[str, Any]
Row = Sequence[Line] | None
"""One line per sample of a query; `None` where a sample failed, so that there was nothing to score or grade."""


@dataclass(frozen=True)
class Results:
    """The lines of a run, one row per query, in dataset order."""

    clusters: list[str]
    samples: list[list[Line]]
    grades: list[Row]
    scores: dict[str, list[Row]]


def summarize(results: Results, about: Mapping[str, Any], *, ks: Sequence[int]) -> dict[str, Any]:
    n, seed = about["n"], about["seed"]
    clusters, grades = codes(results.clusters), _table(results.grades, n)
    usable = ~np.isnan(grades).any(axis=1)
    sampled = [all(line["text"] is not None for line in row) for row in results.samples]
    random, oracle = curves(np.zeros_like(grades), grades, ks), curves(grades, grades, ks)
    picked = {model: curves(_table(rows, n), grades, ks) for model, rows in results.scores.items()}

    def points(curve: Floats) -> list[dict[str, Any]]:
        estimates = [average(column, clusters[usable]) for column in curve[usable].T]
        return [
            {"k": k, "value": e.value, "low": e.low, "high": e.high, "n": e.n, "failed": e.failed}
            for k, e in zip(ks, estimates, strict=True)
        ]

    return {
        **about,
        "queries": {
            "rows": len(sampled),
            "clusters": len(np.unique(clusters)),
            "sampling_failed": sampled.count(False),
            "grading_failed": sum(sampled) - int(usable.sum()),
            "used": int(usable.sum()),
            "failures": dict(sorted((_failures(results.samples) + _failures(results.grades)).items())),
        },
        "samples": _count_samples(results.samples, usable),
        "ks": list(ks),
        "kl_bound": [kl_bound(k) for k in ks],
        "random": points(random),
        "oracle": points(oracle),
        "results": [
            {
                "model": model,
                "curve": points(curve),
                "headroom": [
                    {"k": k, **headroom(got, low, high, clusters, seed=seed)}
                    for k, got, low, high in zip(ks, curve.T, random.T, oracle.T, strict=True)
                ],
                "bend": overoptimization(curve, ks, clusters, seed=seed),
                "failures": dict(_failures(results.scores[model])),
                "cut_posts": sum(max(line["cut"] for line in row) for row in results.scores[model] if row),
            }
            for model, curve in picked.items()
        ],
        "contrasts": _contrasts({model: curve[:, -1] for model, curve in picked.items()}, ks[-1], clusters, seed),
    }


def _table(rows: Sequence[Row], n: int) -> Floats:
    table = np.full((len(rows), n), np.nan)
    for at, row in enumerate(rows):
        if row is not None:
            table[at] = [np.nan if line["score"] is None else line["score"] for line in row]
    return table


def _count_samples(rows: Sequence[Sequence[Line]], usable: Any) -> dict[str, Any]:
    lines = [line for row in rows for line in row]
    distinct = [len({line["text"] for line in row}) for row, use in zip(rows, usable, strict=True) if use]
    return {
        "drawn": len(lines),
        "failed": sum(line["text"] is None for line in lines),
        "truncated": sum(line["truncated"] for line in lines),
        "distinct_of_n": float(np.mean(distinct)) if distinct else None,
        "tokens": sum(line["tokens"] for line in lines),
        "cost": sum(line["cost"] for line in lines),
    }


def _failures(rows: Sequence[Row]) -> Counter[str]:
    """Queries by their first failure; the detail stays in the lines."""
    firsts = (next((line["failure"] for line in row or () if line["failure"]), None) for row in rows)
    return Counter(first.partition(": ")[0] for first in firsts if first)


def _contrasts(ends: Mapping[str, Floats], k: int, clusters: Ints, seed: int) -> list[dict[str, Any]]:
    """All model pairs at the largest k, paired by query, with Holm's correction over all of them."""
    contrasts: list[dict[str, Any]] = [
        {"model_a": a, "model_b": b, "k": k, **difference(ends[a], ends[b], clusters, seed=seed).as_dict()}
        for a, b in combinations(ends, 2)
    ]
    correct(contrasts)
    return [{"p_holm": None, **row} for row in contrasts]


def trust(summary: Mapping[str, Any]) -> str:
    """Whose grades these are and how far they can be trusted; printed wherever they are shown."""
    grader = summary["grader"]
    return f"Graded by {grader['spec']}. {grader['validity'] or 'Its validity has not been measured.'}"
