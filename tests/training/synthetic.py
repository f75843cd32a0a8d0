"""Users with a known taste, as numbers and as rows: what a head must recover."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prb.models.personal.head import Head
from prb.progress import Silent
from prb.training.learning import Examples
from tests.conftest import make_row

Floats = NDArray[np.float64]


class Interrupts(Silent):
    """Ctrl-C after so many steps of a task."""

    def __init__(self, after: int, task: str = "training") -> None:
        self._left, self._task, self._within = after, task, False

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        self._within = label.startswith(self._task)

    def advance(self, n: int = 1) -> None:
        self._left -= self._within
        if self._left == 0:
            raise KeyboardInterrupt


class Users(NamedTuple):
    examples: Examples
    taste: Floats
    """(users, size): the true reward vector of each."""
    group: NDArray[np.int64]
    best: float
    """Accuracy of a model that knows every taste."""


def conflicting_users(
    users: int = 120, pairs: int = 24, size: int = 8, posts: int = 4, groups: int = 4, seed: int = 0
) -> Users:
    """Groups in pairs of opposite taste; posts are the taste with noise; labels are drawn by Bradley-Terry."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((size, size)))[0][: groups // 2]
    group = np.arange(users) % groups
    taste = 3.0 * np.concatenate([axes, -axes])[group]
    user = np.repeat(np.arange(users), pairs)
    first, second = rng.standard_normal((2, len(user), size))
    probability = 1 / (1 + np.exp(-((first - second) * taste[user]).sum(axis=1)))
    lost = (rng.random(len(user)) > probability)[:, None]
    chosen, rejected = np.where(lost, second, first), np.where(lost, first, second)
    written = taste[:, None, :] / 2 + rng.standard_normal((users, posts, size))
    n, at, questions = len(user), np.arange(len(user)), rng.standard_normal((len(user), size))
    places = [at, n + at, 2 * n + at, *(3 * n + user * posts + k for k in range(posts))]
    examples = Examples(
        vectors=np.concatenate([questions, chosen, rejected, written.reshape(-1, size)]).astype(np.float32),
        rows=np.column_stack(places).astype(np.int32),
        users=[f"u{k}" for k in range(users)],
        user=user,
        cluster=user,
        twins=np.full(n, -1),
    )
    return Users(examples, taste, group, float(np.maximum(probability, 1 - probability).mean()))


def implied_taste(head: Head, examples: Examples, row: int, code: Floats | None = None) -> Floats:
    """The gradient of a user's reward at the average answer, by central differences."""
    eye = 1e-3 * np.eye(examples.size)
    known = head.prior_mean if code is None else code
    pairs = examples.pairs(np.full(examples.size, row), head.method, np.tile(known, (examples.size, 1)))
    mean = head.scaler.answer[0]
    return head.rewards(pairs.view, mean + eye) - head.rewards(pairs.view, mean - eye)


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


TASTES = (("Rye bread, short.", "A long train ride."), ("A long train ride.", "Rye bread, short."))


def rows_of_twelve() -> list[dict[str, Any]]:
    """Twelve users, four questions each, two opposite tastes that their posts reveal."""
    made = []
    for user in range(12):
        chosen, rejected = TASTES[user % 2]
        profile = [{"id": str(n), "text": f"I enjoyed {chosen.lower()} {n}"} for n in range(3)]
        for n in range(4):
            texts = {"chosen": f"{chosen} {n}", "rejected": f"{rejected} {n}", "profile": profile, "split": "train"}
            made.append(make_row(10 * user + n, user=f"u{user}", question=f"What now, {n}?", **texts))
    return made
