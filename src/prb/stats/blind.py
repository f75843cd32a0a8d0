"""What a learner that never sees the user can pick up: a linear Bradley-Terry model on frozen features, out of fold,
and single words that give the chosen answer away.

Folds keep clusters whole. Folds by user would split mirror twins, and the learner, having seen one twin with the other
label, would fall below chance instead of being at chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prb.stats.estimate import components
from prb.stats.paired import UNTESTED, Difference, holm
from prb.types import Estimate

Matrix = NDArray[np.floating[Any]]
MIN_PAIRS = 10
"""A word is tested if it distinguishes the two answers in at least this many pairs."""


def blind_margins(
    chosen: Matrix, rejected: Matrix, clusters: Sequence[str], *, folds: int = 5, strength: float = 1e-2, seed: int = 0
) -> NDArray[np.float64] | None:
    """Reward of chosen minus that of rejected per pair, by a model fitted on other clusters; `None` if too few.

    P(a beats b) = σ(w·(a − b)) (Bradley & Terry 1952), w by L2-penalized logistic regression without intercept on
    differences scaled by the training folds' root mean square. `strength` is scikit-learn's C.
    """
    names = np.asarray(clusters)
    order = np.random.default_rng(seed).permutation(np.unique(names))
    if len(order) < 2 * folds:
        return None
    differences = np.asarray(chosen, dtype=np.float64) - np.asarray(rejected, dtype=np.float64)
    margins = np.zeros(len(differences))
    for held_out in np.array_split(order, folds):
        test = np.isin(names, held_out)
        margins[test] = differences[test] @ bradley_terry(differences[~test], strength)
    return margins


def bradley_terry(differences: Matrix, strength: float) -> NDArray[np.float64]:
    """Weights of the logistic regression that every difference is positive."""
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((differences**2).mean(axis=0))
    scaled = differences / np.where(scale > 0, scale, 1)
    # without an intercept, a copy with opposite sign and label changes nothing, but the solver needs two classes
    both = np.concatenate([scaled, -scaled])
    labels = np.repeat([1, 0], len(scaled))
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000).fit(both, labels)
    return np.asarray(model.coef_[0] / np.where(scale > 0, scale, 1), dtype=np.float64)


def credits_of(margins: NDArray[np.float64]) -> list[float]:
    """1 for a positive margin, 0.5 for zero, 0 for a negative one."""
    return ((np.sign(margins) + 1) / 2).tolist()  # type: ignore[no-any-return]


def inflation(folds: int) -> float:
    """By how much cross-validation multiplies a variance, since the rows of a fold share one fitted model.

    1 + folds · test rows / training rows (Nadeau & Bengio 2003, doi:10.1023/A:1024068626366).
    """
    return 1 + folds / (folds - 1)


def widened(learner: Estimate, folds: int) -> Estimate:
    """A cross-validated accuracy with an interval that allows for the fitted learner."""
    if learner.value is None or learner.low is None or learner.high is None:
        return learner
    factor = inflation(folds) ** 0.5
    low, high = (learner.value + factor * (end - learner.value) for end in (learner.low, learner.high))
    return replace(learner, low=max(0.0, low), high=min(1.0, high))


def room_above(gap: Difference, learner: Estimate, folds: int) -> Difference:
    """How far a reader is above a fitted learner, with an interval that is widened by the learner's part of it.

    There is no p: the sign-flip test takes the learner as given.
    """
    low, high, value = gap.low, gap.high, learner.value
    if None not in (low, high, value, learner.low, learner.high):
        more = inflation(folds) - 1
        low = gap.value - ((gap.value - low) ** 2 + more * (learner.high - value) ** 2) ** 0.5  # type: ignore[operator]
        high = gap.value + ((high - gap.value) ** 2 + more * (value - learner.low) ** 2) ** 0.5  # type: ignore[operator]
        low, high = max(-1.0, low), min(1.0, high)
    return replace(gap, low=low, high=high, p=None, test=UNTESTED)


def fold_groups(
    clusters: Sequence[str], questions: Sequence[str], near: Iterable[tuple[str, str]], least: int
) -> tuple[list[str], str] | None:
    """Groups of rows that no fold may split, and their kind: users together with near-duplicate questions if that
    leaves at least `least` groups, else the questions alone; `None` if those are too few as well.

    Where all users ask the same questions the first kind is one large group; the second still keeps twins together,
    since they share their question.
    """
    # group names decide the order in which folds are drawn, so they must not change
    by_question = [(f"row {n}", f"question {question}") for n, question in enumerate(questions)]
    by_question += [(f"question {a}", f"question {b}") for a, b in near]
    by_user = [(f"row {n}", f"person {cluster}") for n, cluster in enumerate(clusters)]
    for kind, links in (("person and question", by_question + by_user), ("question", by_question)):
        component = components(links)
        groups = [component[f"row {n}"] for n in range(len(questions))]
        if len(set(groups)) >= least:
            return groups, kind
    return None


@dataclass(frozen=True)
class Giveaway:
    word: str
    chosen: int
    """Pairs in which only the chosen answer has the word."""
    rejected: int
    p: float
    """Two-sided, after Holm's correction over all tested words."""


def giveaways(
    answers: Iterable[tuple[AbstractSet[str], AbstractSet[str]]], clusters: Sequence[str], least: int = MIN_PAIRS
) -> tuple[list[Giveaway], int]:
    """Words that stand in one answer and not in the other more often than chance, by p; and how many were tested.

    Sign test on cluster sums s of ±1 (only in chosen, only in rejected): z = Σs / √Σs², normal under the hypothesis
    that within each cluster either side could have had the word. Mirror twins cancel exactly.
    """
    from scipy.stats import norm

    sums: dict[str, Counter[str]] = defaultdict(Counter)
    only_chosen: Counter[str] = Counter()
    only_rejected: Counter[str] = Counter()
    for (chosen, rejected), cluster in zip(answers, clusters, strict=True):
        for count, unshared, sign in ((only_chosen, chosen - rejected, 1), (only_rejected, rejected - chosen, -1)):
            count.update(unshared)
            for word in unshared:
                sums[word][cluster] += sign
    tested = sorted(word for word in sums if only_chosen[word] + only_rejected[word] >= least)
    ps = []
    for word in tested:
        values = np.array(list(sums[word].values()))
        deviation = float(np.sqrt(np.square(values).sum()))
        ps.append(float(2 * norm.sf(abs(int(values.sum())) / deviation)) if deviation else 1.0)
    words = [Giveaway(w, only_chosen[w], only_rejected[w], p) for w, p in zip(tested, holm(ps), strict=True)]
    return sorted(words, key=lambda g: (g.p, -abs(g.chosen - g.rejected), g.word)), len(tested)
