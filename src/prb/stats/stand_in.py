"""Whether a judge may stand in for people, and what its judgments are worth beside theirs.

The alternative annotator test asks of each annotator in turn: on the items this person judged, does the judge agree
with the *other* annotators at least as well as this person does, give or take ε? Prediction-powered inference then
estimates a mean from few human labels and many judgments: the judge's mean, corrected by how far it is off where both
are known. A judge that is noise adds nothing, and one that is biased is corrected; neither makes an interval too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prb.stats.estimate import Floats, Ints, t95
from prb.types import Estimate

Scale = Literal["nominal", "numeric"]
"""How far apart two judgments are: equal or not, or the size of their difference."""
EPSILON = 0.2
"""What a judge may lack and still pass, since people cost more: the value that the test's authors use for experts."""
LEVEL = 0.05
PASSING = 0.5
"""The share of annotators over whom a judge must win."""
NUISANCE = 1e-3
"""Berger and Boos: the chance that the interval of a nuisance parameter misses it, which is added to p."""
GRID = 101


@dataclass(frozen=True, kw_only=True)
class Rival:
    """The judge against one annotator."""

    annotator: str
    n: int
    """Items that this annotator and at least one other judged."""
    judge: float
    """Share of them on which the judge agrees with the others at least as well as the annotator."""
    human: float
    """Share on which the annotator agrees with them at least as well as the judge."""
    p: float
    """Of the hypothesis that the annotator is better by ε or more; corrected over annotators."""
    beaten: bool


@dataclass(frozen=True, kw_only=True)
class AlternativeTest:
    """The alternative annotator test (Calderon et al., ACL 2025, arXiv 2501.10970)."""

    winning_rate: float | None
    """ω: share of the annotators over whom the judge wins significantly."""
    advantage: float | None
    """ρ: mean share of items on which the judge is at least as good as an annotator."""
    epsilon: float
    rivals: tuple[Rival, ...]

    @property
    def passes(self) -> bool:
        return self.winning_rate is not None and self.winning_rate >= PASSING


def alternative_test(
    votes: Floats, judge: Floats, annotators: Sequence[str], *, scale: Scale = "nominal", epsilon: float = EPSILON
) -> AlternativeTest:
    """`votes` has a row per item and a column per annotator, NaN where nobody was asked; `judge` one value per item.

    The p of an annotator is exact for independent items (`exact_p`), where the authors use a t test; over annotators it
    is corrected as theirs, after Benjamini and Yekutieli (2001, doi:10.1214/aos/1013699998), since rivals share items.
    """
    found = []
    for n, annotator in enumerate(annotators):
        others = np.delete(votes, n, axis=1)
        items = ~np.isnan(votes[:, n]) & ~np.isnan(judge) & (~np.isnan(others)).any(axis=1)
        if not items.any():
            continue
        of_judge = _alignment(judge[items], others[items], scale)
        of_human = _alignment(votes[items, n], others[items], scale)
        behind = np.sign(np.where(np.isclose(of_human, of_judge), 0, of_human - of_judge)).astype(np.int64)
        found.append((annotator, behind, exact_p(behind, epsilon)))
    corrected = benjamini_yekutieli([p for *_, p in found])
    rivals = tuple(
        Rival(
            annotator=annotator,
            n=len(behind),
            judge=float((behind <= 0).mean()),
            human=float((behind >= 0).mean()),
            p=p,
            beaten=p < LEVEL,
        )
        for (annotator, behind, _), p in zip(found, corrected, strict=True)
    )
    if len(rivals) < 2:  # nobody else to agree with
        return AlternativeTest(winning_rate=None, advantage=None, epsilon=epsilon, rivals=rivals)
    return AlternativeTest(
        winning_rate=float(np.mean([rival.beaten for rival in rivals])),
        advantage=float(np.mean([rival.judge for rival in rivals])),
        epsilon=epsilon,
        rivals=rivals,
    )


def _alignment(values: Floats, others: Floats, scale: Scale) -> Floats:
    """How well each value agrees with those of the other annotators: share of equals, or minus the RMSE."""
    apart = others - values[:, None]
    if scale == "nominal":
        return np.asarray(np.nanmean(np.where(np.isnan(apart), np.nan, apart == 0), axis=1))
    return np.asarray(-np.sqrt(np.nanmean(np.square(apart), axis=1)))


def exact_p(behind: Ints, epsilon: float) -> float:
    """p of the hypothesis that the mean of values −1, 0 and 1 is at least ε, for independent values.

    How often the value is 0 is a nuisance parameter: p is the largest over a 99.9 % interval for it, plus the 0.1 %
    (Berger and Boos 1994, doi:10.1080/01621459.1994.10476836).
    """
    from scipy.stats import beta

    n, total, moved = len(behind), int(behind.sum()), int(np.count_nonzero(behind))
    low = float(beta.ppf(NUISANCE / 2, moved, n - moved + 1)) if moved else 0.0
    high = float(beta.ppf(1 - NUISANCE / 2, moved + 1, n - moved)) if moved < n else 1.0
    shares = np.linspace(max(epsilon, low), max(epsilon, high), GRID)
    largest = max(_sum_at_most(total, n, (share + epsilon) / 2, (share - epsilon) / 2) for share in shares)
    return min(1.0, largest + NUISANCE)


def _sum_at_most(total: int, n: int, up: float, down: float) -> float:
    """The chance that n independent values, 1 with chance `up` and −1 with chance `down`, sum to at most `total`."""
    size = 2 * n + 1
    steps = np.zeros(size)
    steps[[0, 1, -1]] = 1 - up - down, up, down
    chances = np.fft.ifft(np.fft.fft(steps) ** n).real  # a sum of −k is at place size − k
    return float(np.clip(chances[np.arange(-n, total + 1) % size].sum(), 0, 1))


def benjamini_yekutieli(p: Sequence[float]) -> list[float]:
    """p-values corrected for the false discovery rate under any dependence."""
    m = len(p)
    harmonic = sum(1 / k for k in range(1, m + 1))
    order, corrected, smallest = np.argsort(p, kind="stable")[::-1], [0.0] * m, 1.0
    for rank, n in zip(range(m, 0, -1), order, strict=True):
        smallest = min(smallest, p[n] * m * harmonic / rank)
        corrected[n] = smallest
    return corrected


@dataclass(frozen=True, kw_only=True)
class Powered:
    """A mean estimated three ways, all about what people would say."""

    human: Estimate
    """From the human labels alone."""
    classical: Estimate
    """The judge's mean minus its mean error (Angelopoulos et al. 2023, doi:10.1126/science.adi6000)."""
    tuned: Estimate
    """PPI++ (arXiv 2311.01453): the judge counts as much as it helps, between not at all and fully."""
    weight: float
    """How much that is."""
    judge: float
    """The judge's mean over all items, as if it were right."""


def prediction_powered(
    human: Floats, judge: Floats, more: Floats, clusters: Ints, more_clusters: Ints, *, unit: bool = True
) -> Powered:
    """`human` and `judge` are about the same labeled items, `more` is the judge about the others.

    What an item adds to the estimate is summed over its cluster, across both parts, so rows that share users are not
    taken for independent ones; t on the clusters with labels − 1. `unit`: values are in 0..1, and so are the limits.
    """
    judges_mean = float(np.concatenate([judge, more]).mean())
    if not len(more):  # the judge has nothing to add
        more, more_clusters, judge = np.zeros(1), clusters[:1], np.zeros(len(human))
    labeled, with_labels = len(human), len(np.unique(clusters))
    _, cluster = np.unique(np.concatenate([clusters, more_clusters]), return_inverse=True)
    groups = int(cluster.max()) + 1
    pull = np.concatenate([human - human.mean(), np.zeros(len(more))]) / labeled
    push = np.concatenate([(judge.mean() - judge) / labeled, (more - more.mean()) / len(more)])
    a, b = np.bincount(cluster, pull, groups), np.bincount(cluster, push, groups)
    weight = min(1.0, max(0.0, -float(a @ b) / float(b @ b))) if b.any() else 0.0

    def estimate(weight: float) -> Estimate:
        value = float(human.mean() + weight * (more.mean() - judge.mean()))
        if with_labels < 2:
            return Estimate(value=value, low=None, high=None, n=labeled)
        half = t95(with_labels - 1) * math.sqrt(groups / (groups - 1) * float(np.square(a + weight * b).sum()))
        low, high = (max(0.0, value - half), min(1.0, value + half)) if unit else (value - half, value + half)
        return Estimate(value=value, low=low, high=high, n=labeled)

    return Powered(
        human=estimate(0.0),
        classical=estimate(1.0),
        tuned=estimate(weight),
        weight=weight,
        judge=judges_mean,
    )


def labels_for(powered: Powered, half_width: float) -> int | None:
    """About how many human labels in all would give PPI++ this half width: it shrinks with the root of their number."""
    low, high = powered.tuned.low, powered.tuned.high
    if low is None or high is None:
        return None
    return max(powered.tuned.n, math.ceil(powered.tuned.n * ((high - low) / 2 / half_width) ** 2))
