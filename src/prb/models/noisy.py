"""A reward model made worse on purpose: noise of a known size, for studies that need models of graded quality."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from statistics import NormalDist

import orjson

from prb.errors import BadSpec
from prb.models import MODELS
from prb.types import Ask, Failure, Query, Scorer


class Noisy:
    """Hashes query and answer, so that subsets, reruns and batches agree; twins of a mirror pair are drawn apart."""

    def __init__(self, inner: Scorer, sd: float, seed: int) -> None:
        self.fingerprint = f"noisy-{sd:g}-{seed}-{inner.fingerprint}"
        self.remote = bool(getattr(inner, "remote", False))
        self._inner, self._sd, self._seed = inner, sd, seed

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        rewards = self._inner.score(asks)
        return [r if isinstance(r, Failure) else r + self._noise(a) for a, r in zip(asks, rewards, strict=True)]

    def _noise(self, ask: Ask) -> float:
        said = orjson.dumps([self._seed, *_parts(ask.query), ask.answer.encode("utf-8", "surrogatepass").hex()])
        share = int.from_bytes(hashlib.blake2b(said, digest_size=6).digest(), "big") / 2**48
        return self._sd * NormalDist().inv_cdf(share + 2**-49)


def _parts(query: Query) -> list[object]:
    """Everything a model may see, none of it run together."""
    texts = (query.user or "", query.question, *query.plan, *(text for post in query.posts for text in post))
    shape = [query.user is None, len(query.plan), len(query.posts)]
    return [*shape, *(text.encode("utf-8", "surrogatepass").hex() for text in texts)]


@MODELS.register("noisy")
def noisy(model: str, sd: float = 0.3, seed: int = 0) -> Scorer:
    """Constructed, for studies: another scorer (model=SPEC, its ? and & written %3F and %26) plus Gaussian noise."""
    if not 0 <= sd < float("inf"):
        raise BadSpec(f"model 'noisy': sd={sd}: wants a number that is not negative")
    inner = MODELS.make(model)
    if not isinstance(inner, Scorer):
        raise BadSpec(f"model 'noisy': {model!r} only compares answers; noise needs a model that scores them")
    return Noisy(inner, sd, seed)
