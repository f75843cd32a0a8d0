"""Two runs on the same rows, paired: is the difference more than chance?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from prb.errors import BadInput
from prb.runs import SUMMARY, read_json, read_outcomes
from prb.stats.estimate import codes, share
from prb.stats.paired import difference, flip_rate, holm


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Compare two runs pair by pair: every model and condition they share, or one model of each."""

    run_a: Annotated[Path, tyro.conf.Positional]
    """A run folder."""
    run_b: Annotated[Path, tyro.conf.Positional]
    """Another run folder, or the same one with --model-a and --model-b."""
    model_a: str | None = None
    """Which model of the first run."""
    model_b: str | None = None
    """Which model of the second run."""
    seed: int = 0
    """Fixes resampling."""
    json: bool = False
    """Print the comparison as JSON."""


Credits = dict[tuple[str, str], dict[str, tuple[float, str]]]
"""(model, condition) to pair to (credit or NaN, cluster)."""


def compare(config: CompareConfig) -> dict[str, Any]:
    a, b = _credits(config.run_a), _credits(config.run_b)
    wanted = list(_matches(config, a, b))
    if not wanted:
        raise BadInput(
            f"nothing to compare: {config.run_a} has {_listed(a)}; {config.run_b} has {_listed(b)}. "
            "Name one model of each with --model-a and --model-b"
        )
    rows = [_compare_one(left, right, a[left], b[right], config.seed) for left, right in wanted]
    tested = [row for row in rows if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return {"a": str(config.run_a), "b": str(config.run_b), "same_data": _same_data(config), "comparisons": rows}


def _credits(folder: Path) -> Credits:
    found: Credits = {}
    for line in read_outcomes(folder):
        if line["credit"] is None and line["failure"] is None:
            raise BadInput(f"{folder} holds ratings; compare works on pairs")
        credit = float("nan") if line["credit"] is None else line["credit"]
        found.setdefault((line["model"], line["condition"]), {})[line["pair"]] = (credit, line["cluster"])
    if not found:
        raise BadInput(f"{folder} holds no outcomes yet")
    return found


def _matches(config: CompareConfig, a: Credits, b: Credits) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """The same condition on both sides; the named models, the only ones, or those both runs have."""
    left = _models(a, config.model_a, config.run_a)
    right = _models(b, config.model_b, config.run_b)
    chosen = bool(config.model_a or config.model_b) or len(left) == len(right) == 1
    for model, condition in a:
        for other, same in b:
            if condition == same and model in left and other in right and (chosen or model == other):
                yield (model, condition), (other, same)


def _models(credits: Credits, wanted: str | None, folder: Path) -> set[str]:
    models = {model for model, _ in credits}
    if wanted is not None and wanted not in models:
        raise BadInput(f"{folder} has no model {wanted!r}; it has {', '.join(sorted(models))}")
    return {wanted} if wanted is not None else models


def _compare_one(
    left: tuple[str, str],
    right: tuple[str, str],
    a: dict[str, tuple[float, str]],
    b: dict[str, tuple[float, str]],
    seed: int,
) -> dict[str, Any]:
    common = [pair for pair in a if pair in b]
    x = np.array([a[pair][0] for pair in common], dtype=np.float64)
    y = np.array([b[pair][0] for pair in common], dtype=np.float64)
    clusters = codes([a[pair][1] for pair in common])
    both = ~(np.isnan(x) | np.isnan(y))
    return {
        "condition": left[1],
        "model_a": left[0],
        "model_b": right[0],
        "accuracy_a": share(x[both], clusters[both]).value,
        "accuracy_b": share(y[both], clusters[both]).value,
        **difference(x, y, clusters, seed=seed).as_dict(),
        "p_holm": None,
        "changed_sides": flip_rate(x, y),
        "only_in_one": len(a) + len(b) - 2 * len(common),
    }


def _same_data(config: CompareConfig) -> bool | None:
    """Whether both runs saw the very same file; unknown until both are finished."""
    paths = [folder / SUMMARY for folder in (config.run_a, config.run_b)]
    if not all(path.exists() for path in paths):
        return None
    a, b = (read_json(path)["dataset"]["fingerprint"] for path in paths)
    return bool(a == b)


def _listed(credits: Credits) -> str:
    return ", ".join(sorted({model for model, _ in credits}))
