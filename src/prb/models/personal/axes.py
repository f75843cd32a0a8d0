"""Axes of preference with labels: what shows each pole in posts, and what suits it in answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prb.config import Count, NonNegative, Positive
from prb.models.personal.method import METHODS, Array, Floats, Method, Params, Taught, View

TINY = 1e-9


@METHODS.register("axes")
@dataclass(frozen=True)
class Axes(Method):
    """Posts matched with answers, learned from labeled axes; no torch; needs `mirror?split=train`.

    The match of a post p and an answer a is pᵀ C⁻¹ (affinity + Σ poles) D⁻¹ a. C and D say how much posts, and answers,
    vary within a pole: what varies there tells nothing of a preference (Fisher 1936,
    doi:10.1111/j.1469-1809.1936.tb02137.x). Affinity carries over to axes that were not seen; the sum over seen axes
    turns what shows a pole in posts and answers into what suits it. Posts near the answer count more: `sharp`.
    """

    affinity: NonNegative = 1.0
    shrink: Positive = 3.0
    shrink_answers: Positive = 10.0
    sharp: NonNegative = 0.5

    uses_posts = closed_form = taught = True

    def teach(self, lessons: Sequence[Taught]) -> dict[str, Floats]:
        posts = spread([pole for lesson in lessons for pole in (lesson.first, lesson.second)])
        answers = spread([lesson.gaps for lesson in lessons])
        shown = np.stack([lesson.first.mean(axis=0) - lesson.second.mean(axis=0) for lesson in lessons]) / 2
        wanted = np.stack([lesson.gaps.mean(axis=0) for lesson in lessons]) / 2
        size = len(posts)
        poles = (shown + wanted / 2).T @ wanted / len(lessons)  # answers show a pole more plainly than posts do
        affinity = self.affinity * np.sqrt(np.trace(posts) * np.trace(answers)) / size * np.eye(size)
        return {"match": inverse(posts, self.shrink) @ (affinity + poles) @ inverse(answers, self.shrink_answers)}

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        matches = np.einsum("rps,rs->rp", view.posts, answer @ params["match"].T)
        weights = np.exp(self.sharp * standardized(cosines(view.posts, answer), view.mask)) * view.mask
        return (weights * matches).sum(axis=1) / np.maximum(weights.sum(axis=1), TINY)


@METHODS.register("matcher")
@dataclass(frozen=True)
class Matcher(Axes):
    """`axes` on states of an LLM that is tuned to match first: LoRA, for `hidden?lm=NAME&alone=true` (extra `train`).

    A post of a pole must be nearer to the answer for it than to the answer for the other, by the cosine of mean states;
    neither post nor answer of another axis may take sides. The adapter is written beside the head.
    """

    rank: Count = 8
    passes: Count = 4
    rate: Positive = 3e-4
    axes: Count = 2
    posts: Count = 3
    questions: Count = 2
    apart: NonNegative = 0.02
    scale: Positive = 20.0


def spread(groups: Sequence[Floats]) -> Floats:
    """Covariance within the groups."""
    rest = np.vstack([group - group.mean(axis=0) for group in groups])
    return np.asarray(rest.T @ rest / len(rest))


def inverse(covariance: Floats, shrink: float) -> Floats:
    """Of the covariance plus `shrink` times its mean variance in every direction."""
    size = len(covariance)
    return np.linalg.inv(covariance + shrink * np.trace(covariance) / size * np.eye(size))


def cosines(posts: Array, answer: Array) -> Array:
    lengths = np.sqrt((posts**2).sum(axis=-1) * (answer**2).sum(axis=-1)[:, None])
    return np.einsum("rps,rs->rp", posts, answer) / np.maximum(lengths, TINY)


def standardized(values: Array, mask: Array) -> Array:
    """Over the posts of each row; 0 where there is no post."""
    count = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    rest = (values - (values * mask).sum(axis=1, keepdims=True) / count) * mask
    return rest / np.maximum(np.sqrt((rest**2).sum(axis=1, keepdims=True) / count), TINY)
