"""Agreement between annotators, equivalence of two answers; and whether a judge may stand in for people.

Votes are a matrix of units × raters holding the number of a value, −1 where a rater was not asked. Intervals are
percentile bootstraps over groups of units (a question with all its votes), never over single votes. A coefficient that
is 0/0, because only one value was ever used, is `None`.

The alternative annotator test asks of each annotator in turn: on the items this person judged, does the judge agree
with the *other* annotators at least as well as this person does, give or take ε? Prediction-powered inference then
estimates a mean from few human labels and many judgments: the judge's mean, corrected by how far it is off where both
are known. A judge that is noise adds nothing, and one that is biased is corrected; neither makes an interval too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from prb.errors import MissingExtra
from prb.stats.estimate import Floats, Ints, Totals, t95
from prb.stats.paired import LEVEL, bootstrap_interval
from prb.types import Estimate

Scale = Literal["nominal", "numeric"]
"""How far apart two judgments are: equal or not, or the size of their difference."""
EPSILON = 0.2
"""What a judge may lack and still pass, since people cost more: the value that the test's authors use for experts."""
PASSING = 0.5
"""The share of annotators over whom a judge must win."""
NUISANCE = 1e-3
"""Berger and Boos: the chance that the interval of a nuisance parameter misses it, which is added to p."""
MIN_CHECKS = 0.5
"""Annotators who pass a smaller share of their attention checks are left out."""


class AttentionCheck(NamedTuple):
    """What an annotator replied to an item of which one answer, as `rejected`, has nothing to do with the question."""

    annotator: str
    preferred: str
    relevance: float
    """Of the stray answer."""


def attention(checks: Iterable[AttentionCheck]) -> dict[str, tuple[int, int]]:
    """Per annotator: checks passed, checks answered. Passed: the stray answer is not preferred and rated 1 or 2."""
    counts: dict[str, tuple[int, int]] = {}
    for check in checks:
        passed, asked = counts.get(check.annotator, (0, 0))
        counts[check.annotator] = passed + (check.preferred != "rejected" and check.relevance <= 2), asked + 1
    return counts


def inattentive(checks: Iterable[AttentionCheck]) -> list[str]:
    """Annotators who failed more of their checks than `MIN_CHECKS` allows."""
    return sorted(a for a, (passed, asked) in attention(checks).items() if passed < MIN_CHECKS * asked)


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int
    """Units with at least two votes."""


def with_interval(
    statistic: Callable[[Ints], float | None], votes: Ints, groups: Ints, *, draws: int = 1000, seed: int = 0
) -> Coefficient:
    """The coefficient with a 95 % interval from resamples of whole groups; undefined resamples are left out."""
    value, n = statistic(votes), int(((votes >= 0).sum(axis=1) >= 2).sum())
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    defined = []
    if value is not None and len(members) > 1:
        single = len(members) == len(votes)
        for picks in np.random.default_rng(seed).integers(len(members), size=(draws, len(members))):
            units = order[picks] if single else np.concatenate([members[group] for group in picks])
            if (resampled := statistic(votes[units])) is not None:
                defined.append(resampled)
    if not defined:
        return Coefficient(value=value, n=n)
    low, high = np.quantile(defined, [0.025, 0.975])
    return Coefficient(value=value, low=float(low), high=float(high), n=n)


def tally(votes: Ints, values: int, *, least: int = 2) -> Ints:
    """Units × values: the number of raters who gave each value, of the units with at least so many votes."""
    counts = np.stack([(votes == v).sum(axis=1) for v in range(values)], axis=1)
    return np.asarray(counts[counts.sum(axis=1) >= least])


def _agreed(counts: Ints) -> float:
    """Mean over units of the share of rater pairs that agree."""
    n = counts.sum(axis=1)
    return float(((counts * (counts - 1)).sum(axis=1) / (n * (n - 1))).mean())


def krippendorff_alpha(votes: Ints, values: int, *, ordinal: bool = False) -> float | None:
    """Krippendorff's α (2011, Computing Krippendorff's Alpha-Reliability), by the `krippendorff` package."""
    try:
        from krippendorff import alpha
    except ModuleNotFoundError:
        raise MissingExtra("Krippendorff's alpha", "study") from None
    counts = tally(votes, values)
    if (counts.sum(axis=0) > 0).sum() < 2:
        return None
    level: Literal["ordinal", "nominal"] = "ordinal" if ordinal else "nominal"
    return float(alpha(value_counts=counts, value_domain=list(range(values)), level_of_measurement=level))


def fleiss_kappa(votes: Ints, values: int) -> float | None:
    """Fleiss' κ (1971, doi:10.1037/h0031619); units may have different numbers of raters, at least two."""
    counts = tally(votes, values)
    if not len(counts):
        return None
    chance = float(np.square(counts.sum(axis=0) / counts.sum()).sum())
    return None if chance == 1 else (_agreed(counts) - chance) / (1 - chance)


def gwet_ac1(votes: Ints, values: int) -> float | None:
    """Gwet's AC1 (2008, doi:10.1348/000711006X126600): κ with a chance term that stays small when a value is rare."""
    counts, shared = (tally(votes, values, least=least) for least in (1, 2))
    if not len(shared):
        return None
    share = (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
    chance = float((share * (1 - share)).sum()) / (values - 1)
    return (_agreed(shared) - chance) / (1 - chance)


def dawid_skene(votes: Ints, values: int, *, rounds: int = 200, smooth: float = 0.1) -> Floats:
    """Per rater: how often they would give the true value, by EM (Dawid & Skene 1979, doi:10.2307/2346806), started
    from the vote shares.

    `smooth` votes are added to every cell of a rater's confusion matrix, so that a few votes do not count as certainty.
    """
    given = np.stack([votes == v for v in range(values)], axis=2).astype(np.float64)
    total = given.sum(axis=(1, 2), keepdims=True)[:, :, 0]
    posterior = np.where(total > 0, given.sum(axis=1) / np.maximum(total, 1), 1 / values)  # units × true value
    for _ in range(rounds):
        prior = posterior.mean(axis=0)
        confusion = np.einsum("uk,urv->rkv", posterior, given) + smooth  # raters × true value × value given
        confusion /= confusion.sum(axis=2, keepdims=True)
        logs = np.log(np.maximum(prior, 1e-300)) + np.einsum("urv,rkv->uk", given, np.log(confusion))
        new = np.exp(logs - logs.max(axis=1, keepdims=True))
        new /= new.sum(axis=1, keepdims=True)
        moved = float(np.abs(new - posterior).max())
        posterior = new
        if moved < 1e-9:
            break
    return np.asarray(np.einsum("k,rkk->r", prior, confusion))


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Whether a mean difference lies within a margin around zero."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    """90 % interval: inside the margin exactly if both one-sided tests reject at 5 %."""
    p: float | None = None
    effect: float | None = None
    """Cohen's d of paired differences, mean / standard deviation."""
    n: int
    margin: float
    equivalent: bool = False


def equivalence(differences: Floats, margin: float) -> Parity:
    """Two one-sided t tests (Schuirmann 1987, doi:10.1007/BF01068419); one difference per unit."""
    from scipy.stats import t

    n = len(differences)
    if n < 2:
        return Parity(mean=float(differences[0]) if n else None, n=n, margin=margin)
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    error = deviation / math.sqrt(n)
    half = float(t.ppf(1 - LEVEL, n - 1)) * error
    room = margin - abs(mean)
    p = float(t.sf(room / error, n - 1)) if error else float(room <= 0)
    effect = mean / deviation if deviation else None if mean else 0.0
    return Parity(
        mean=mean, low=mean - half, high=mean + half, p=p, effect=effect, n=n, margin=margin, equivalent=p < LEVEL
    )


def mean_size(differences: Floats) -> Coefficient:
    """Mean |difference| with a bootstrap interval, for mirror rows, where signed differences cancel by construction."""
    if not len(differences):
        return Coefficient(value=None, n=0)
    sizes = np.abs(differences)
    low, high = bootstrap_interval(Totals(sizes, np.ones(len(sizes))))
    return Coefficient(value=float(sizes.mean()), low=low, high=high, n=len(sizes))


# --- a judge in place of people ---
@dataclass(frozen=True, kw_only=True)
class Rival:
    """The judge against one annotator."""

    annotator: str
    n: int
    """Items that this annotator and at least one other judged."""
    judge: float
    """Share of them on which the judge agrees with the others at least as well as the annotator."""
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
    from scipy.stats import false_discovery_control

    behind_by: dict[str, Ints] = {}
    for n, annotator in enumerate(annotators):
        others = np.delete(votes, n, axis=1)
        items = ~np.isnan(votes[:, n]) & ~np.isnan(judge) & (~np.isnan(others)).any(axis=1)
        if items.any():
            of_judge = _alignment(judge[items], others[items], scale)
            of_human = _alignment(votes[items, n], others[items], scale)
            gap = np.where(np.isclose(of_human, of_judge), 0, of_human - of_judge)
            behind_by[annotator] = np.sign(gap).astype(np.int64)
    ps = [exact_p(behind, epsilon) for behind in behind_by.values()]
    corrected = false_discovery_control(ps, method="by").tolist() if ps else []
    rivals = tuple(
        Rival(annotator=annotator, n=len(behind), judge=float((behind <= 0).mean()), p=p, beaten=p < LEVEL)
        for (annotator, behind), p in zip(behind_by.items(), corrected, strict=True)
    )
    several = len(rivals) > 1  # else there is nobody to agree with
    return AlternativeTest(
        winning_rate=float(np.mean([rival.beaten for rival in rivals])) if several else None,
        advantage=float(np.mean([rival.judge for rival in rivals])) if several else None,
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
    from scipy.stats import binomtest

    n, total, moved = len(behind), int(behind.sum()), int(np.count_nonzero(behind))
    low, high = binomtest(moved, n).proportion_ci(1 - NUISANCE)
    largest, size = 0.0, 2 * n + 1
    for share in np.linspace(max(epsilon, low), max(epsilon, high), 101):
        # the chance of a sum of at most `total`, if a value is 1 and −1 so often; a sum of −k is at place size − k
        steps, up, down = np.zeros(size), (share + epsilon) / 2, (share - epsilon) / 2
        steps[[0, 1, -1]] = 1 - up - down, up, down
        chances = np.fft.ifft(np.fft.fft(steps) ** n).real
        largest = max(largest, float(np.clip(chances[np.arange(-n, total + 1) % size].sum(), 0, 1)))
    return min(1.0, largest + NUISANCE)


@dataclass(frozen=True, kw_only=True)
class Powered:
    """A mean estimated three ways, all about what people would say."""

    human: Estimate
    """From the human labels alone."""
    tuned: Estimate
    """PPI++ (arXiv 2311.01453): the judge's mean minus its mean error, in which the judge counts as much as it helps,
    between not at all and fully (Angelopoulos et al. 2023, doi:10.1126/science.adi6000)."""
    weight: float
    """How much that is."""
    judge: float
    """The judge's mean over all items, as if it were right."""


def prediction_powered(
    human: Floats,
    judge: Floats,
    more: Floats,
    clusters: Ints,
    more_clusters: Ints,
    *,
    unit: bool = True,
    weight: float | None = None,
) -> Powered:
    """`human` and `judge` are about the same labeled items, `more` is the judge about the others.

    What an item adds to the estimate is summed over its cluster, across both parts, so rows that share users are not
    taken for independent ones; t on the clusters with labels − 1. `unit`: values are in 0..1, and so are the limits.
    `weight` 1 is the classical estimate; without one it is tuned.
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
    if weight is None:
        weight = min(1.0, max(0.0, -float(a @ b) / float(b @ b))) if b.any() else 0.0

    def estimate(weight: float) -> Estimate:
        value = float(human.mean() + weight * (more.mean() - judge.mean()))
        if with_labels < 2:
            return Estimate(value=value, low=None, high=None, n=labeled)
        half = t95(with_labels - 1) * math.sqrt(groups / (groups - 1) * float(np.square(a + weight * b).sum()))
        low, high = (max(0.0, value - half), min(1.0, value + half)) if unit else (value - half, value + half)
        return Estimate(value=value, low=low, high=high, n=labeled)

    return Powered(human=estimate(0.0), tuned=estimate(weight), weight=weight, judge=judges_mean)


def labels_for(powered: Powered, half_width: float) -> int | None:
    """About how many human labels in all would give PPI++ this half width: it shrinks with the root of their number."""
    low, high = powered.tuned.low, powered.tuned.high
    if low is None or high is None:
        return None
    return max(powered.tuned.n, math.ceil(powered.tuned.n * ((high - low) / 2 / half_width) ** 2))
