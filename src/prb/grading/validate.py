"""How far can a grader be trusted? Its grades against labels, against people's grades, and against itself.

Pure: everything here is computed from grades that were given, one function a question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from prb.data.load import Dataset
from prb.grading import TOP, Answered, Grades, answered
from prb.stats.agreement import Statistic, with_interval
from prb.stats.best_of import average
from prb.stats.estimate import Floats, Ints, codes, share
from prb.stats.paired import difference
from prb.stats.people import by_label
from prb.types import Failure, Pair

Graded = Grades | Failure


class Judged(NamedTuple):
    """A pair with known labels and the grades of its two answers."""

    cluster: str
    category: str
    tier: str | None
    chosen: Graded
    rejected: Graded


class Twice(NamedTuple):
    """The same answer graded by two."""

    cluster: str
    first: Graded
    second: Graded


def judged(dataset: Dataset, grade: Callable[[Sequence[Answered]], Sequence[Graded]]) -> list[Judged]:
    """Both answers of every pair, graded."""
    pairs = [pair for pair in dataset if isinstance(pair, Pair)]
    graded = grade([answered(pair, answer) for pair in pairs for answer in pair.answers])
    rows = zip(pairs, dataset.index.clusters, graded[::2], graded[1::2], strict=True)
    return [Judged(cluster, pair.category, pair.tier, *both) for pair, cluster, *both in rows]


def discrimination(rows: Sequence[Judged], *, seed: int = 0) -> dict[str, Any]:
    """How often, and by how much, the chosen answer is graded above the rejected one.

    A pair of which either answer has no grade has no credit: it is counted, never scored.
    """
    clusters = codes([row.cluster for row in rows])
    chosen, rejected = scores([row.chosen for row in rows]), scores([row.rejected for row in rows])
    credit = np.where(np.isnan(chosen - rejected), np.nan, (np.sign(chosen - rejected) + 1) / 2)
    known = ~np.isnan(credit)
    failed = int((~known).sum())
    return {
        "accuracy": share(credit[known], clusters[known], failed=failed).as_dict(),
        "strict_accuracy": share((credit[known] == 1).astype(np.float64), clusters[known], failed=failed).as_dict(),
        "score_chosen": average(np.where(known, chosen, np.nan), clusters).as_dict(),
        "score_rejected": average(np.where(known, rejected, np.nan), clusters).as_dict(),
        "gap": difference(chosen, rejected, clusters, seed=seed).as_dict(),
        "by_category": _estimates(by_label(credit, clusters, [row.category for row in rows])),
        "by_tier": _estimates(by_label(credit, clusters, [row.tier for row in rows])),
        "failures": failures(graded for row in rows for graded in (row.chosen, row.rejected)),
    }


def agreement(rows: Sequence[Twice], *, seed: int = 0) -> dict[str, Any]:
    """Aspect by aspect and over whole answers; an answer that either side did not grade is left out and counted.

    Aspects: the share of equal grades, and kappa; a grade between two is rounded first. Answers: Spearman of scores.
    """
    both = [(r.cluster, g) for r in rows if (g := [x for x in r[1:] if isinstance(x, Grades)]) and len(g) == 2]
    aspects = np.array([grades for _, g in both for grades in zip(*(x.aspects for x in g), strict=True)]).reshape(-1, 2)
    grades = np.rint(aspects).astype(np.int64)
    by_aspect = codes([cluster for cluster, g in both for _ in g[0].aspects])
    by_answer = codes([cluster for cluster, _ in both])
    totals = np.array([[x.score for x in g] for _, g in both]).reshape(-1, 2)
    return {
        "equal": share((grades[:, 0] == grades[:, 1]).astype(np.float64), by_aspect).as_dict(),
        "kappa": _with_interval(weighted_kappa, grades, by_aspect, seed),
        "spearman": _with_interval(rank_correlation, ranks(totals), by_answer, seed),
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
    """Each column as whole numbers in the same order; all that a rank correlation looks at."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in columns.T], axis=1).astype(np.int64)


def rank_correlation(columns: Ints) -> float | None:
    """Spearman's of two columns; `None` where one of them is constant."""
    from scipy.stats import spearmanr

    if not len(columns) or not np.ptp(columns, axis=0).all():
        return None
    return float(spearmanr(columns[:, 0], columns[:, 1]).statistic)


def _with_interval(statistic: Statistic, columns: Ints, clusters: Ints, seed: int) -> dict[str, Any]:
    if not len(columns):
        return {"value": None, "low": None, "high": None, "n": 0}
    return with_interval(statistic, columns, clusters, seed=seed).as_dict()


def scores(graded: Iterable[Graded]) -> Floats:
    """One number an answer, NaN where there is none."""
    return np.array([np.nan if isinstance(g, Failure) else g.score for g in graded], dtype=np.float64)


def failures(graded: Iterable[Graded]) -> dict[str, int]:
    return dict(sorted(Counter(g.reason for g in graded if isinstance(g, Failure)).items()))


def _estimates(found: dict[str, Any]) -> dict[str, Any]:
    return {name: estimate.as_dict() for name, estimate in found.items()}
