"""How often 95 % intervals hold the truth, on simulated sets where it is known; results go to docs/tables/coverage.md.

python benchmarks/coverage.py              500 sets per cell, a few minutes of one core
python benchmarks/coverage.py --sets 20    the same, coarser
"""

# every estimate here has limits
# mypy: disable-error-code="operator"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tyro
from record import ROOT, write_between

from prb.data.votes import draw_pairs, draw_twins
from prb.evaluation.metrics import corrected
from prb.stats.bias import blind_margins, credits_of, widened
from prb.stats.estimate import Floats, Ints, share
from prb.stats.paired import LEVEL, Twins, difference, person_effect
from prb.stats.ratings import Ratings, variance_shares

CLUSTERS = (5, 10, 20, 40, 200)
SIZES = ("equal", "lognormal", "one half")
"""Rows per cluster: always ten; ten on average, lognormal with σ = 1; ten, and as many as all others in one cluster."""
ICCS = (0.0, 0.1, 0.3, 1.0)
"""Intra-class correlation: 0 for independent rows, 1 for clusters whose rows are all alike."""
SHARES = (0.5, 0.7, 0.9, 0.95)
ROWS = 10
EFFECT = 0.1
PARAGRAPH = "\n\n"
PAGE = ROOT / "docs" / "tables" / "coverage.md"


@dataclass(frozen=True)
class Args:
    sets: int = 500
    """Simulated sets per cell."""


def main(args: Args) -> None:
    shown = {sizes: [measure(g, sizes, icc, args.sets) for g in CLUSTERS for icc in ICCS] for sizes in SIZES}
    disagreements = sum(cell[-1] for rows in shown.values() for _, cells in rows for cell in cells)
    tested = 2 * args.sets * len(CLUSTERS) * len(ICCS) * len(SHARES)
    error = 100 * np.sqrt(0.95 * 0.05 / args.sets)
    differences = table([(name, [cell[1:4] for cell in cells]) for name, cells in shown["equal"]], args.sets)
    shares = []
    for sizes, rows in shown.items():
        shares += [
            f"Cluster sizes: {sizes}.",
            table([(name, [c[:1] for c in cells]) for name, cells in rows], args.sets),
        ]
    text = f"""
{args.sets} simulated sets per cell, {ROWS} rows per cluster; in %, where 95 has a standard error of {error:.1f}.
The chance of credit is Beta-distributed over clusters, with mean p. Interval and p disagreed on {disagreements}
of {tested:,} differences.

Differences of two models, clusters of equal size: coverage if both have p · how often the interval lies above 0 then
(at most 2.5 is right) · coverage if the second has p − {EFFECT:g}.

{differences}

Single shares: coverage. `lognormal` sizes have σ = 1; of `one half`, one cluster has as many rows as all others.

{PARAGRAPH.join(shares)}

{others(args.sets)}
"""
    write_between("coverage", text, PAGE)


def measure(groups: int, sizes: str, icc: float, sets: int) -> tuple[str, list[list[int]]]:
    """For every share: shares held; of equal sizes also differences held, above zero, with an effect, disagreements."""
    cells = []
    for p in SHARES:
        rng = np.random.default_rng([groups, SIZES.index(sizes), int(100 * icc), int(100 * p)])
        counts = np.zeros(5, dtype=int)
        for _ in range(sets):
            clusters = np.repeat(np.arange(groups), rows_per_cluster(rng, groups, sizes))
            first = column(rng, clusters, icc, p)
            single = share(first, clusters)
            counts[0] += single.low <= p <= single.high
            if sizes == "equal":
                null = difference(first, column(rng, clusters, icc, p), clusters)
                effect = difference(first, column(rng, clusters, icc, p - EFFECT), clusters)
                held = effect.low <= EFFECT <= effect.high
                disagree = sum((found.low > 0 or found.high < 0) != (found.p < LEVEL) for found in (null, effect))
                counts[1:] += np.array([null.low <= 0 <= null.high, null.low > 0, held, disagree])
        cells.append(counts.tolist())
    print(sizes, groups, icc, cells, flush=True)
    return f"{groups} | {icc:g}", cells


def rows_per_cluster(rng: np.random.Generator, groups: int, sizes: str) -> Ints:
    rows = np.full(groups, ROWS)
    if sizes == "lognormal":
        rows = np.maximum(1, np.rint(ROWS * np.exp(rng.normal(-0.5, 1, groups)))).astype(np.int64)
    elif sizes == "one half":
        rows[0] = ROWS * (groups - 1)
    return rows


def column(rng: np.random.Generator, clusters: Ints, icc: float, mean: float) -> Floats:
    """Credits of a simulated set."""
    groups = int(clusters.max()) + 1
    if icc == 0:
        chance = np.full(groups, mean)
    elif icc == 1:
        chance = (rng.random(groups) < mean).astype(np.float64)
    else:
        chance = rng.beta(mean * (1 / icc - 1), (1 - mean) * (1 / icc - 1), groups)
    return (rng.random(len(clusters)) < chance[clusters]).astype(np.float64)


def others(sets: int) -> str:
    """Crossed users and questions, stars of twelve models, and learners fitted on noise."""
    few = max(1, sets // 5)
    held = [sum(crossed_set(np.random.default_rng([seed, size]), size) for seed in range(sets)) for size in (200, 1000)]
    stars = np.sum([starred(np.random.default_rng(seed)) for seed in range(sets)], axis=0)
    learned = np.sum([list(noise(seed)) for seed in range(few)], axis=0)
    counted = ((held, sets), (stars, sets), (learned, few))
    crossed, starring, fitted = ([f"{100 * n / of:.1f}" for n in counts] for counts, of in counted)
    return f"""Votes on items: coverage of the accuracy of a model that is better with some users and on some items; how
often a person effect that is not there is significant.

{polls(sets)}

Parts of the variance of votes in %, of which 60 % were cast (`prb audit`): mean estimate · coverage. Where nobody voted
twice, coverage is how often individual is not above, and noise not below, the truth.

{shares(few)}

Other checks.

| what | sets | in % |
| --- | ---: | ---: |
| crossed users and questions, 200 rows of 30 users and 40 questions: coverage | {sets} | {crossed[0]} |
| the same with 1,000 rows | {sets} | {crossed[1]} |
| a star among 12 models without a person effect, uncorrected | {sets} | {starring[0]} |
| the same after Holm | {sets} | {starring[1]} |
| blind learner, 120 pairs of noise: coverage of 50 %, learner taken as given | {few} | {fitted[0]} |
| the same, widened for the fitted learner | {few} | {fitted[1]} |"""


def crossed_set(rng: np.random.Generator, rows: int) -> bool:
    users, partners, questions = rng.integers(0, 30, rows), rng.integers(0, 30, rows), rng.integers(0, 40, rows)
    chance = 0.6 + rng.uniform(-0.2, 0.2, 30)[users] + rng.uniform(-0.2, 0.2, 40)[questions]
    won = (rng.random(rows) < chance).astype(np.float64)
    found = share(won, np.stack([users, partners, questions, 0 * users - 1], axis=1))
    return bool(found.low <= 0.6 <= found.high)


POLLS = ((30, 20), (100, 40), (300, 100))
"""Users and items."""


def polls(sets: int) -> str:
    """Votes on items, paired as `polis` does it: coverage by users alone and crossed; p-values without an effect."""
    rows = []
    for size in POLLS:
        for mirror in (False, True):
            seeds = [np.random.default_rng([*size, mirror, seed]) for seed in range(sets)]
            held = np.mean([poll_set(rng, *size, mirror=mirror) for rng in seeds], axis=0)
            cells = [f"{100 * part:.1f}" for part in held[:2]] + [f"{100 * held[2]:.1f}" if mirror else "–"]
            rows.append(f"| {size[0]} | {size[1]} | {'twins' if mirror else 'pairs'} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    heading = "| users | items | rows | clustered by user | users and answers, crossed | person effect, p < 0.05 |"
    return "\n".join([heading, "| ---: | ---: | --- | ---: | ---: | ---: |", *rows])


def poll_set(rng: np.random.Generator, users: int, items: int, *, mirror: bool) -> tuple[float, float, float]:
    """Whether intervals hold the accuracy of a model whose skill depends on user and item, over many other draws."""
    leaning, appeal = rng.normal(size=(users, 2)), rng.normal(size=(items, 2))
    cast = rng.random((users, items)) < 0.6
    signs = np.where(cast, np.sign(leaning @ appeal.T + rng.normal(size=cast.shape)), 0).astype(np.int8)
    by_user, by_item = rng.uniform(-0.15, 0.15, users), rng.uniform(-0.3, 0.3, items)
    if mirror:
        drawn = np.array(list(draw_twins(signs, 4, 8, rng)))
        i, j, a, b = drawn.T
    else:
        drawn = np.array(list(draw_pairs(signs, 4, 8, rng)))
        a, i, j = drawn.T
        b = np.full_like(a, -1)
    skill = 0.6 + (by_user[a] if not mirror else (by_user[a] + by_user[b]) / 2) + (by_item[i] + by_item[j]) / 2
    won, table = (rng.random(len(a)) < skill) * 1.0, np.column_stack([a, b, i, j])
    held = [found.low <= 0.6 <= found.high for found in (share(won, a), share(won, table))]
    # no person effect: which twin is ordered right depends on users and items, half of the time on average
    pull = rng.normal(size=users)[a] * rng.normal(size=items)[i] + rng.normal(size=len(a))
    margins = np.stack([pull, np.zeros_like(pull)], axis=1).ravel()
    effect = person_effect(margins, Twins(np.arange(0, 2 * len(a), 2), np.arange(1, 2 * len(a), 2), table))
    assert effect
    return float(held[0]), float(held[1]), float(effect.p < LEVEL)


PARTS = {"shared": 0.25, "leaning": 0.1, "group": 0.1, "individual": 0.2, "noise": 0.35}


def shares(sets: int) -> str:
    """Parts of the variance of votes: mean estimate and coverage; without repeated votes, how often a bound holds."""
    rows = []
    for users, items, again in ((30, 20, 0.2), (115, 40, 0.2), (300, 80, 0.2), (115, 40, 0.0), (300, 80, 0.0)):
        tables = [variance_shares(simulated_votes(users, items, again, seed)) for seed in range(sets)]
        cells = []
        for part, truth in PARTS.items():
            found = [getattr(table, part) for table in tables]
            low = not again and part == "individual"
            high = not again and part == "noise"
            held = [(share.low <= truth or high) and (share.high >= truth or low) for share in found]
            cells.append(f"{100 * np.mean([share.value for share in found]):.0f} · {100 * np.mean(held):.0f}")
        detectable = 100 * np.mean([table.individual.detectable for table in tables if table])
        votes = "a fifth twice" if again else "once"
        rows.append(f"| {users} | {items} | {votes} | {' | '.join(cells)} | {detectable:.1f} |")
        print(rows[-1], flush=True)
    truths = " | ".join(f"{part}: {100 * truth:.0f}" for part, truth in PARTS.items())
    return "\n".join(
        [f"| users | items | votes | {truths} | detectable |", "| ---: | ---: | --- |" + " ---: |" * 6, *rows]
    )


def simulated_votes(users: int, items: int, again: float, seed: int) -> Ratings:
    rng = np.random.default_rng([users, items, seed])
    group = rng.integers(0, 4, users)
    taste = rng.normal(size=(users, 3)) @ rng.normal(size=(3, items)) / np.sqrt(3)
    means = np.sqrt(PARTS["shared"]) * rng.normal(size=items) + np.sqrt(PARTS["leaning"]) * rng.normal(size=(users, 1))
    means = means + np.sqrt(PARTS["group"]) * rng.normal(size=(4, items))[group] + np.sqrt(PARTS["individual"]) * taste
    user, item = np.nonzero(rng.random((users, items)) < 0.6)
    twice = rng.random(len(user)) < again
    user, item = np.append(user, user[twice]), np.append(item, item[twice])
    return Ratings(user, item, means[user, item] + np.sqrt(PARTS["noise"]) * rng.normal(size=len(user)), group[user])


def starred(rng: np.random.Generator) -> tuple[bool, bool]:
    twins = Twins(np.arange(0, 240, 2), np.arange(1, 240, 2), np.arange(120) // 6)
    effects = [effect for _ in range(12) if (effect := person_effect(rng.normal(size=240), twins))]
    plain = [effect.p for effect in effects if effect.p is not None]
    holm = [p for p in corrected(effects) if p is not None]
    return min(plain) < LEVEL, min(holm) < LEVEL


def noise(seed: int) -> Iterator[bool]:
    """Answers that differ in many features and one common direction, such as length; who was chosen is a coin flip."""
    rng = np.random.default_rng(seed)
    features = rng.normal(0, 0.5, (120, 300)) + np.outer(rng.normal(size=120), rng.normal(size=300))
    margins = blind_margins(features, np.zeros_like(features), [str(n) for n in range(120)], strength=1e-3, seed=seed)
    assert margins is not None
    narrow = share(np.array(credits_of(margins)), np.arange(120))
    for found in (narrow, widened(narrow)):
        yield found.low <= 0.5 <= found.high


def table(rows: list[tuple[str, list[list[int]]]], sets: int) -> str:
    heading = ["clusters | ICC | " + " | ".join(f"p = {p}" for p in SHARES), "---: | ---: " + "| ---: " * len(SHARES)]
    lines = [
        f"{name} | " + " | ".join(" · ".join(f"{100 * n / sets:.1f}" for n in cell) for cell in cells)
        for name, cells in rows
    ]
    return "\n".join(f"| {line} |" for line in heading + lines)


if __name__ == "__main__":
    main(tyro.cli(Args))
