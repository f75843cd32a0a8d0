"""What explains verdicts besides the user: length, position, giveaway words, a learner that never sees the user. And
whether margins mean anything.

The user-blind learner is a linear Bradley-Terry model on frozen features, out of fold. Folds keep clusters whole: folds
by user would split mirror twins, and the learner, having seen one twin with the other label, would fall below chance
instead of being at chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prb.stats.estimate import Floats, Ints, components, effective_clusters, share, t95
from prb.stats.paired import UNTESTED, holm
from prb.types import Difference, Estimate

Matrix = NDArray[np.floating[Any]]
FOLDS = 5
INFLATION = 1 + FOLDS / (FOLDS - 1)
"""By how much cross-validation multiplies a variance, since the rows of a fold share one fitted model: 1 + folds · test
rows / training rows (Nadeau & Bengio 2003, doi:10.1023/A:1024068626366)."""
BINS = 10
PENALTY = np.diag([0.0, 0.01])
"""On the slope of the length regression: so weak that it only keeps separable data finite."""
MIN_PAIRS = 10
"""A word is tested if it distinguishes the two answers in at least this many pairs."""


# --- length ---
def length_bias(credit: Floats, clusters: Ints, chosen: Floats, rejected: Floats) -> dict[str, Any] | None:
    """Accuracy where the chosen answer is longer, where it is shorter, and at equal length.

    The last is the intercept of a logistic regression of winning on the log length ratio, as in
    length-controlled AlpacaEval (Dubois et al. 2024, arXiv 2404.04475).
    """
    answered = ~np.isnan(credit)
    if not answered.any():
        return None
    credit, clusters = credit[answered], clusters[answered]
    ratio = np.log(chosen[answered] / rejected[answered])
    accuracy, slope = logistic(ratio, credit)
    return {
        "chosen_longer": share(credit[ratio > 0], clusters[ratio > 0]).as_dict(),
        "chosen_shorter": share(credit[ratio < 0], clusters[ratio < 0]).as_dict(),
        "accuracy_at_equal_length": accuracy,
        "slope": slope,
    }


def logistic(ratio: Floats, credit: Floats) -> tuple[float | None, float | None]:
    """σ(intercept) and slope per standard deviation, by Newton's method: scikit-learn takes a second to import."""
    if np.ptp(ratio) == 0 or len(np.unique(credit)) < 2:
        return None, None
    from scipy.special import expit

    center, scale = ratio.mean(), ratio.std()
    design = np.stack([np.ones(len(ratio)), (ratio - center) / scale], axis=1)

    def loss(weights: Floats) -> float:
        logits = design @ weights
        return float((np.logaddexp(0, logits) - credit * logits).sum() + weights @ PENALTY @ weights / 2)

    weights = np.zeros(2)
    for _ in range(100):  # usually six are enough
        chance = expit(design @ weights)
        gradient = design.T @ (chance - credit) + PENALTY @ weights
        step = np.linalg.solve((design * (chance * (1 - chance))[:, None]).T @ design + PENALTY, gradient)
        while loss(weights - step) > loss(weights) and np.abs(step).max() > 1e-12:
            step /= 2
        weights = weights - step
        if np.abs(step).max() <= 1e-12:
            break
    return float(expit(weights[0] - weights[1] * center / scale)), float(weights[1])


def length_controlled(
    credit: Floats, clusters: Ints, chosen: Floats, rejected: Floats, *, exact: bool = False
) -> Estimate:
    """Accuracy at equal length: σ(intercept) of `length_bias`, with an interval that respects clusters.

    The interval is a t interval on clusters − 1 of the intercept, on the logit scale, with its clustered variance
    A⁻¹ B A⁻¹ and the factor G/(G−1) (Liang & Zeger 1986). Where length cannot matter (all credits or all length ratios
    are alike, or the value of ½ is `exact`, see `cancels`) it is the accuracy itself.
    """
    answered = ~np.isnan(credit)
    failed = int((~answered).sum())
    credit, clusters = credit[answered], clusters[answered]
    ratio = np.log(chosen[answered] / rejected[answered])
    value, slope = logistic(ratio, credit) if len(credit) and not exact else (None, None)
    if value is None or slope is None:
        return share(credit, clusters, failed=failed, exact=exact)
    ties, (_, dense) = int((credit == 0.5).sum()), np.unique(clusters, return_inverse=True)
    if dense.max() < 1:
        return Estimate(value=value, low=0.0, high=1.0, n=len(credit), failed=failed, ties=ties)
    intercept, column = float(np.log(value / (1 - value))), ratio / ratio.std()
    design = np.stack([np.ones_like(column), column], axis=1)
    chance = 1 / (1 + np.exp(-(intercept + slope * column)))
    inverse = np.linalg.inv((design * (chance * (1 - chance))[:, None]).T @ design + PENALTY)
    scores = np.zeros((dense.max() + 1, 2))
    np.add.at(scores, dense, design * (credit - chance)[:, None])
    variance = (inverse @ (scores.T @ scores) @ inverse)[0, 0] * len(scores) / (len(scores) - 1)
    half = t95(effective_clusters(clusters) - 1) * float(np.sqrt(variance))
    low, high = (float(1 / (1 + np.exp(-(intercept + side)))) for side in (-half, half))
    return Estimate(value=value, low=low, high=high, n=len(credit), failed=failed, ties=ties)


# --- position ---
def position_bias(verdicts: Sequence[Sequence[str | None]]) -> dict[str, Any] | None:
    """How often the first answer wins, and, over pairs asked in both orders, how often the same answer does.

    If no pair was asked in both orders, the verdicts of the one order that was asked are counted.
    """
    both = [pair for pair in verdicts if len(pair) == 2 and None not in pair]
    decisions = [choice for pair in both or verdicts for choice in pair if choice in ("first", "second")]
    if not both and not decisions:
        return None
    swapped = {"first": "second", "second": "first", "tie": "tie"}
    return {
        "n": len(both) or len(decisions),
        "consistency": sum(swapped[str(a)] == b for a, b in both) / len(both) if both else None,
        "first_share": decisions.count("first") / len(decisions) if decisions else None,
    }


# --- margins ---
def calibration(margin: Floats, credit: Floats, clusters: Ints) -> dict[str, Any] | None:
    """Brier score, expected calibration error and reliability curve of the confidence σ(|margin| / T).

    The temperature T of a row is fitted on other clusters only, so no user calibrates themselves (temperature scaling:
    Guo et al. 2017, arXiv 1706.04599; Brier 1950). `None` where there is nothing to fit.
    """
    answered = ~(np.isnan(margin) | np.isnan(credit))
    margin, credit, groups = np.abs(margin[answered]), credit[answered], clusters[answered]
    _, dense = np.unique(groups, return_inverse=True)
    if len(margin) == 0 or dense.max() + 1 < FOLDS or not margin.any():
        return None
    fold = dense % FOLDS
    temperatures = [fit_temperature(margin[fold != k], credit[fold != k]) for k in range(FOLDS)]
    confidence = 1 / (1 + np.exp(-margin / np.array(temperatures)[fold]))
    bins = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)  # over [½, 1]
    curve = [
        {"confidence": float(confidence[rows].mean()), "accuracy": float(credit[rows].mean()), "n": int(rows.sum())}
        for rows in (bins == k for k in np.unique(bins))
    ]
    return {
        "n": len(margin),
        "temperature": float(np.median(temperatures)),
        "brier": float(np.square(confidence - credit).mean()),
        "ece": float(sum(b["n"] * abs(b["confidence"] - b["accuracy"]) for b in curve) / len(credit)),
        "curve": curve,
    }


def fit_temperature(margin: Floats, credit: Floats) -> float:
    """The T that minimizes the log loss of σ(margin / T), searched on a log scale around the size of the margins."""
    from scipy.optimize import minimize_scalar

    scale = float(margin[margin > 0].mean()) if (margin > 0).any() else 1.0
    sizes, counts = np.unique(margin, return_counts=True)
    missed = float((margin * (1 - credit)).sum())

    def loss(log_t: float) -> float:
        # log(1 + eᶻ) = z + log(1 + e⁻ᶻ), so a lost pair costs z more than a won one with the same margin
        t = scale * np.exp(log_t)
        return float((np.logaddexp(0, -sizes / t) * counts).sum() + missed / t) / len(margin)

    best = minimize_scalar(loss, bounds=(-6.0, 6.0), method="bounded", options={"xatol": 1e-6})
    return scale * float(np.exp(best.x))


DECILES = 10
MARGIN_BINS, REACH = 24, 3.0
"""Bars of the histogram, and its range in units of `margin_scale`; the outermost bars hold everything beyond."""


def histogram(margin: Floats) -> dict[str, Any] | None:
    """Margins in units of their median size, since every model has its own scale; positive ones prefer the chosen
    answer. Zeros are counted apart; `None` if there is nothing else."""
    known = margin[~np.isnan(margin)]
    others = known[known != 0]
    if not len(others):
        return None
    scale = float(np.median(np.abs(others)))
    relative = np.clip(others / scale, -REACH, np.nextafter(REACH, 0))
    counts, _ = np.histogram(relative, bins=MARGIN_BINS, range=(-REACH, REACH))
    return {"scale": scale, "reach": REACH, "counts": counts.tolist(), "zeros": len(known) - len(others)}


def by_margin(margin: Floats, credit: Floats, clusters: Ints) -> list[dict[str, Any]]:
    """Accuracy by decile of |margin|, smallest first; equal margins are never split, so there may be fewer bins.

    If margins mean anything, accuracy rises with them: a pair the model is sure of is more often right.
    """
    answered = ~(np.isnan(margin) | np.isnan(credit))
    sizes, credit, clusters = np.abs(margin[answered]), credit[answered], clusters[answered]
    if not len(sizes):
        return []
    cuts = np.unique(np.quantile(sizes, np.arange(1, DECILES) / DECILES, method="lower"))
    bins = np.searchsorted(cuts, sizes, side="left")
    return [
        {"from": float(sizes[rows].min()), "to": float(sizes[rows].max())}
        | share(credit[rows], clusters[rows]).as_dict()
        for rows in (bins == n for n in np.unique(bins))
    ]


# --- what can be learned without the user ---
def blind_margins(
    chosen: Matrix, rejected: Matrix, clusters: Sequence[str], *, strength: float = 1e-2, seed: int = 0
) -> Floats | None:
    """Reward of chosen minus that of rejected per pair, by a model fitted on other clusters; `None` if too few.

    P(a beats b) = σ(w·(a − b)) (Bradley & Terry 1952), w by L2-penalized logistic regression without intercept on
    differences scaled by the training folds' root mean square. `strength` is scikit-learn's C.
    """
    names = np.asarray(clusters)
    order = np.random.default_rng(seed).permutation(np.unique(names))
    if len(order) < 2 * FOLDS:
        return None
    differences = np.asarray(chosen, dtype=np.float64) - np.asarray(rejected, dtype=np.float64)
    margins = np.zeros(len(differences))
    for held_out in np.array_split(order, FOLDS):
        test = np.isin(names, held_out)
        margins[test] = differences[test] @ bradley_terry(differences[~test], strength)
    return margins


def bradley_terry(differences: Matrix, strength: float) -> Floats:
    """Weights of the logistic regression that every difference is positive."""
    from sklearn.linear_model import LogisticRegression

    scale = np.sqrt((differences**2).mean(axis=0))
    scaled = differences / np.where(scale > 0, scale, 1)
    # without an intercept, a copy with opposite sign and label changes nothing, but the solver needs two classes
    both = np.concatenate([scaled, -scaled])
    labels = np.repeat([1, 0], len(scaled))
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000).fit(both, labels)
    return np.asarray(model.coef_[0] / np.where(scale > 0, scale, 1), dtype=np.float64)


def credits_of(margins: Floats) -> Floats:
    """1 for a positive margin, 0.5 for zero, 0 for a negative one."""
    return (np.sign(margins) + 1) / 2


def widened(learner: Estimate) -> Estimate:
    """A cross-validated accuracy with an interval that allows for the fitted learner."""
    if learner.value is None or learner.low is None or learner.high is None:
        return learner
    factor = INFLATION**0.5
    low, high = (learner.value + factor * (end - learner.value) for end in (learner.low, learner.high))
    return replace(learner, low=max(0.0, low), high=min(1.0, high))


def room_above(gap: Difference, learner: Estimate) -> Difference:
    """How far a reader is above a fitted learner, with an interval that is widened by the learner's part of it.

    There is no p: the sign-flip test takes the learner as given.
    """
    low, high, value = gap.low, gap.high, learner.value
    if None not in (low, high, value, learner.low, learner.high):
        more = INFLATION - 1
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
