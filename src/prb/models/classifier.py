"""Reward models with a classification head: any checkpoint of `AutoModelForSequenceClassification`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prb.cache import Cache
from prb.engine.load import AS_IT_COMES, Loading
from prb.errors import BadInput
from prb.models import MODELS
from prb.models.catalogue import quirk_of
from prb.types import Scorer

Logit = Literal["auto", "softmax"] | int


@MODELS.register("classifier")
def classifier(
    path: str,
    logit: Logit = "auto",
    input: Literal["auto", "chat", "pair"] = "auto",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = AS_IT_COMES,
) -> Scorer:
    """A reward head on a language model or encoder (path=folder or hub id): Skywork, Tulu-RM, OpenAssistant …

    logit: one logit is the reward. Of several, `auto` and `softmax` take the log-odds of the last class, as the scripts
    of published benchmarks do; a number picks one. input: `chat` applies the model's chat template to user and
    assistant turns, `pair` gives prompt and answer as two texts, `auto` follows the catalogue, else chat.
    """
    quirk = quirk_of(path)
    if quirk.unsupported:
        raise BadInput(f"{path}: {quirk.unsupported}")
    if quirk.remote_code and not loading.trust_remote_code:
        raise BadInput(f"{path} comes with its own code; add trust_remote_code=true if you trust it")
    from prb.engine.answers import Answers
    from prb.engine.chat import Chat, TwoTexts
    from prb.engine.load import load

    loaded = load(path, quirk.kind, loading)
    layout = quirk.layout if input == "auto" else input
    reader = TwoTexts(loaded.tokenizer) if layout == "pair" else Chat(loaded.tokenizer, system=system)
    chosen = quirk.logit if logit == "auto" else logit
    return Answers(
        reader,
        _Heads(loaded, quirk.read, chosen).rewards,
        fingerprint=f"classifier-{loaded.fingerprint}-{layout}-{chosen}-{system or ''}",
        limit=loaded.max_length,
        cache=Cache() if cache else None,
    )


class _Heads:
    """From texts to one number each, by the way this checkpoint is read."""

    def __init__(self, loaded: Any, read: str, logit: Logit) -> None:
        from prb.engine.heads import FirstLogit, LastToken, OwnScore

        heads: dict[str, Any] = {"logits": LastToken, "score": OwnScore, "first-logit": FirstLogit}
        self._head = heads[read](loaded)
        self._logit = logit

    def rewards(self, groups: Sequence[Sequence[Any]]) -> list[list[float]]:
        return [[reward_of(row.tolist(), self._logit) for row in rows] for rows in self._head.logits(groups)]


def reward_of(logits: Sequence[float], logit: Logit) -> float:
    """One number of a head's output."""
    if isinstance(logit, int):
        if not -len(logits) <= logit < len(logits):
            raise BadInput(f"logit={logit}: the head has {len(logits)}")
        return float(logits[logit])
    if len(logits) == 1:
        return float(logits[0])
    return log_odds_of_last(logits)


def log_odds_of_last(logits: Sequence[float]) -> float:
    """log p/(1−p) of the last class: the same order as its softmax probability, without its rounding to 0 and 1."""
    from math import exp, log

    *others, last = logits
    top = max(others)
    return float(last - (top + log(sum(exp(x - top) for x in others))))
