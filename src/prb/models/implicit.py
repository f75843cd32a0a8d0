"""Implicit rewards: what a policy trained by preferences likes, β(log π − log π_ref) (Rafailov et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from prb.engine.load import AS_IT_COMES, Loading
from prb.errors import BadInput
from prb.models import MODELS
from prb.models.likelihood import speaker_of
from prb.types import Ask, Failure, Reward, Scorer

Norm = Literal["sum", "mean", "length"]


@MODELS.register("implicit")
def implicit(
    policy: str,
    reference: str | None = None,
    beta: float = 0.1,
    norm: Norm = "sum",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = AS_IT_COMES,
) -> Scorer:
    """Reward of a DPO-style policy: β(log π − log π_ref) with reference=…, or reference-free without.

    norm: `sum` over the answer's tokens (DPO), `mean` per token (SimPO), `length` divides by √tokens. An adapter is put
    on the policy only, so `policy=base&adapter=…&reference=base` scores a LoRA-trained policy against its base.
    """
    if beta <= 0:
        raise BadInput(f"beta={beta}: wants a positive number")
    own = speaker_of(policy, system, cache, loading)
    other = speaker_of(reference, system, cache, _without_adapter(loading)) if reference else None
    return Implicit(own, other, beta, norm)


class Implicit:
    def __init__(self, policy: Any, reference: Any | None, beta: float, norm: Norm) -> None:
        against = reference.fingerprint if reference else "none"
        self.fingerprint = f"implicit-{beta}-{norm}-{policy.fingerprint}-{against}"
        self._policy, self._reference, self._beta, self._norm = policy, reference, beta, norm

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        own = self._policy.score(asks)
        other = self._reference.score(asks) if self._reference else [None] * len(asks)
        return [self._reward(a, b) for a, b in zip(own, other, strict=True)]

    def _reward(self, own: float | Failure, other: float | Failure | None) -> float | Failure:
        if isinstance(own, Failure) or isinstance(other, Failure):
            return own if isinstance(own, Failure) else other  # type: ignore[return-value]
        assert isinstance(own, Reward)
        ratio = float(own) - (0.0 if other is None else float(other))
        tokens = own.tokens + (other.tokens if isinstance(other, Reward) else 0)
        return Reward(self._beta * ratio / _divisor(own.spoken, self._norm), tokens=tokens, cut=own.cut)


def _divisor(tokens: int, norm: Norm) -> float:
    n = float(max(1, tokens))
    return {"sum": 1.0, "mean": n, "length": math.sqrt(n)}[norm]


def _without_adapter(loading: Loading) -> Loading:
    from dataclasses import replace

    return replace(loading, adapter=None)
