"""Axes of preference with labels: what shows each pole in posts, and what suits it in answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from prb.config import Positive
from prb.models.personal.method import METHODS, Array, Floats, Method, Params, Taught, View


@METHODS.register("axes")
@dataclass(frozen=True)
class Axes(Method):
    """Directions of labeled axes in posts and in answers; no torch; needs `mirror?split=train`.

    A user's loading on an axis is the mean over the posts. An answer's loading is raised to a power, so that the axes
    a question is about outweigh the many others. Directions separate the poles of an axis relative to how much texts
    of one pole vary (Fisher 1936, doi:10.1111/j.1469-1809.1936.tb02137.x), which is estimated over all axes at once.
    """

    shrink: Positive = 1.0
    power: Positive = 3.0

    grid: ClassVar = {"shrink": (0.3, 1.0, 10.0), "power": (1.0, 3.0)}
    uses_posts = closed_form = taught = True

    def teach(self, lessons: Sequence[Taught]) -> dict[str, Floats]:
        posts = [pole for lesson in lessons for pole in (lesson.first, lesson.second)]
        gaps = [lesson.gaps for lesson in lessons]
        between_posts = np.stack([lesson.first.mean(axis=0) - lesson.second.mean(axis=0) for lesson in lessons])
        between_answers = np.stack([gap.mean(axis=0) for gap in gaps])
        return {
            "post": directions(between_posts, posts, self.shrink),
            "answer": directions(between_answers, gaps, self.shrink),
        }

    def reward(self, params: Params, view: View, answer: Array) -> Array:
        loadings = answer @ params["answer"]
        sharpened = np.sign(loadings) * np.abs(loadings) ** self.power
        user = (view.posts.sum(axis=1) / np.maximum(view.mask.sum(axis=1), 1)[:, None]) @ params["post"]
        return (user * sharpened).sum(axis=-1)


def directions(between: Floats, groups: Sequence[Floats], shrink: float) -> Floats:
    """(size, axes): one direction per row of `between`, of unit deviation within the groups."""
    rest = np.vstack([group - group.mean(axis=0) for group in groups])
    within = rest.T @ rest / len(rest)
    size = len(within)
    within += shrink * np.trace(within) / size * np.eye(size)
    found = np.linalg.solve(within, between.T)
    return np.asarray(found / np.sqrt((found * (within @ found)).sum(axis=0)))
