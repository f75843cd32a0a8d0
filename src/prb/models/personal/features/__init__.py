"""Vectors of texts, and of answers in their context: computed once, remembered on disk by content.

`make_features("static")`, `"minilm"` or any other encoder; further kinds are files here (`hidden?lm=smollm2`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from prb.cache import Cache
from prb.errors import unknown
from prb.hashing import digest
from prb.prompts import render
from prb.registry import Registry, Spec
from prb.text.encoders import ENCODERS, Encoder, Matrix
from prb.types import Ask, Failure, Query

Vector = NDArray[np.float32]
T = TypeVar("T")


class Features(Protocol):
    fingerprint: str

    def texts(self, texts: Sequence[str]) -> Matrix:
        """A row for each question or post, read on its own."""
        ...

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        """Each answer in its context; with posts in the query, in theirs too."""
        ...


FEATURES: Registry[Features] = Registry("features", package="prb.models.personal.features", group="prb.features")
QUICK = ("static",)
"""Encoders that are as fast as a look into the cache."""


def make_features(spec: str) -> Features:
    check_features(spec)
    name = Spec.parse(spec).name
    if name in FEATURES:
        made = FEATURES.make(spec)
        return made if isinstance(made, Shifted) else Remembered(made)
    encoded = Encoded(ENCODERS.make(spec))
    return encoded if name in QUICK else Remembered(encoded)


def check_features(spec: str) -> None:
    """Raise what `make_features` would raise for a wrong name or option, without loading anything."""
    parsed = Spec.parse(spec)
    if parsed.name not in FEATURES and parsed.name not in ENCODERS:
        raise unknown("features", parsed.name, [*ENCODERS, *FEATURES])
    FEATURES.check(parsed) if parsed.name in FEATURES else ENCODERS.check(parsed)


class Encoded:
    """A sentence encoder: answers stand alone, unless the posts are to be read with them."""

    def __init__(self, encoder: Encoder) -> None:
        self.fingerprint = encoder.fingerprint
        self._encoder = encoder

    def texts(self, texts: Sequence[str]) -> Matrix:
        return self._encoder.encode(texts)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        return list(self._encoder.encode([_in_context(ask) for ask in asks]))


def _in_context(ask: Ask) -> str:
    told = ask.query.posts or ask.query.plan
    return f"{render(ask.query)}\n\n{ask.answer}" if told else ask.answer


class Remembered:
    """Looks into the cache of what models have said before it computes; failures are never kept."""

    def __init__(self, inner: Features) -> None:
        self.fingerprint = inner.fingerprint
        self._inner = inner
        self._cache = Cache()

    def texts(self, texts: Sequence[str]) -> Matrix:
        keys = [digest(self.fingerprint, "text", text) for text in texts]
        rows = self._through(keys, texts, lambda missing: list(self._inner.texts(missing)))
        return np.stack([row for row in rows if not isinstance(row, Failure)]) if rows else self._inner.texts(texts)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        keys = [digest(self.fingerprint, "answer", render(ask.query), ask.answer) for ask in asks]
        return self._through(keys, asks, self._inner.answers)

    def _through(
        self, keys: list[bytes], items: Sequence[T], compute: Callable[[list[T]], list[Vector | Failure]]
    ) -> list[Vector | Failure]:
        known: dict[bytes, Vector | Failure] = {key: _unpacked(text) for key, text in self._cache.get(keys).items()}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        if missing:
            fresh = dict(zip(missing, compute(list(missing.values())), strict=True))
            self._cache.put(self.fingerprint, {k: _packed(v) for k, v in fresh.items() if not isinstance(v, Failure)})
            known.update(fresh)
        return [known[key] for key in keys]


class Shifted:
    """An answer as it reads when nobody is known, and what the posts change in it: twice as many numbers.

    A head on these can weigh what suits everybody and what suits this person apart. Without posts nothing changes.
    """

    def __init__(self, inner: Features) -> None:
        self.fingerprint = f"shifted-{inner.fingerprint}"
        self._inner = Remembered(inner)

    def texts(self, texts: Sequence[str]) -> Matrix:
        alone = self._inner.texts(texts)
        return np.hstack([alone, np.zeros_like(alone)])

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        plain = self._inner.answers([Ask(Query(question=query.question), answer) for query, answer in asks])
        return [_shifted(*both) for both in zip(plain, self._inner.answers(asks), strict=True)]


def _shifted(plain: Vector | Failure, told: Vector | Failure) -> Vector | Failure:
    if isinstance(plain, Failure) or isinstance(told, Failure):
        return plain if isinstance(plain, Failure) else told
    return np.concatenate([plain, told - plain])


def _packed(vector: Vector) -> str:
    return b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def _unpacked(text: str) -> Vector:
    return np.frombuffer(b64decode(text), dtype="<f4")
