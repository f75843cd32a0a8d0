"""A trained head as a reward model: queries become features, features become rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prb.cache import Memo
from prb.data.retrieve import top_posts
from prb.errors import BadInput
from prb.hashing import digest
from prb.models import execution_of
from prb.models.personal.features import Features, features_of
from prb.models.personal.head import Head, fingerprint, read
from prb.models.personal.method import Floats, Pairs, View
from prb.text.encoders import Vector
from prb.types import Ask, Choice, Failure, Pair, Query

KNOWN = 4096
"""Users whose codes are remembered."""


class Personal:
    def __init__(self, head: Head, features: Features, name: str, codes: Mapping[str, Floats] | None = None) -> None:
        """`codes`: what is known of users by name, beside those that the head was trained on."""
        self.fingerprint, self.execution = f"personal-{name}", execution_of(features)
        self.head, self._features = head, features
        self._codes = {**head.codes, **(codes or {})}
        self._inferred: Memo[Floats] = Memo(capacity=KNOWN)

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """What a head cannot use is removed first, so that it makes no difference, not even in rounding."""
        visible = [Ask(self._visible(ask.query), ask.answer) for ask in asks]
        distinct = list(dict.fromkeys(visible))
        rewards = dict(zip(distinct, self._score(distinct), strict=True))
        return [rewards[seen] for seen in visible]

    def _visible(self, query: Query) -> Query:
        method = self.head.method
        choices = query.choices if method.code_size else ()
        user = query.user if query.user in self._codes and not choices else None
        if method.joint or method.uses_posts:
            return replace(query, user=user, choices=choices)
        return replace(query, user=user, choices=choices, posts=(), plan=())

    def _score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        head = self.head
        answers = encode_answers(self._features, asks, joint=head.method.joint)
        vectors = {n: answer for n, answer in enumerate(answers) if not isinstance(answer, Failure)}
        rewards: dict[int, float | Failure] = {}
        if vectors:
            queries = [asks[n].query for n in vectors]
            shown = queries if head.method.uses_posts else [query.blind for query in queries]
            view = view_of(self._features, shown, self._codes_of(queries))
            values = head.rewards(view, np.stack(list(vectors.values())))
            rewards = {
                n: float(value) if np.isfinite(value) else Failure("reward is not a finite number")
                for n, value in zip(vectors, values, strict=True)
            }
        return [a if isinstance(a, Failure) else rewards[n] for n, a in enumerate(answers)]

    def _codes_of(self, queries: Sequence[Query]) -> Floats:
        """From a user's past choices if the query has some, else what training knew of the user, else nobody's."""
        histories = [query.choices for query in queries if query.choices]
        keys = [digest(*(text for choice in history for text in choice)) for history in histories]

        def infer(new: Sequence[tuple[Choice, ...]]) -> list[Floats | Failure]:
            return list(infer_codes(self.head, self._features, new))

        inferred = iter(self._inferred.map(infer, histories, keys))
        nobody = self.head.nobody
        known = [next(inferred) if q.choices else self._codes.get(q.user or "", nobody) for q in queries]
        return np.stack([nobody if isinstance(code, Failure) else code for code in known])


def encode_answers(features: Features, asks: Sequence[Ask], *, joint: bool) -> list[Vector | Failure]:
    """Answers in context; the history belongs to it only for methods that are `joint`."""
    return features.answers(asks if joint else [Ask(query.blind, answer) for query, answer in asks])


def view_of(features: Features, queries: Sequence[Query], codes: Any) -> View:
    """What is known of the user beside the code: the posts, or the lines of a plan in their place."""
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


def load_personal(folder: Path) -> Personal:
    head, card = read(folder)
    features = features_of(card, folder)
    if features.fingerprint != card["features_fingerprint"]:
        raise BadInput(
            f"{folder} was trained on features {card['features_fingerprint']!r}; {card['features']!r} gives "
            f"{features.fingerprint!r} here"
        )
    return Personal(head, features, fingerprint(folder))


def infer_codes(head: Head, features: Features, histories: Sequence[Sequence[Choice]]) -> Floats:
    """What past choices say about their users, one code per history.

    A choice whose answers cannot be encoded says nothing.
    """
    choices = [(n, choice) for n, history in enumerate(histories) for choice in history]
    queries = [Query(question=choice.question) for _, choice in choices]
    asks = [Ask(query, text) for query, (_, choice) in zip(queries, choices, strict=True) for text in choice[1:]]
    encoded = encode_answers(features, asks, joint=False)
    chosen, rejected = (
        {n: a for n, a in enumerate(side) if not isinstance(a, Failure)} for side in (encoded[::2], encoded[1::2])
    )
    usable = [n for n in chosen if n in rejected]
    if not usable:
        return np.tile(head.nobody, (len(histories), 1))
    view = view_of(features, [queries[n] for n in usable], np.tile(head.nobody, (len(usable), 1)))
    of_chosen, of_rejected = (np.stack([side[n] for n in usable]) for side in (chosen, rejected))
    return head.infer(Pairs(view, of_chosen, of_rejected, np.array([choices[n][0] for n in usable])), len(histories))


def query_of(pair: Pair, rank: Any, k: int, *, posts: bool = True) -> Query:
    """As condition `profile` shows a pair; ranking is left out where it would change nothing."""
    if not posts:
        return Query(question=pair.question, user=pair.user)
    few = len(pair.profile) <= k
    shown = tuple(pair.profile) if few else top_posts(pair.question, pair.profile, rank, k=k).posts
    return Query(question=pair.question, user=pair.user, posts=shown)
