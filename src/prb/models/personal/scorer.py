"""A trained head as a reward model: queries become features, features become rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.data.load import load
from prb.data.retrieve import ranker, top_posts
from prb.errors import BadInput
from prb.models.personal.features import Features, Vector, make_features
from prb.models.personal.head import Head, fingerprint, read
from prb.models.personal.method import Floats, Pairs, View
from prb.types import Ask, Failure, Pair, Query

LABELED = Failure("labeled pair", "this user's choice here was given to the model as support")


class Personal:
    def __init__(
        self,
        head: Head,
        features: Features,
        name: str,
        codes: Mapping[str, Floats] | None = None,
        labeled: frozenset[tuple[str | None, str]] = frozenset(),
    ) -> None:
        """`labeled`: users and questions whose choice was given away with `codes`; they get no score."""
        self.fingerprint = f"personal-{name}"
        self.head, self._features = head, features
        self._codes = {**head.codes, **(codes or {})}
        self._labeled = labeled

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """What a head cannot use is removed first, so that it makes no difference, not even in rounding."""
        visible = [Ask(self._visible(ask.query), ask.answer) for ask in asks]
        distinct = list(dict.fromkeys(visible))
        rewards = dict(zip(distinct, self._score(distinct), strict=True))
        return [
            LABELED if (ask.query.user, ask.query.question) in self._labeled else rewards[seen]
            for ask, seen in zip(asks, visible, strict=True)
        ]

    def _visible(self, query: Query) -> Query:
        user = query.user if query.user in self._codes else None
        if self.head.method.joint or self.head.method.uses_posts:
            return replace(query, user=user)
        return Query(question=query.question, user=user)

    def _score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        head = self.head
        answers = encode_answers(self._features, asks, joint=head.method.joint)
        vectors = {n: answer for n, answer in enumerate(answers) if not isinstance(answer, Failure)}
        rewards: dict[int, float | Failure] = {}
        if vectors:
            queries = [asks[n].query for n in vectors]
            codes = np.stack([self._codes.get(q.user, head.nobody) if q.user else head.nobody for q in queries])
            shown = queries if head.method.uses_posts else [Query(question=q.question) for q in queries]
            values = head.rewards(view_of(self._features, shown, codes), np.stack(list(vectors.values())))
            rewards = {
                n: float(value) if np.isfinite(value) else Failure("reward is not a finite number")
                for n, value in zip(vectors, values, strict=True)
            }
        return [a if isinstance(a, Failure) else rewards[n] for n, a in enumerate(answers)]


def encode_answers(features: Features, asks: Sequence[Ask], *, joint: bool) -> list[Vector | Failure]:
    """Answers in context; the posts belong to it only for methods that are `joint`."""
    return features.answers(asks if joint else [Ask(Query(question=q.question), a) for q, a in asks])


def view_of(features: Features, queries: Sequence[Query], codes: Any) -> View:
    """What is known of the user are the posts, or the lines of a plan in their place."""
    questions = features.texts([query.question for query in queries])
    known = [tuple(post.text for post in query.posts) or query.plan for query in queries]
    posts = np.zeros((len(queries), max([1, *map(len, known)]), questions.shape[1]), dtype=np.float32)
    mask = np.zeros(posts.shape[:2])
    texts = [text for lines in known for text in lines]
    vectors = iter(features.texts(texts)) if texts else iter(())
    for n, lines in enumerate(known):
        for k in range(len(lines)):
            posts[n, k], mask[n, k] = next(vectors), 1
    return View(questions, posts, mask, codes)


def load_personal(folder: Path, support: str | None = None, split: str | None = None) -> Personal:
    head, card = read(folder)
    features = make_features(card["features"])
    if features.fingerprint != card["features_fingerprint"]:
        raise BadInput(
            f"{folder} was trained on features {card['features_fingerprint']!r}; {card['features']!r} gives "
            f"{features.fingerprint!r} here"
        )
    name = fingerprint(folder)
    if support is None:
        return Personal(head, features, name)
    if not head.method.code_size:
        raise BadInput(f"support={support}: method {head.spec!r} learns nothing from labeled pairs of a user")
    dataset = load(support, split=split)
    pairs = [item for item in dataset if isinstance(item, Pair)]
    codes = codes_from(head, features, pairs, card["train"])
    labeled = frozenset((pair.user, pair.question) for pair in pairs)
    return Personal(head, features, f"{name}-{dataset.fingerprint[:12]}", codes, labeled)


def codes_from(head: Head, features: Features, pairs: Sequence[Pair], settings: Mapping[str, Any]) -> dict[str, Floats]:
    """The codes of the users of labeled pairs; `settings` are those the head was trained with."""
    if not pairs:
        return {}
    number = {user: n for n, user in enumerate(dict.fromkeys(pair.user for pair in pairs))}
    rank = ranker(settings["ranker"])
    queries = [query_of(pair, rank, settings["k"], posts=head.method.uses_posts) for pair in pairs]
    asks = [Ask(query, answer) for query, pair in zip(queries, pairs, strict=True) for answer in pair.answers]
    both = []
    for answer in encode_answers(features, asks, joint=False):
        if isinstance(answer, Failure):
            raise BadInput(f"support: an answer cannot be encoded ({answer})")
        both.append(answer)
    view = view_of(features, queries, np.tile(head.nobody, (len(pairs), 1)))
    support = Pairs(view, np.stack(both[::2]), np.stack(both[1::2]), np.array([number[pair.user] for pair in pairs]))
    return dict(zip(number, head.infer(support, len(number)), strict=True))


def query_of(pair: Pair, rank: Any, k: int, *, posts: bool = True) -> Query:
    """As condition `profile` shows a pair; ranking is left out where it would change nothing."""
    if not posts:
        return Query(question=pair.question, user=pair.user)
    few = len(pair.profile) <= k
    shown = tuple(pair.profile) if few else top_posts(pair.question, pair.profile, rank, k=k).posts
    return Query(question=pair.question, user=pair.user, posts=shown)
