"""How good is a grader? Its grades compared with labels, with human grades, and with its own second round.

Pure functions of grades that exist already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from prb.data.load import Dataset
from prb.grading import TOP, Answered, Grades, answered
from prb.stats.agreement import with_interval
from prb.stats.estimate import Floats, Ints, average, by_label, codes, share
from prb.stats.paired import difference
from prb.types import Failure, Pair

Graded = Grades | Failure


class GradedPair(NamedTuple):
    """The grades of both answers of a labeled pair."""

    cluster: str
    category: str
    tier: str | None
    chosen: Graded
    rejected: Graded


class GradedTwice(NamedTuple):
    """Two gradings of the same answer."""

    cluster: str
    first: Graded
    second: Graded


def grade_pairs(dataset: Dataset, grade: Callable[[Sequence[Answered]], Sequence[Graded]]) -> list[GradedPair]:
    """Grade both answers of every pair."""
    pairs = [pair for pair in dataset if isinstance(pair, Pair)]
    graded = grade([answered(pair, answer) for pair in pairs for answer in pair.contrast])
    rows = zip(pairs, dataset.index.clusters, graded[::2], graded[1::2], strict=True)
    return [GradedPair(cluster, pair.category, pair.tier, *both) for pair, cluster, *both in rows]


def discrimination(rows: Sequence[GradedPair], *, seed: int = 0) -> dict[str, Any]:
    """How often, and by how much, the chosen answer is graded above the rejected one.

    A pair with an ungraded answer has no credit; it is counted as failed.
    """
    clusters = codes([row.cluster for row in rows])
    chosen, rejected = scores([row.chosen for row in rows]), scores([row.rejected for row in rows])
    credit = np.where(np.isnan(chosen - rejected), np.nan, (np.sign(chosen - rejected) + 1) / 2)
    known = ~np.isnan(credit)
    failed = int((~known).sum())

    def grouped(labels: Sequence[str | None]) -> dict[str, Any]:
        return {label: estimate.as_dict() for label, estimate in by_label(credit, clusters, labels).items()}

    return {
        "accuracy": share(credit[known], clusters[known], failed=failed).as_dict(),
        "strict_accuracy": share((credit[known] == 1).astype(np.float64), clusters[known], failed=failed).as_dict(),
        "score_chosen": average(np.where(known, chosen, np.nan), clusters).as_dict(),
        "score_rejected": average(np.where(known, rejected, np.nan), clusters).as_dict(),
        "gap": difference(chosen, rejected, clusters, seed=seed).as_dict(),
        "by_category": grouped([row.category for row in rows]),
        "by_tier": grouped([row.tier for row in rows]),
        "failures": count_failures(graded for row in rows for graded in (row.chosen, row.rejected)),
    }


def agreement(rows: Sequence[GradedTwice], *, seed: int = 0) -> dict[str, Any]:
    """Per aspect: the share of equal grades and kappa, fractional grades rounded first. Per answer: Spearman of scores.

    An answer without both gradings is left out and counted as failed.
    """
    both = [(r.cluster, g) for r in rows if (g := [x for x in r[1:] if isinstance(x, Grades)]) and len(g) == 2]
    aspects = np.array([grades for _, g in both for grades in zip(*(x.aspects for x in g), strict=True)]).reshape(-1, 2)
    grades = np.rint(aspects).astype(np.int64)
    by_aspect = codes([cluster for cluster, g in both for _ in g[0].aspects])
    by_answer = codes([cluster for cluster, _ in both])
    totals = np.array([[x.score for x in g] for _, g in both]).reshape(-1, 2)
    return {
        "equal": share((grades[:, 0] == grades[:, 1]).astype(np.float64), by_aspect).as_dict(),
        "kappa": with_interval(weighted_kappa, grades, by_aspect, seed=seed).as_dict(),
        "spearman": with_interval(rank_correlation, ranks(totals), by_answer, seed=seed).as_dict(),
        "answers": len(both),
        "failed": len(rows) - len(both),
    }


def weighted_kappa(grades: Ints) -> float | None:
    """1 − observed / expected squared distance of two columns (Cohen 1968, doi:10.1037/h0026256); `None` for 0/0."""
    counts = [np.bincount(column, minlength=TOP + 1) for column in grades.T]
    apart = np.square(np.subtract.outer(np.arange(TOP + 1), np.arange(TOP + 1)))
    expected = float((np.outer(*counts) * apart).sum()) / max(1, len(grades))
    return 1 - float(np.square(grades[:, 0] - grades[:, 1]).sum()) / expected if expected else None


def ranks(columns: Floats) -> Ints:
    """Each column as integers in the same order, which is all that a rank correlation uses."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in columns.T], axis=1).astype(np.int64)


def rank_correlation(columns: Ints) -> float | None:
    """Spearman's ρ of two columns; `None` if one of them is constant."""
    from scipy.stats import spearmanr

    if not len(columns) or not np.ptp(columns, axis=0).all():
        return None
    return float(spearmanr(columns[:, 0], columns[:, 1]).statistic)


def scores(graded: Iterable[Graded]) -> Floats:
    """One number per answer, NaN for a failure."""
    return np.array([np.nan if isinstance(g, Failure) else g.score for g in graded], dtype=np.float64)


def count_failures(graded: Iterable[Graded]) -> dict[str, int]:
    return dict(sorted(Counter(g.reason for g in graded if isinstance(g, Failure)).items()))
