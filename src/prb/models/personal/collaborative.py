"""Collaborative filtering: what users with similar past votes agreed with.

Votes on single items (`polis`, `votes` with items) are in a user's history as posts "Agreed: …" and "Disagreed: …" and
as past choices. Training finds a bias and a few factors per item; a user's factors are inferred from the votes that a
query shows and from nothing else, so the model is evaluated like any other and knows no user by name. An item is known
by the digest of its text. Of an unknown one, bias and factors are predicted from its words by ridge regression.

Logistic matrix factorization, P(agree) = σ(bias_i + u·[1, v_i]), fitted by alternating least squares on the quadratic
bound of Böhning and Lindsay (1988, doi:10.1007/BF00049423), which no step can make worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from prb.config import Count, Positive
from prb.data.votes import votes_of
from prb.hashing import text_digest
from prb.models.personal.features import Features, features_of
from prb.models.personal.head import CARD, FORMAT, WEIGHTS, fingerprint, read_arrays, read_card, write_arrays
from prb.models.personal.methods import METHODS, Floats, Method
from prb.runs import write_json
from prb.types import Ask, Failure, Pair, Query

NAME = "collaborative"
SWEEPS = 60
STEPS = 30
"""Of the same bound, when the factors of one user are inferred."""
CURVATURE = 4.0
"""The bound of the logistic loss has a second derivative of 1/4."""
ALPHAS = tuple(10.0 ** np.arange(-1, 5))
"""Penalties that the regression from words may have; leave-one-out chooses."""
Votes = Mapping[str, float]
"""By text: 1 agreed, −1 disagreed."""


@METHODS.register(NAME)
@dataclass(frozen=True)
class Collaborative(Method):
    """Factors of items and users from votes on single items: no torch; for polis and other votes."""

    rank: Count = 8
    prior: Positive = 3.0
    """Penalty on the squared factors of users and items."""


class Ratings(NamedTuple):
    """Votes as columns."""

    user: Any
    item: Any
    sign: Floats
    items: list[str]
    """Texts, by number."""


@dataclass(frozen=True)
class Factors:
    bias: Floats
    items: Floats
    """(items, 1 + rank): the first column is 1, so that a user may agree with more of everything."""
    text: Floats
    """(1 + size, 1 + rank): from words to bias and factors; the last row is an intercept."""
    explained: float = 0.0
    """Share of the variance of factors that words explain, by leave-one-out."""


def votes_by_user(pairs: Iterable[Pair]) -> dict[str, Votes]:
    """Every vote that rows show: histories, past choices, and the rows' own labels."""
    votes: dict[str, dict[str, float]] = {}
    for pair in pairs:
        shown = votes_of(Query(question=pair.question, posts=tuple(pair.profile), choices=tuple(pair.choices)))
        chosen, rejected = pair.contrast
        votes.setdefault(pair.user, {}).update({**shown, chosen: 1.0, rejected: -1.0})
    return dict(votes)


def ratings_of(votes: Iterable[Votes]) -> Ratings:
    numbers: dict[str, int] = {}
    rows = [(u, numbers.setdefault(text, len(numbers)), s) for u, cast in enumerate(votes) for text, s in cast.items()]
    user, item, sign = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return Ratings(user.astype(np.int64), item.astype(np.int64), sign, list(numbers))


def factorize(ratings: Ratings, rank: int, prior: float, *, seed: int = 0) -> tuple[Floats, Floats]:
    user, item, sign, texts = ratings
    count, rng = len(texts), np.random.default_rng(seed)
    users = np.zeros((int(user.max(initial=-1)) + 1, 1 + rank))
    bias, ones = np.zeros(count), np.ones((count, 1))
    items = np.concatenate([ones, 0.1 * rng.standard_normal((count, rank))], axis=1)
    ridge = CURVATURE * prior

    def target() -> Floats:
        logit = bias[item] + (users[user] * items[item]).sum(axis=1)
        return np.asarray(logit + CURVATURE * ((sign > 0) - expit(logit)))

    for _ in range(SWEEPS):
        users = _solve(user, items[item], target() - bias[item], len(users), np.full(1 + rank, ridge))
        known = np.concatenate([np.ones((len(item), 1)), users[user][:, 1:]], axis=1)
        # of an item: its bias, which only few votes should hold near 0, and the factors
        penalties = np.r_[CURVATURE, np.full(rank, ridge)]
        solution = _solve(item, known, target() - users[user][:, 0], count, penalties)
        bias, items = solution[:, 0], np.concatenate([ones, solution[:, 1:]], axis=1)
    return bias, items


def _solve(row: Any, known: Floats, target: Floats, rows: int, ridge: Floats) -> Floats:
    """Ridge regressions side by side: of each row, on its own votes."""
    size, columns = known.shape[1], np.ascontiguousarray(known.T)
    gram = np.empty((rows, size, size))
    for a, b in combinations_with_replacement(range(size), 2):
        gram[:, a, b] = gram[:, b, a] = np.bincount(row, columns[a] * columns[b], rows)
    right = np.stack([np.bincount(row, column * target, rows) for column in columns], axis=1)
    return np.asarray(np.linalg.solve(gram + np.diag(ridge), right[:, :, None])[:, :, 0])


def with_words(bias: Floats, items: Floats, texts: Sequence[str], features: Features) -> Factors:
    """Bias and factors of items, and how to predict those of others from their words."""
    from sklearn.linear_model import RidgeCV

    targets = np.concatenate([bias[:, None], items[:, 1:]], axis=1)
    words = np.asarray(features.texts(texts), dtype=np.float64)
    model = RidgeCV(alphas=ALPHAS, scoring="r2").fit(words, targets)
    return Factors(
        bias=bias,
        items=items,
        text=np.concatenate([model.coef_.T, model.intercept_[None]]),
        explained=float(model.best_score_),
    )


class CollaborativeScorer:
    """Rewards are logits of agreeing; with no votes shown they are the items' biases, the same for everybody."""

    def __init__(self, factors: Factors, texts: Sequence[str], features: Features, prior: float, name: str) -> None:
        """`texts`: digests of the known items."""
        self.fingerprint = f"{NAME}-{name}"
        self._factors, self._features, self._prior = factors, features, prior
        self._known = {text: n for n, text in enumerate(texts)}
        self._users: dict[tuple[tuple[str, float], ...], Floats] = {}

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        shown = [votes_of(ask.query) for ask in asks]
        texts = list(dict.fromkeys([*(ask.answer for ask in asks), *(text for votes in shown for text in votes)]))
        # (texts, 2 + rank): bias, 1, factors; from the words where the item is unknown
        factors = self._factors
        rows = np.array([self._known.get(text_digest(text), -1) for text in texts], dtype=np.int64)
        items = np.concatenate([factors.bias[rows][:, None], factors.items[rows]], axis=1)
        if unknown := np.flatnonzero(rows < 0).tolist():
            words = np.asarray(self._features.texts([texts[n] for n in unknown]), dtype=np.float64)
            guessed = words @ factors.text[:-1] + factors.text[-1]
            items[unknown] = np.concatenate([guessed[:, :1], np.ones((len(unknown), 1)), guessed[:, 1:]], axis=1)
        places = dict(zip(texts, items, strict=True))
        rewards: list[float | Failure] = []
        for ask, votes in zip(asks, shown, strict=True):
            key = tuple(sorted(votes.items()))
            if key not in self._users:
                self._users[key] = self._infer(np.array([places[text] for text in votes]), votes)
            item, user = places[ask.answer], self._users[key]
            rewards.append(float(item[0] + item[2:] @ user[1:]))
        return rewards

    def _infer(self, items: Floats, votes: Votes) -> Floats:
        """The user's factors, from the votes that are shown."""
        if not votes:
            return np.zeros(self._factors.items.shape[1])
        bias, known = items[:, 0], items[:, 1:]
        agreed = np.array([sign > 0 for sign in votes.values()])
        gram = known.T @ known + CURVATURE * self._prior * np.eye(known.shape[1])
        user = np.zeros(known.shape[1])
        for _ in range(STEPS):
            logit = bias + known @ user
            user = np.linalg.solve(gram, known.T @ (known @ user + CURVATURE * (agreed - expit(logit))))
        return user


def save_factors(factors: Factors, items: Sequence[str], folder: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """The card last: where it is, the model is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder, {"bias": factors.bias, "items": factors.items, "text": factors.text})
    whole = {"format": FORMAT, **card, "items": [text_digest(text) for text in items]}
    write_json(folder / CARD, whole)
    return whole


def load_collaborative(folder: Path) -> CollaborativeScorer | None:
    """`None` if the folder holds a head on vectors."""
    card = read_card(folder)
    method, items = METHODS.make(card["method"]), card.get("items")
    if not isinstance(method, Collaborative):
        return None
    with read_arrays(folder) as arrays:
        factors = Factors(arrays["bias"], arrays["items"], arrays["text"])
        count, width = len(items or ()), 1 + method.rank
        shapes = (factors.bias.shape, factors.items.shape, factors.text.shape[1:])
        if not isinstance(items, list) or shapes != ((count,), (count, width), (width,)):
            raise ValueError("its items and its weights do not fit together")
        if not count:  # an empty table could not be indexed
            raise ValueError("it knows no item")
    features = features_of(card, folder)
    return CollaborativeScorer(factors, items, features, method.prior, fingerprint(folder, (WEIGHTS, CARD)))
