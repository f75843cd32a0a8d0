"""Two runs on the same rows, paired: is the difference more than chance?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from prb.config import Place, Positional, Settings, config
from prb.errors import BadInput
from prb.evaluation.outcomes import Cell, Outcomes, read_outcomes
from prb.stats.estimate import Floats, Ints, codes, is_exact
from prb.stats.paired import UNTESTED, correct, difference, flip_rate
from prb.summary import Paired, Summary

SEED = 0
"""Fixes the draws where there are too many clusters to enumerate."""


@config
class CompareConfig(Settings):
    """Compare two runs pair by pair: every model and condition they share, or one model of each."""

    run_a: Positional[Place]
    """A run folder."""
    run_b: Positional[Place]
    """Another run folder, or the same one with --model-a and --model-b."""
    model_a: str | None = None
    """Which model of the first run."""
    model_b: str | None = None
    """Which model of the second run."""


class TwoModels(Paired):
    """Two models under one condition."""

    condition: str
    model_a: str
    model_b: str
    accuracy_a: float | None
    accuracy_b: float | None
    changed_sides: float | None
    only_in_one: int


class ComparisonSummary(Struct, kw_only=True):
    """What `compare` returns."""

    a: str
    b: str
    same_data: bool
    comparisons: list[TwoModels]


def compare(config: CompareConfig) -> dict[str, Any]:
    (a, summary_a), (b, summary_b) = _read_run(config.run_a), _read_run(config.run_b)
    exact_a, exact_b = (
        {(result.model, result.condition) for result in summary.pairs if is_exact(result.accuracy)}
        for summary in (summary_a, summary_b)
    )
    place = {pair: n for n, pair in enumerate(b.pairs)}
    common = [(n, place[pair]) for n, pair in enumerate(a.pairs) if pair in place]
    in_a, in_b = np.array(common, dtype=np.int64).reshape(-1, 2).T
    clusters = codes(a.clusters)[in_a]
    only_in_one = len(a.pairs) + len(b.pairs) - 2 * len(common)
    rows: list[dict[str, Any]] = []
    for left, right in _matches(config, a, b):
        x, y = a.of[left].credit[in_a], b.of[right].credit[in_b]
        # two user-blind models are at ½ by construction, so on the same rows their difference is 0
        exact = left in exact_a and right in exact_b and not only_in_one
        about = {"condition": left[1], "model_a": left[0], "model_b": right[0]}
        paired = compare_credits(x, y, clusters, exact=exact, seed=SEED)
        rows.append({**about, **paired, "only_in_one": only_in_one})
    if not rows:
        raise BadInput(
            f"nothing to compare: {config.run_a} has {_listed(a)}; {config.run_b} has {_listed(b)}. "
            "Name one model of each with --model-a and --model-b"
        )
    if not any(row["n"] for row in rows):
        raise BadInput(f"nothing to compare: no row was answered in both {config.run_a} and {config.run_b}")
    correct(rows)
    same_data = summary_a.dataset.fingerprint == summary_b.dataset.fingerprint
    return {"a": str(config.run_a), "b": str(config.run_b), "same_data": same_data, "comparisons": rows}


def compare_credits(x: Floats, y: Floats, clusters: Ints, *, exact: bool, seed: int) -> dict[str, Any]:
    """Two models on the rows that both answered; `exact` if they cannot differ. Holm's correction is the caller's.

    In a single cluster, as of votes, nothing can be tested: outcomes do not say which rows share a question.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    tested = difference(x, y, clusters, exact=exact, seed=seed).as_dict()
    if not exact and both.sum() > 1 and len(np.unique(clusters[both])) == 1:
        tested |= {"p": None, "low": None, "high": None, "test": UNTESTED, "smallest_detectable": None}
    return {
        "accuracy_a": float(x[both].mean()) if both.any() else None,
        "accuracy_b": float(y[both].mean()) if both.any() else None,
        **tested,
        "p_holm": None,
        "changed_sides": flip_rate(x, y),
    }


def _read_run(folder: Path) -> tuple[Outcomes, Summary]:
    """An unfinished run has no summary, and would be compared on the rows it has: it is refused."""
    outcomes, summary = read_outcomes(folder), Summary.of_run(folder)
    if summary.task == "ratings":
        raise BadInput(f"{folder} holds ratings; compare works on pairs")
    return outcomes, summary


def _matches(config: CompareConfig, a: Outcomes, b: Outcomes) -> Iterator[tuple[Cell, Cell]]:
    """The same condition on both sides; the named models, the only ones, or those both runs have."""
    sides = (a, config.model_a, config.run_a), (b, config.model_b, config.run_b)
    for outcomes, model, folder in sides:
        if model is not None and model not in outcomes.models:
            raise BadInput(f"{folder} has no model {model!r}; it has {_listed(outcomes)}")
    left, right = (outcomes.models if model is None else [model] for outcomes, model, _ in sides)
    named = bool(config.model_a or config.model_b) or len(left) == len(right) == 1
    for model, condition in a.of:
        for other, same in b.of:
            if condition == same and model in left and other in right and (named or model == other):
                yield (model, condition), (other, same)


def _listed(outcomes: Outcomes) -> str:
    return ", ".join(sorted(outcomes.models))
