"""Rewards from log-probabilities of an answer under a causal LM.

`likelihood`: how probable the answer is for this user, log p(answer | user, question). `implicit`: what a policy
trained on preferences likes, β(log π − log π_ref) (Rafailov et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prb.config import Positive
from prb.engine.load import DEFAULT_LOADING, Loading
from prb.models import MODELS, execution_of
from prb.types import Ask, Failure, Reward, Scorer

Norm = Literal["sum", "mean", "length"]


def log_probability(lm: str, loading: Loading) -> Scorer:
    """A scorer whose rewards are summed log-probabilities of the answer; `Reward.spoken` counts its tokens."""
    from prb.engine.chat import AnswerScorer, Chat
    from prb.engine.heads import AnswerLogp
    from prb.engine.load import load_shared

    checkpoint = load_shared(lm, "causal", loading)
    head = AnswerLogp(checkpoint)
    return AnswerScorer(
        Chat(checkpoint.tokenizer),
        head.logp,
        fingerprint=f"logp-{checkpoint.fingerprint}-",
        limit=checkpoint.max_length,
        execution=str(head.sharing),
    )


@MODELS.register("likelihood")
def likelihood(lm: str, norm: Literal["sum", "mean", "pmi"] = "pmi", loading: Loading = DEFAULT_LOADING) -> Scorer:
    """log p(answer | user, question) of an LLM (lm=folder, hub id or pulled name such as smollm2).

    norm: `sum` over tokens, `mean` per token, or `pmi`: minus log p(answer | question), what the user adds.
    """
    logp = log_probability(lm, loading)
    name = f"likelihood-{norm}-{logp.fingerprint}"
    if norm == "pmi":
        return LogRatio(name, logp, logp, baseline_sees_user=False)
    return LogRatio(name, logp, norm=norm)


@MODELS.register("implicit")
def implicit(
    policy: str,
    reference: str | None = None,
    beta: Positive = 0.1,
    norm: Norm = "sum",
    loading: Loading = DEFAULT_LOADING,
) -> Scorer:
    """Reward of a DPO-style policy: β(log π − log π_ref) with reference=…, or reference-free without.

    norm: `sum` over the answer's tokens (DPO), `mean` per token (SimPO), `length` divides by √tokens. An adapter is put
    on the policy only, so `policy=base&adapter=…&reference=base` scores a LoRA-trained policy against its base.
    """
    ours = log_probability(policy, loading)
    theirs = log_probability(reference, replace(loading, adapter=None)) if reference else None
    name = f"implicit-{beta}-{norm}-{ours.fingerprint}-{theirs.fingerprint if theirs else 'none'}"
    return LogRatio(name, ours, theirs, norm=norm, scale=beta)


@dataclass(frozen=True)
class LogRatio:
    """`scale` × (log-probability − that of the baseline) ÷ 1, tokens or √tokens."""

    fingerprint: str
    logp: Scorer
    baseline: Scorer | None = None
    baseline_sees_user: bool = True
    norm: Norm = "sum"
    scale: float = 1.0

    @property
    def execution(self) -> str:
        """How the models are run; that of the policy, then that of its reference if it differs."""
        return "; ".join(dict.fromkeys(execution_of(part) for part in (self.logp, self.baseline) if part))

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        rewards = self.logp.score(asks)
        seen = asks if self.baseline_sees_user else [Ask(ask.query.blind, ask.answer) for ask in asks]
        baselines = self.baseline.score(seen) if self.baseline else [Reward(0.0)] * len(asks)
        results: list[float | Failure] = []
        for reward, baseline in zip(rewards, baselines, strict=True):
            if isinstance(reward, Reward) and isinstance(baseline, Reward):
                n = float(max(1, reward.spoken))
                per = {"sum": 1.0, "mean": n, "length": math.sqrt(n)}[self.norm]
                value = self.scale * (float(reward) - float(baseline)) / per
                tokens = reward.tokens + baseline.tokens
                results.append(Reward(value, tokens=tokens, cut=reward.cut, spoken=reward.spoken))
            else:
                results.append(reward if isinstance(reward, Failure) else baseline)
        return results
