"""Reward models with a classification head: any checkpoint of `AutoModelForSequenceClassification`.

Known checkpoints and their peculiarities are data, in `catalogue.py`; all others are loaded as they come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from prb.cache import Cache
from prb.engine.load import DEFAULT_LOADING, Loading
from prb.errors import BadInput, BadSpec
from prb.models import MODELS
from prb.models.catalogue import quirk_of
from prb.models.served import NOT_SERVED, PrbServer, Serving, open_fleet, served_classifier
from prb.types import Scorer

Logit = Literal["auto", "softmax"] | int


@MODELS.register("classifier")
def classifier(
    path: str | None = None,
    logit: Logit = "auto",
    input: Literal["auto", "chat", "pair"] = "auto",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = DEFAULT_LOADING,
    serving: Serving = NOT_SERVED,
) -> Scorer:
    """A reward head on an LLM or encoder (path=folder or hub id, or url=server): Skywork, Tulu-RM, OpenAssistant, …

    logit: a single logit is the reward. Of several, `auto` and `softmax` take the log-odds of the last class, as the
    scripts of published benchmarks do; a number picks one. input: `chat` applies the model's chat template to user and
    assistant turns, `pair` gives prompt and answer as two texts, `auto` follows the catalogue, else chat.
    url: a server that has the weights (vLLM, SGLang, text-embeddings-inference, prb serve), or several, as `one|two`.
    """
    if (path is None) == (serving.url is None):
        raise BadSpec("model 'classifier' needs path=… (weights) or url=… (a server)" + (", not both" if path else ""))
    if path is None:
        return _served(logit, input, system, cache, loading, serving)
    quirk = quirk_of(path)
    if quirk.unsupported:
        raise BadInput(f"{path}: {quirk.unsupported}; {quirk.instead(path)}")
    if quirk.remote_code and not loading.trust_remote_code:
        raise BadInput(f"{path} comes with its own code; add trust_remote_code=true if you trust it")
    from prb.engine.answers import AnswerScorer
    from prb.engine.chat import Chat, Text, TwoTexts
    from prb.engine.heads import FirstLogit, LastToken, OutputScore
    from prb.engine.load import load_shared

    checkpoint = load_shared(path, quirk.kind, loading)
    layout = quirk.layout if input == "auto" else input
    reader = TwoTexts(checkpoint.tokenizer) if layout == "pair" else Chat(checkpoint.tokenizer, system=system)
    chosen = quirk.logit if logit == "auto" else logit
    heads: dict[str, Any] = {"logits": LastToken, "score": OutputScore, "first-logit": FirstLogit}
    head = heads[quirk.read](checkpoint)
    if isinstance(head, LastToken) and head.custom and head.outputs > 1 and chosen == "auto":
        raise BadInput(
            f"{path}: its own forward pass gives {head.outputs} numbers for a text, and nothing says which is the "
            "reward; choose one with logit=N"
        )

    def rewards(groups: Sequence[Sequence[Text]]) -> list[list[float]]:
        return [[reward_of(row.tolist(), chosen) for row in rows] for rows in head.logits(groups)]

    return AnswerScorer(
        reader,
        rewards,
        fingerprint=f"classifier-{checkpoint.fingerprint}-{layout}-{chosen}-{system or ''}",
        limit=checkpoint.max_length,
        cache=Cache() if cache else None,
        execution=str(head.sharing),
    )


def _served(
    logit: Logit,
    input: Literal["auto", "chat", "pair"],
    system: str | None,
    cache: bool,
    loading: Loading,
    serving: Serving,
) -> Scorer:
    """What a server gives are a head's logits; a checkpoint whose reward is something else is refused."""
    fleet = open_fleet(serving, loading)
    if fleet.about.kind == "prb":
        return PrbServer(fleet)
    quirk = quirk_of(fleet.about.source)
    if quirk.read != "logits" or quirk.kind != "classifier":
        raise BadInput(f"{fleet.about.model}: its reward is not among the logits that a server gives; use path=…")
    chosen = quirk.logit if logit == "auto" else logit
    return served_classifier(
        fleet,
        serving,
        loading,
        layout=quirk.layout if input == "auto" else input,
        reward=lambda logits: reward_of(logits, chosen),
        name=str(chosen),
        system=system,
        cache=Cache() if cache else None,
    )


def reward_of(logits: Sequence[float], logit: Logit) -> float:
    """One number from a head's output."""
    if isinstance(logit, int):
        if not -len(logits) <= logit < len(logits):
            raise BadInput(f"logit={logit}: the head has {len(logits)}")
        return float(logits[logit])
    return float(logits[0]) if len(logits) == 1 else log_odds_of_last(logits)


def log_odds_of_last(logits: Sequence[float]) -> float:
    """log p/(1−p) of the last class: the same order as its softmax probability, without its rounding to 0 and 1."""
    *others, last = logits
    top = max(others)
    return float(last - (top + math.log(sum(math.exp(x - top) for x in others))))
