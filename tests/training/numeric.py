"""People with a known taste, as numbers: what a head must find again, without any text in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.models.personal.head import Head
from prb.training.examples import Examples

Floats = NDArray[np.float64]


class People(NamedTuple):
    examples: Examples
    taste: Floats
    """(persons, size): the true reward vector of each."""
    group: NDArray[np.int64]
    best: float
    """Accuracy of somebody who knows every taste."""


def conflicting_people(
    persons: int = 120, pairs: int = 24, size: int = 8, posts: int = 4, groups: int = 4, seed: int = 0
) -> People:
    """Groups in pairs of opposite taste; posts are the taste with noise; labels are drawn by Bradley-Terry."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((size, size)))[0][: groups // 2]
    group = np.arange(persons) % groups
    taste = 3.0 * np.concatenate([axes, -axes])[group]
    person = np.repeat(np.arange(persons), pairs)
    first, second = rng.standard_normal((2, len(person), size))
    probability = 1 / (1 + np.exp(-((first - second) * taste[person]).sum(axis=1)))
    lost = (rng.random(len(person)) > probability)[:, None]
    chosen, rejected = np.where(lost, second, first), np.where(lost, first, second)
    written = taste[:, None, :] / 2 + rng.standard_normal((persons, posts, size))
    return People(
        _examples(rng.standard_normal((len(person), size)), chosen, rejected, written, person),
        taste,
        group,
        float(np.maximum(probability, 1 - probability).mean()),
    )


def _examples(
    questions: Floats, chosen: Floats, rejected: Floats, written: Floats, person: NDArray[np.int64]
) -> Examples:
    n, (persons, posts, size) = len(person), written.shape
    at = np.arange(n)
    places = [at, n + at, 2 * n + at, *(3 * n + person * posts + k for k in range(posts))]
    return Examples(
        vectors=np.concatenate([questions, chosen, rejected, written.reshape(-1, size)]).astype(np.float32),
        rows=np.column_stack(places).astype(np.int32),
        users=[f"u{k}" for k in range(persons)],
        person=person,
        cluster=person,
        twins=np.full(n, -1),
        fingerprint="numeric",
    )


def implied_taste(head: Head, examples: Examples, row: int, code: Floats | None = None) -> Floats:
    """The gradient of a person's reward at the average answer, by central differences."""
    eye = 1e-3 * np.eye(examples.size)
    pairs = examples.pairs(np.full(examples.size, row), head.method, np.tile(_code(head, code), (examples.size, 1)))
    mean = head.scaler.answer[0]
    return head.rewards(pairs.view, mean + eye) - head.rewards(pairs.view, mean - eye)


def _code(head: Head, code: Floats | None) -> Floats:
    return head.nobody if code is None else code


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
