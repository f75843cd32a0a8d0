"""Rewards from log-probabilities of an answer under a causal LM.

`likelihood`: how probable the answer is for this user, log p(answer | user, question). `implicit`: what a policy
trained on preferences likes, β(log π − log π_ref) (Rafailov et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from prb.cache import Cache
from prb.config import Positive
from prb.engine.load import DEFAULT_LOADING, Loading
from prb.models import MODELS
from prb.types import Ask, Failure, Reward, Scorer

LikelihoodNorm = Literal["sum", "mean", "pmi"]
ImplicitNorm = Literal["sum", "mean", "length"]


def log_probability(lm: str, system: str | None, cache: bool, loading: Loading) -> Scorer:
    """A scorer whose rewards are summed log-probabilities of the answer; `Reward.spoken` counts its tokens."""
    from prb.engine.answers import AnswerScorer
    from prb.engine.chat import Chat
    from prb.engine.heads import AnswerLogp
    from prb.engine.load import load_shared

    checkpoint = load_shared(lm, "causal", loading)
    head = AnswerLogp(checkpoint)
    return AnswerScorer(
        Chat(checkpoint.tokenizer, system=system),
        lambda groups: [[spoken.logp for spoken in row] for row in head.spoken(groups)],
        fingerprint=f"logp-{checkpoint.fingerprint}-{system or ''}",
        limit=checkpoint.max_length,
        cache=Cache() if cache else None,
    )


@MODELS.register("likelihood")
def likelihood(
    lm: str,
    norm: LikelihoodNorm = "pmi",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = DEFAULT_LOADING,
) -> Scorer:
    """log p(answer | user, question) of an LLM (lm=folder, hub id or pulled name such as smollm2).

    norm: `sum` over tokens, `mean` per token, or `pmi`: minus log p(answer | question), what the user adds.
    """
    return Likelihood(log_probability(lm, system, cache, loading), norm)


class Likelihood:
    def __init__(self, logp: Scorer, norm: LikelihoodNorm) -> None:
        self.fingerprint = f"likelihood-{norm}-{logp.fingerprint}"
        self._logp, self._norm = logp, norm

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        rewards = self._logp.score(asks)
        if self._norm != "pmi":
            return [_combine(reward, None, divisor=self._norm) for reward in rewards]
        alone = self._logp.score([Ask(replace(ask.query, user=None, posts=(), plan=()), ask.answer) for ask in asks])
        return [_combine(a, b) for a, b in zip(rewards, alone, strict=True)]


@MODELS.register("implicit")
def implicit(
    policy: str,
    reference: str | None = None,
    beta: Positive = 0.1,
    norm: ImplicitNorm = "sum",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = DEFAULT_LOADING,
) -> Scorer:
    """Reward of a DPO-style policy: β(log π − log π_ref) with reference=…, or reference-free without.

    norm: `sum` over the answer's tokens (DPO), `mean` per token (SimPO), `length` divides by √tokens. An adapter is put
    on the policy only, so `policy=base&adapter=…&reference=base` scores a LoRA-trained policy against its base.
    """
    ours = log_probability(policy, system, cache, loading)
    theirs = log_probability(reference, system, cache, replace(loading, adapter=None)) if reference else None
    return Implicit(ours, theirs, beta, norm)


class Implicit:
    def __init__(self, policy: Scorer, reference: Scorer | None, beta: float, norm: ImplicitNorm) -> None:
        against = reference.fingerprint if reference else "none"
        self.fingerprint = f"implicit-{beta}-{norm}-{policy.fingerprint}-{against}"
        self._policy, self._reference, self._beta, self._norm = policy, reference, beta, norm

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        rewards = self._policy.score(asks)
        baseline = self._reference.score(asks) if self._reference else [None] * len(asks)
        pairs = zip(rewards, baseline, strict=True)
        return [_combine(a, b, divisor=self._norm, scale=self._beta) for a, b in pairs]


def _combine(
    reward: float | Failure,
    baseline: float | Failure | None,
    *,
    divisor: Literal["sum", "mean", "length"] = "sum",
    scale: float = 1.0,
) -> float | Failure:
    """`scale` × (reward − baseline) ÷ 1, tokens or √tokens, with the tokens that both took."""
    if isinstance(reward, Failure):
        return reward
    if isinstance(baseline, Failure):
        return baseline
    assert isinstance(reward, Reward)
    n = float(max(1, reward.spoken))
    value = float(reward) - (0.0 if baseline is None else float(baseline))
    tokens = reward.tokens + (baseline.tokens if isinstance(baseline, Reward) else 0)
    per = {"sum": 1.0, "mean": n, "length": math.sqrt(n)}[divisor]
    return Reward(scale * value / per, tokens=tokens, cut=reward.cut, spoken=reward.spoken)
