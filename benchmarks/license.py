"""Whether a license holds what it promises, on simulated annotators; results go to docs/tables/coverage.md.

python benchmarks/license.py              1,000 sets per cell, a few minutes of one core
"""

# every estimate here has limits
# mypy: disable-error-code="operator"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tyro
from record import ROOT, write_between

from prb.stats.agreement import alternative_test, exact_p, prediction_powered
from prb.stats.estimate import Floats, Ints

PAGE = ROOT / "docs" / "tables" / "coverage.md"
ITEMS = (30, 100, 300)
LABELS = (50, 100, 250)
PEOPLE = 4
HUMAN = 0.85
"""The chance that an annotator gives the true one of two labels."""
EPSILON = 0.2


@dataclass(frozen=True)
class Args:
    sets: int = 1000
    """Simulated sets per cell."""


def main(args: Args) -> None:
    levels = {f"{share:.0%} not 0": [level(n, share, args.sets) for n in ITEMS] for share in (0.3, 0.6, 1.0)}
    rates = (0.5, 0.65, 0.75, 0.85, 0.95)
    passed = {f"judge right in {right:.0%}": [passing(n, right, args.sets) for n in ITEMS] for right in rates}
    means = {name: [powered(n, *judge, args.sets) for n in LABELS] for name, judge in JUDGES.items()}
    text = f"""
{args.sets:,} simulated sets per cell, in %.

Level of one comparison at its limit: values −1, 0, 1 with a mean of exactly ε = {EPSILON}; how often p < 0.05.

{table("items", ITEMS, levels)}

The alternative annotator test with {PEOPLE} people who give the true label in {HUMAN:.0%} of the cases: how often a
judge passes (ω ≥ 0.5, ε = {EPSILON}).

{table("items", ITEMS, passed)}

Prediction-powered means, 1,000 judgments in 200 clusters, labels in whole clusters: coverage of the 95 % interval, and
its width relative to that of the human labels alone.

{table("labels", LABELS, means)}
"""
    write_between("license", text, PAGE)


JUDGES = {"a good judge": (0.95, 0.0), "a judge that flatters": (0.9, 0.3), "noise": (0.5, 0.0)}
"""The chance that it gives the human label, else and instead a coin's; how often it says 1 whatever people say."""


def level(items: int, share: float, sets: int) -> str:
    rng, up = np.random.default_rng([items, int(100 * share)]), (share + EPSILON) / 2
    draws = rng.choice([1, -1, 0], p=[up, share - up, 1 - share], size=(sets, items))
    return f"{100 * np.mean([exact_p(behind, EPSILON) < 0.05 for behind in draws]):.1f}"


def passing(items: int, right: float, sets: int) -> str:
    rng, names = np.random.default_rng([items, int(100 * right)]), [str(n) for n in range(PEOPLE)]

    def said(truth: Ints, chance: float, columns: int) -> Floats:
        return np.where(rng.random((items, columns)) < chance, truth[:, None], 1 - truth[:, None]).astype(np.float64)

    passes = 0
    for _ in range(sets):
        truth = rng.integers(0, 2, items)
        passes += alternative_test(
            said(truth, HUMAN, PEOPLE), said(truth, right, 1)[:, 0], names, epsilon=EPSILON
        ).passes
    return f"{100 * passes / sets:.1f}"


def powered(labels: int, same: float, flatter: float, sets: int) -> str:
    rng, held, ratio = np.random.default_rng([labels, int(100 * same)]), 0, []
    clusters = np.repeat(np.arange(200), 5)
    for _ in range(sets):
        human = (rng.random(1000) < rng.beta(3, 2, 200)[clusters]).astype(np.float64)  # the mean is 0.6
        judge = np.where(rng.random(1000) < same, human, 1 - human)
        judge = np.where(rng.random(1000) < flatter, 1.0, judge)
        known = np.arange(1000) < labels
        found = prediction_powered(human[known], judge[known], judge[~known], clusters[known], clusters[~known])
        held += found.tuned.low <= 0.6 <= found.tuned.high
        ratio.append((found.tuned.high - found.tuned.low) / (found.human.high - found.human.low))
    return f"{100 * held / sets:.1f} · {np.mean(ratio):.2f}"


def table(first: str, rows: tuple[int, ...], columns: dict[str, list[str]]) -> str:
    lines = [f"{first} | " + " | ".join(columns), "---: " + "| ---: " * len(columns)]
    lines += [f"{n} | " + " | ".join(column[k] for column in columns.values()) for k, n in enumerate(rows)]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    main(tyro.cli(Args))
