"""Two runs on the same rows, paired: is the difference more than chance?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
from msgspec import Struct

from prb.config import Place, Positional, Settings, config
from prb.errors import BadInput
from prb.evaluation.outcomes import read_outcomes
from prb.stats.estimate import Floats, Ints, codes, is_exact
from prb.stats.paired import UNTESTED, corrected, difference, flip_rate
from prb.summary import METRICS, Paired, Summary

SEED = 0
"""Fixes the draws where there are too many clusters to enumerate."""


@config
class CompareConfig(Settings):
    """Compare two runs pair by pair: every model and condition they share; of a run and itself, or of runs that
    share no model, every two models."""

    run_a: Positional[Place]
    """A run folder."""
    run_b: Positional[Place]
    """Another run folder, or the same one."""


class TwoValues(Struct):
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModels(Paired):
    condition: str
    model_a: str
    model_b: str
    accuracy_a: float | None
    accuracy_b: float | None
    changed_sides: float | None
    only_in_one: int
    metrics: dict[str, TwoValues] = field(default_factory=dict)
    """All other metrics that are columns of tables, each over all rows of its own run. No test compares them."""


class ComparisonSummary(Struct, kw_only=True):
    a: str
    b: str
    same_data: bool
    comparisons: list[TwoModels]


def compare(config: CompareConfig) -> dict[str, Any]:
    a, b = read_outcomes(config.run_a), read_outcomes(config.run_b)
    # an unfinished run has no summary, and would be compared on the rows it has: it is refused
    summary_a, summary_b = Summary.of_run(config.run_a), Summary.of_run(config.run_b)
    for folder, summary in ((config.run_a, summary_a), (config.run_b, summary_b)):
        if summary.task == "ratings":
            raise BadInput(f"{folder} holds ratings; compare works on pairs")
    exact_a, exact_b = (
        {(result.model, result.condition) for result in summary.pairs if is_exact(result.accuracy)}
        for summary in (summary_a, summary_b)
    )
    place = {pair: n for n, pair in enumerate(b.pairs)}
    common = [(n, place[pair]) for n, pair in enumerate(a.pairs) if pair in place]
    in_a, in_b = np.array(common, dtype=np.int64).reshape(-1, 2).T
    clusters = codes(a.clusters)[in_a]
    only_in_one = len(a.pairs) + len(b.pairs) - 2 * len(common)
    # the same condition on both sides; models that both runs have, else every two
    itself = config.run_a.resolve() == config.run_b.resolve()
    shared = [] if itself else [(model, model) for model in a.models if model in b.models]
    models = shared or (combinations(a.models, 2) if itself else product(a.models, b.models))
    rows: list[dict[str, Any]] = []
    for (model_a, model_b), condition in product(models, dict.fromkeys(condition for _, condition in a.of)):
        left, right = (model_a, condition), (model_b, condition)
        if left not in a.of or right not in b.of:
            continue
        x, y = a.of[left].credit[in_a], b.of[right].credit[in_b]
        # two user-blind models are at ½ by construction, so on the same rows their difference is 0
        exact = left in exact_a and right in exact_b and not only_in_one
        about = {"condition": condition, "model_a": model_a, "model_b": model_b}
        of_a, of_b = _values(summary_a, *left), _values(summary_b, *right)
        keys = [key for key, metric in METRICS.items() if metric.column and (key in of_a or key in of_b)]
        metrics = {key: {"a": of_a.get(key), "b": of_b.get(key)} for key in keys}
        paired = compare_credits(x, y, clusters, exact=exact, seed=SEED)
        rows.append({**about, **paired, "only_in_one": only_in_one, "metrics": metrics})
    if not rows:
        raise BadInput(f"nothing to compare: {config.run_a} and {config.run_b} share no condition, or hold one model")
    if not any(row["n"] for row in rows):
        raise BadInput(f"nothing to compare: no row was answered in both {config.run_a} and {config.run_b}")
    same_data = summary_a.dataset.fingerprint == summary_b.dataset.fingerprint
    return {"a": str(config.run_a), "b": str(config.run_b), "same_data": same_data, "comparisons": corrected(rows)}


def compare_credits(x: Floats, y: Floats, clusters: Ints, *, exact: bool, seed: int) -> dict[str, Any]:
    """Two models on the rows that both answered; `exact` if they cannot differ. Holm's correction is the caller's.

    In a single cluster, as of votes, nothing can be tested: outcomes do not say which rows share a question.
    """
    both = ~(np.isnan(x) | np.isnan(y))
    tested = asdict(difference(x, y, clusters, exact=exact, seed=seed))
    if not exact and both.sum() > 1 and len(np.unique(clusters[both])) == 1:
        tested |= {"p": None, "low": None, "high": None, "test": UNTESTED, "smallest_detectable": None}
    return {
        "accuracy_a": float(x[both].mean()) if both.any() else None,
        "accuracy_b": float(y[both].mean()) if both.any() else None,
        **tested,
        "changed_sides": flip_rate(x, y),
    }


def _values(summary: Summary, model: str, condition: str) -> dict[str, float]:
    """Of every metric under a condition; one that compares conditions belongs to that whose change it measures."""
    result, contrasts = summary.result(model, condition), summary.contrasts_of(model).items()
    values = {key: estimate.value for key in result.metrics if (estimate := result.estimate(key))} if result else {}
    values |= {key: contrast.value for key, contrast in contrasts if contrast.condition == condition}
    return {key: value for key, value in values.items() if value is not None}
