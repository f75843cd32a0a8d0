"""How far a learner gets that never sees the person: a linear Bradley-Terry model on frozen features, out of fold.

Folds keep clusters whole. With folds by person mirror twins would be split, and the learner, having seen one twin with
the other label, would fall below chance instead of standing at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prb.stats.clusters import components

Matrix = NDArray[np.floating[Any]]


def blind_margins(
    chosen: Matrix, rejected: Matrix, clusters: Sequence[str], *, folds: int = 5, strength: float = 1e-2, seed: int = 0
) -> NDArray[np.float64] | None:
    """Reward of chosen minus that of rejected for each pair, by a model fitted on other clusters; `None` if too few.

    P(a beats b) = σ(w·(a − b)) (Bradley & Terry 1952), w by L2-penalised logistic regression without intercept on
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
    """Weights that make as many differences positive as the penalty allows."""
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((differences**2).mean(axis=0))
    scaled = differences / np.where(scale > 0, scale, 1)
    # without an intercept a second copy with opposite sign and label changes nothing but gives the solver two classes
    both = np.concatenate([scaled, -scaled])
    labels = np.repeat([1, 0], len(scaled))
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000).fit(both, labels)
    return np.asarray(model.coef_[0] / np.where(scale > 0, scale, 1), dtype=np.float64)


def credits_of(margins: NDArray[np.float64]) -> list[float]:
    """1 for a pair put right, 0.5 for a tie, 0 for one put wrong."""
    return [float(m > 0) + 0.5 * float(m == 0) for m in margins]


def alike(rows: Matrix, limit: float, block: int = 1024) -> Iterator[tuple[int, int]]:
    """Positions (later, earlier) of unit rows with a cosine of at least `limit`, a block at a time."""
    for start in range(0, len(rows), block):
        close = rows[start : start + block] @ rows.T >= limit
        yield from ((start + int(i), int(j)) for i, j in np.argwhere(close) if j < start + i)


def apart(
    clusters: Sequence[str], questions: Sequence[str], near: Iterable[tuple[str, str]], least: int
) -> tuple[list[str], str] | None:
    """Groups of rows that no fold may split, and what they are: people together with near-duplicate questions if that
    leaves at least so many groups, else the questions alone; `None` if those are too few as well.

    Where everybody asks the same questions the first kind is one large group; the second still keeps twins together,
    since they share their question.
    """
    rows = [(f"row {n}", f"question {question}") for n, question in enumerate(questions)]
    rows += [(f"question {a}", f"question {b}") for a, b in near]
    people = [(f"row {n}", f"person {cluster}") for n, cluster in enumerate(clusters)]
    for what, links in (("person and question", rows + people), ("question", rows)):
        group = components(links)
        found = [group[f"row {n}"] for n in range(len(questions))]
        if len(set(found)) >= least:
            return found, what
    return None
