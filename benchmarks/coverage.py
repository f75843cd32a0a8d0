"""How often 95 % intervals hold the truth, on simulated sets where it is known; results go to docs/statistics.md.

python benchmarks/coverage.py              500 sets per cell, a few minutes of one core
python benchmarks/coverage.py --sets 20    the same, coarser
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tyro
from record import ROOT, write_between

from prb.stats.estimate import Floats, share
from prb.stats.paired import LEVEL, difference

CLUSTERS = (5, 10, 20, 40, 200)
ICCS = (0.0, 0.1, 0.3, 1.0)
"""Intraclass correlation: 0 for independent rows, 1 for clusters whose rows are all alike."""
SHARES = (0.5, 0.7, 0.9, 0.95)
ROWS = 10
"""Per cluster."""
EFFECT = 0.1
PAGE = ROOT / "docs" / "statistics.md"


@dataclass(frozen=True)
class Args:
    sets: int = 500
    """Simulated sets per cell."""


def main(args: Args) -> None:
    heading = ["clusters | ICC | " + " | ".join(f"p = {p}" for p in SHARES), "---: | ---: " + "| ---: " * len(SHARES)]
    differences, shares, disagreements = list(heading), list(heading), 0
    for groups in CLUSTERS:
        for icc in ICCS:
            cells = [measure(groups, icc, p, args.sets) for p in SHARES]
            disagreements += sum(cell.disagree for cell in cells)
            counted = [[cell.covered, cell.above, cell.covered_effect] for cell in cells]
            shown = [" · ".join(f"{100 * n / args.sets:.1f}" for n in cell) for cell in counted]
            differences.append(f"{groups} | {icc:g} | " + " | ".join(shown))
            held = [f"{100 * cell.covered_share / args.sets:.1f}" for cell in cells]
            shares.append(f"{groups} | {icc:g} | " + " | ".join(held))
            print(differences[-1], "||", *held, flush=True)
    error = 100 * np.sqrt(0.95 * 0.05 / args.sets)
    tested = 2 * args.sets * len(CLUSTERS) * len(ICCS) * len(SHARES)
    text = f"""
{args.sets} simulated sets per cell, {ROWS} rows per cluster; in %, where 95 has a standard error of {error:.1f}.
The chance of credit is Beta-distributed over clusters, with mean p. Interval and p disagreed on {disagreements}
of {tested:,} differences.

Differences of two models: coverage if both have p · how often the interval lies above 0 then (at most 2.5 is right) ·
coverage if the second has p − {EFFECT:g}.

{table(differences)}

Single shares: coverage.

{table(shares)}
"""
    write_between("coverage", text, PAGE)


@dataclass(frozen=True)
class Cell:
    """Counts over the sets of a cell."""

    covered: int
    above: int
    covered_effect: int
    covered_share: int
    disagree: int


def measure(groups: int, icc: float, p: float, sets: int) -> Cell:
    rng = np.random.default_rng([groups, int(100 * icc), int(100 * p)])
    clusters = np.repeat(np.arange(groups), ROWS)
    counts = np.zeros(5, dtype=int)
    for first, second, lower in zip(
        *(columns(rng, groups, icc, mean, sets) for mean in (p, p, p - EFFECT)), strict=True
    ):
        null, effect = (difference(first, other, clusters) for other in (second, lower))
        single = share(first, clusters)
        assert None not in (null.low, null.high, null.p, effect.low, effect.high, effect.p, single.low, single.high)
        counts += [
            null.low <= 0 <= null.high,
            null.low > 0,
            effect.low <= EFFECT <= effect.high,
            single.low <= p <= single.high,
            sum((found.low > 0 or found.high < 0) != (found.p < LEVEL) for found in (null, effect)),
        ]
    return Cell(*counts.tolist())


def columns(rng: np.random.Generator, groups: int, icc: float, mean: float, sets: int) -> Iterator[Floats]:
    """Credits of `sets` simulated sets."""
    for _ in range(sets):
        if icc == 0:
            chance = np.full(groups, mean)
        elif icc == 1:
            chance = (rng.random(groups) < mean).astype(np.float64)
        else:
            chance = rng.beta(mean * (1 / icc - 1), (1 - mean) * (1 / icc - 1), groups)
        yield (rng.random(groups * ROWS) < np.repeat(chance, ROWS)).astype(np.float64)


def table(lines: list[str]) -> str:
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    main(tyro.cli(Args))
