"""A trained head as a reward model: queries become features, features become numbers."""

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

LABELLED = Failure("labelled pair", "this person's choice here was given to the model as support")


class Personal:
    def __init__(
        self,
        head: Head,
        features: Features,
        name: str,
        codes: Mapping[str, Floats] | None = None,
        labelled: frozenset[tuple[str | None, str]] = frozenset(),
    ) -> None:
        """`labelled`: persons and questions whose choice was given away with `codes`; there is no score for them."""
        self.fingerprint = f"personal-{name}"
        self.head, self._features = head, features
        self._method = head.method
        self._codes = {**head.codes, **(codes or {})}
        self._labelled = labelled

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        """What a head does not look at is taken away first: it must make no difference, not even in rounding."""
        seen = [Ask(self._visible(ask.query), ask.answer) for ask in asks]
        distinct = list(dict.fromkeys(seen))
        scores = dict(zip(distinct, self._score(distinct), strict=True))
        return [
            LABELLED if (ask.query.user, ask.query.question) in self._labelled else scores[visible]
            for ask, visible in zip(asks, seen, strict=True)
        ]

    def _visible(self, query: Query) -> Query:
        user = query.user if query.user in self._codes else None
        if self._method.joint or self._method.looks_at_posts:
            return replace(query, user=user)
        return Query(question=query.question, user=user)

    def _score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        answers = read_answers(self._features, asks, joint=self._method.joint)
        good = [n for n, answer in enumerate(answers) if not isinstance(answer, Failure)]
        vectors = [answer for answer in answers if not isinstance(answer, Failure)]
        results: list[float | Failure] = [a if isinstance(a, Failure) else Failure("not scored") for a in answers]
        if good:
            view = self.view([asks[n].query for n in good])
            rewards = self.head.rewards(view, np.stack(vectors))
            for n, reward in zip(good, rewards, strict=True):
                results[n] = float(reward) if np.isfinite(reward) else Failure("reward is not a finite number")
        return results

    def view(self, queries: Sequence[Query]) -> View:
        codes = [self._codes.get(q.user, self.head.nobody) if q.user else self.head.nobody for q in queries]
        shown = queries if self._method.looks_at_posts else [Query(question=q.question) for q in queries]
        return view_of(self._features, shown, np.stack(codes))


def read_answers(features: Features, asks: Sequence[Ask], *, joint: bool) -> list[Vector | Failure]:
    """Answers in context; the posts belong to it only if the method wants them there."""
    return features.answers(asks if joint else [Ask(Query(question=q.question), a) for q, a in asks])


def about(query: Query) -> tuple[str, ...]:
    """What is told of the person: posts, or the lines of a plan in their place."""
    return tuple(post.text for post in query.posts) or query.plan


def view_of(features: Features, queries: Sequence[Query], codes: Any) -> View:
    questions = features.texts([query.question for query in queries])
    width = max([1, *(len(about(query)) for query in queries)])
    posts = np.zeros((len(queries), width, questions.shape[1]), dtype=np.float32)
    mask = np.zeros((len(queries), width))
    texts = [text for query in queries for text in about(query)]
    rows = iter(features.texts(texts)) if texts else iter(())
    for n, query in enumerate(queries):
        for k in range(len(about(query))):
            posts[n, k], mask[n, k] = next(rows), 1
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
        raise BadInput(f"support={support}: method {head.spec!r} learns nothing from labelled pairs of a person")
    given = load(support, split=split)
    pairs = [item for item in given if isinstance(item, Pair)]
    codes = codes_from(head, features, pairs, card["train"])
    labelled = frozenset((pair.user, pair.question) for pair in pairs)
    return Personal(head, features, f"{name}-{given.fingerprint[:12]}", codes, labelled)


def codes_from(head: Head, features: Features, pairs: Sequence[Pair], shown: Mapping[str, Any]) -> dict[str, Floats]:
    """What labelled pairs tell about each of their persons."""
    if not pairs:
        return {}
    users = list(dict.fromkeys(pair.user for pair in pairs))
    return dict(zip(users, head.infer(support_of(head, features, pairs, shown), len(users)), strict=True))


def support_of(head: Head, features: Features, pairs: Sequence[Pair], shown: Mapping[str, Any]) -> Pairs:
    number = {user: n for n, user in enumerate(dict.fromkeys(pair.user for pair in pairs))}
    rank = ranker(shown["ranker"])
    queries = [query_of(pair, rank, shown["k"], posts=head.method.looks_at_posts) for pair in pairs]
    view = view_of(features, queries, np.tile(head.nobody, (len(pairs), 1)))
    asks = [Ask(query, answer) for query, pair in zip(queries, pairs, strict=True) for answer in pair.answers]
    answers = []
    for answer in read_answers(features, asks, joint=False):
        if isinstance(answer, Failure):
            raise BadInput(f"support: an answer cannot be read ({answer})")
        answers.append(answer)
    both = np.stack(answers)
    return Pairs(view, both[::2], both[1::2], np.array([number[pair.user] for pair in pairs]))


def query_of(pair: Pair, rank: Any, k: int, *, posts: bool = True) -> Query:
    """As condition `profile` shows a pair; ranking is left out where it would change nothing."""
    if not posts:
        return Query(question=pair.question, user=pair.user)
    few = len(pair.profile) <= k
    shown = tuple(pair.profile) if few else top_posts(pair.question, pair.profile, rank, k=k).posts
    return Query(question=pair.question, user=pair.user, posts=shown)
