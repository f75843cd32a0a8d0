"""Vectors of texts, and of answers in their context, cached on disk by content.

`make_features("static")`, `"minilm"` or any other encoder, or `hidden?lm=smollm2`: hidden states of a causal LLM.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from prb.cache import Cache, Memo
from prb.engine.load import DEFAULT_LOADING, Loading
from prb.errors import BadSpec, unknown
from prb.hashing import digest
from prb.prompts import flat
from prb.registry import Registry, Spec
from prb.text.encoders import ENCODERS, Encoder, Matrix, Vector
from prb.types import Ask, Failure


class Features(Protocol):
    fingerprint: str

    def texts(self, texts: Sequence[str]) -> Matrix:
        """One row per question or post, each encoded by itself."""
        ...

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        """Each answer after its question, and after the posts if the query has some."""
        ...


FEATURES: Registry[Features] = Registry("features", package="prb.models.personal", group="prb.features")
UNCACHED = ("static",)
"""Encoders that are as fast as a cache lookup."""


def make_features(spec: str) -> Features:
    check_features(spec)
    name = Spec.parse(spec).name
    if name in FEATURES:
        made = FEATURES.make(spec)
        return made if isinstance(made, Shifted | Alone) else Cached(made)
    encoded = Encoded(ENCODERS.make(spec))
    return encoded if name in UNCACHED else Cached(encoded)


def check_features(spec: str) -> None:
    """Raise what `make_features` would raise for a wrong name or option, without loading anything."""
    parsed = Spec.parse(spec)
    if parsed.name not in FEATURES and parsed.name not in ENCODERS:
        raise unknown("features", parsed.name, [*ENCODERS, *FEATURES])
    FEATURES.check(parsed) if parsed.name in FEATURES else ENCODERS.check(parsed)


def features_of(card: Mapping[str, Any], folder: Path) -> Features:
    """What a head was trained on; an LLM that was tuned for it has its adapter in the head's folder."""
    if not card.get("adapter"):
        return make_features(card["features"])
    spec = Spec.parse(card["features"])
    return make_features(str(Spec(spec.name, {**spec.options, "adapter": str(folder / card["adapter"])})))


class Encoded:
    """A sentence encoder: answers are encoded alone, or after the rendered query if it tells of the user."""

    def __init__(self, encoder: Encoder) -> None:
        self.fingerprint = encoder.fingerprint
        self._encoder = encoder

    def texts(self, texts: Sequence[str]) -> Matrix:
        return self._encoder.encode(texts)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        texts = [f"{flat(query)}\n\n{answer}" if query.about_user else answer for query, answer in asks]
        return list(self._encoder.encode(texts))


class Cached:
    """Vectors from the cache on disk where they are there."""

    def __init__(self, inner: Features) -> None:
        self.fingerprint = inner.fingerprint
        self._inner = inner
        self._memo: Memo[Vector] = Memo(
            capacity=0,
            cache=Cache(),
            model=self.fingerprint,
            pack=lambda vector: b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode(),
            unpack=lambda text: np.frombuffer(b64decode(text), dtype="<f4"),
        )

    def texts(self, texts: Sequence[str]) -> Matrix:
        keys = [digest(self.fingerprint, "text", text) for text in texts]
        rows = self._memo.map(self._inner.texts, texts, keys)
        return np.stack([row for row in rows if not isinstance(row, Failure)]) if rows else self._inner.texts(texts)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        keys = [digest(self.fingerprint, "answer", flat(ask.query), ask.answer) for ask in asks]
        return self._memo.map(self._inner.answers, asks, keys)


class Shifted:
    """An answer encoded without posts, and what the posts change in it: twice as many numbers.

    A head on these can weigh what suits everybody and what suits this user separately.
    """

    def __init__(self, inner: Features) -> None:
        self.fingerprint = f"shifted-{inner.fingerprint}"
        self._inner = Cached(inner)

    def texts(self, texts: Sequence[str]) -> Matrix:
        vectors = self._inner.texts(texts)
        return np.hstack([vectors, np.zeros_like(vectors)])

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        without = self._inner.answers([Ask(query.blind, answer) for query, answer in asks])
        results: list[Vector | Failure] = []
        for plain, shown in zip(without, self._inner.answers(asks), strict=True):
            if isinstance(plain, Failure):
                results.append(plain)
            else:
                results.append(shown if isinstance(shown, Failure) else np.concatenate([plain, shown - plain]))
        return results


class Alone:
    """Answers encoded like posts, without their question, so that the two can be compared."""

    def __init__(self, inner: Features) -> None:
        self.fingerprint = f"alone-{inner.fingerprint}"
        self._inner = Cached(inner)

    def texts(self, texts: Sequence[str]) -> Matrix:
        return self._inner.texts(texts)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        return list(self._inner.texts([ask.answer for ask in asks]))


@FEATURES.register("hidden")
def hidden(
    lm: str,
    layer: int = -1,
    pool: Literal["mean", "last"] = "mean",
    shift: bool = False,
    alone: bool = False,
    loading: Loading = DEFAULT_LOADING,
) -> Features:
    """Hidden states of an LLM (lm=folder, hub id or pulled name), pooled over the answer's tokens.

    shift: the states without the posts, and beside them what the posts change. alone: an answer like a post, without
    its question.
    """
    from prb.engine.hidden import HiddenStates
    from prb.engine.load import load_shared

    if shift and alone:
        raise BadSpec("features 'hidden': shift=true and alone=true exclude each other")
    states = HiddenStates(load_shared(lm, "causal", loading), layer, pool)
    if alone:
        return Alone(states)
    return Shifted(states) if shift else states
