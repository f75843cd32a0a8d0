"""Vectors of texts, and of answers in their context, cached on disk by content.

`make_features("static")`, `"minilm"` or any other encoder, or `hidden?lm=smollm2`: hidden states of a causal LLM.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from prb.cache import Cache, Memo
from prb.engine.executors import Executor
from prb.engine.load import DEFAULT_LOADING, Loading
from prb.errors import BadSpec, PrbError, unknown
from prb.hashing import digest
from prb.models import execution_of
from prb.prompts import flat
from prb.registry import Registry, Spec
from prb.text.encoders import ENCODERS, Encoder, Matrix, Vector
from prb.types import Ask, Failure
from prb.work import RESUME


class Features(Protocol):
    fingerprint: str

    def texts(self, texts: Sequence[str]) -> Matrix:
        """One row per question or post, each encoded by itself."""
        ...

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        """Each answer after its question, and after the posts if the query has some."""
        ...


FEATURES: Registry[Features] = Registry("features", package="prb.models.personal", group="prb.features")


def make_features(spec: str, executor: Executor | None = None) -> Features:
    """Features that are cached on disk by this process, wherever they are computed."""
    check_features(spec)
    made = executor.load(partial(uncached_features, spec), spec) if executor else uncached_features(spec)
    if Spec.parse(spec).name == "static":  # as fast as a cache lookup
        return made
    if isinstance(made, Shifted | Alone):
        return type(made)(Cached(made.inner))
    return Cached(made)


def uncached_features(spec: str) -> Features:
    return FEATURES.make(spec) if Spec.parse(spec).name in FEATURES else Encoded(ENCODERS.make(spec))


def check_features(spec: str) -> None:
    """Raise what `make_features` would raise for a wrong name or option, without loading anything."""
    parsed = Spec.parse(spec)
    if parsed.name not in FEATURES and parsed.name not in ENCODERS:
        raise unknown("features", parsed.name, [*ENCODERS, *FEATURES])
    FEATURES.check(parsed) if parsed.name in FEATURES else ENCODERS.check(parsed)


def encoded_texts(rows: Sequence[Vector | Failure]) -> list[Vector]:
    """A text can always be encoded, unless the worker that should do it is gone."""
    for row in rows:
        if isinstance(row, Failure):
            raise PrbError(f"texts could not be encoded: {row}; {RESUME}")
    return list(rows)  # type: ignore[arg-type]


def features_of(card: Mapping[str, Any], folder: Path, executor: Executor | None = None) -> Features:
    """What a head was trained on; an LLM that was tuned for it has its adapter in the head's folder."""
    if not card.get("adapter"):
        return make_features(card["features"], executor)
    spec = Spec.parse(card["features"])
    return make_features(str(Spec(spec.name, {**spec.options, "adapter": str(folder / card["adapter"])})), executor)


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
    """Vectors, from the cache on disk where it has them."""

    def __init__(self, inner: Features) -> None:
        self.fingerprint, self.execution = inner.fingerprint, execution_of(inner)
        self._inner = inner
        self._memo: Memo[Vector] = Memo(
            capacity=0,
            cache=Cache(),
            model=self.fingerprint,
            pack=lambda vector: b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode(),
            unpack=lambda text: np.frombuffer(b64decode(text), dtype="<f4"),
        )

    def texts(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return self._inner.texts(texts)
        keys = [digest(self.fingerprint, "text", text) for text in texts]
        return np.stack(encoded_texts(self._memo.map(self._inner.texts, texts, keys)))

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        keys = [digest(self.fingerprint, "answer", flat(ask.query), ask.answer) for ask in asks]
        return self._memo.map(self._inner.answers, asks, keys)


class Shifted:
    """An answer encoded without posts, and what the posts change in it: twice as many numbers.

    A head on these can weigh what suits everybody and what suits this user separately.
    """

    def __init__(self, inner: Features) -> None:
        self.fingerprint, self.execution = f"shifted-{inner.fingerprint}", execution_of(inner)
        self.inner = inner

    def texts(self, texts: Sequence[str]) -> Matrix:
        vectors = self.inner.texts(texts)
        return np.hstack([vectors, np.zeros_like(vectors)])

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        without = self.inner.answers([Ask(query.blind, answer) for query, answer in asks])
        results: list[Vector | Failure] = []
        for plain, informed in zip(without, self.inner.answers(asks), strict=True):
            if isinstance(plain, Failure) or isinstance(informed, Failure):
                results.append(plain if isinstance(plain, Failure) else informed)
            else:
                results.append(np.concatenate([plain, informed - plain]))
        return results


class Alone:
    """Answers encoded like posts, without their question, so that the two can be compared."""

    def __init__(self, inner: Features) -> None:
        self.fingerprint, self.execution = f"alone-{inner.fingerprint}", execution_of(inner)
        self.inner = inner

    def texts(self, texts: Sequence[str]) -> Matrix:
        return self.inner.texts(texts)

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        return list(self.inner.texts([ask.answer for ask in asks]))


@FEATURES.register("hidden")
def hidden(
    lm: str,
    layer: int = -1,
    pool: Literal["mean", "last"] = "mean",
    shift: bool = False,
    alone: bool = False,
    lead: str = "",
    loading: Loading = DEFAULT_LOADING,
) -> Features:
    """Hidden states of an LLM (lm=folder, hub id or pulled name), pooled over the answer's tokens.

    shift: the states without the posts, and beside them what the posts change. alone: an answer like a post, without
    its question. lead: words that are read before a text and not pooled; LLMs put the token that all others attend to
    first, and its state says little of the text.
    """
    from prb.engine.heads import HiddenStates
    from prb.engine.load import load_shared

    if shift and alone:
        raise BadSpec("features 'hidden': shift=true and alone=true exclude each other")
    states = HiddenStates(load_shared(lm, "causal", loading), layer, pool, lead)
    return Alone(states) if alone else Shifted(states) if shift else states
