"""How probable an answer is for this person: log p(answer | person, question) of any causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from prb.cache import Cache
from prb.engine.load import AS_IT_COMES, Loading
from prb.models import MODELS
from prb.types import Ask, Failure, Reward, Scorer

Norm = Literal["sum", "mean", "pmi"]


@MODELS.register("likelihood")
def likelihood(
    lm: str,
    norm: Norm = "pmi",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = AS_IT_COMES,
) -> Scorer:
    """log p(answer | person, question) of a language model (lm=folder, hub id or pulled name such as smollm2).

    norm: `sum` over tokens, `mean` per token, or `pmi`: minus log p(answer | question), what the person adds.
    """
    speaker = speaker_of(lm, system, cache, loading)
    return Likelihood(speaker, norm)


class Likelihood:
    def __init__(self, speaker: Any, norm: Norm) -> None:
        self.fingerprint = f"likelihood-{norm}-{speaker.fingerprint}"
        self._speaker = speaker
        self._norm = norm

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        with_person = self._speaker.score(asks)
        if self._norm != "pmi":
            return [_normed(reward, self._norm) for reward in with_person]
        alone = self._speaker.score([Ask(replace(ask.query, user=None, posts=(), plan=()), ask.answer) for ask in asks])
        return [_minus(a, b) for a, b in zip(with_person, alone, strict=True)]


def speaker_of(lm: str, system: str | None, cache: bool, loading: Loading) -> Any:
    """A scorer whose numbers are summed log-probabilities of the answer; its `Reward.spoken` counts the tokens."""
    from prb.engine.answers import Answers
    from prb.engine.chat import Chat
    from prb.engine.heads import AnswerLogp
    from prb.engine.load import load

    loaded = load(lm, "causal", loading)
    head = AnswerLogp(loaded)
    return Answers(
        Chat(loaded.tokenizer, system=system),
        lambda groups: [[spoken.logp for spoken in row] for row in head.spoken(groups)],
        fingerprint=f"logp-{loaded.fingerprint}-{system or ''}",
        limit=loaded.max_length,
        cache=Cache() if cache else None,
    )


def _normed(reward: float | Failure, norm: Norm) -> float | Failure:
    if norm == "sum" or isinstance(reward, Failure):
        return reward
    assert isinstance(reward, Reward)
    return _like(reward, float(reward) / max(1, reward.spoken))


def _minus(a: float | Failure, b: float | Failure) -> float | Failure:
    if isinstance(a, Failure) or isinstance(b, Failure):
        return a if isinstance(a, Failure) else b
    assert isinstance(a, Reward)
    assert isinstance(b, Reward)
    return _like(a, float(a) - float(b), tokens=a.tokens + b.tokens)


def _like(reward: Reward, value: float, tokens: int | None = None) -> Reward:
    total = reward.tokens if tokens is None else tokens
    return Reward(value, tokens=total, cut=reward.cut, spoken=reward.spoken)
