"""Reward models with a classification head: any checkpoint of `AutoModelForSequenceClassification`.

Known checkpoints and their peculiarities are data, in `CATALOGUE`; all others are loaded as they come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prb.cache import Cache
from prb.engine.load import DEFAULT_LOADING, Loading
from prb.errors import BadInput
from prb.models import MODELS
from prb.types import Scorer

Logit = Literal["auto", "softmax"] | int


@dataclass(frozen=True, kw_only=True)
class Quirk:
    """How a checkpoint differs from a classification head that reads chat turns."""

    kind: Literal["classifier", "causal"] = "classifier"
    """Which auto class loads it."""
    layout: Literal["chat", "pair"] = "chat"
    """Chat turns through the template, or prompt and answer as two texts."""
    read: Literal["logits", "score", "first-logit"] = "logits"
    """Where the reward is: the head's logits, the output's own `score`, or the logit of token 0 at the end."""
    logit: int | Literal["auto"] = "auto"
    remote_code: bool = False
    """Whether the checkpoint needs its own code."""
    unsupported: str = ""
    """Why it cannot be run here, with what to do instead."""


CATALOGUE: dict[str, Quirk] = {
    # one logit; templates write the BOS themselves, so it must not be added again
    "Skywork/Skywork-Reward-V2-": Quirk(),
    # one logit; the Gemma version was trained with eager attention
    "Skywork/Skywork-Reward-Llama-3.1-8B": Quirk(),
    "Skywork/Skywork-Reward-Gemma-2-27B": Quirk(),
    # one logit
    "allenai/Llama-3.1-Tulu-3-8B-RM": Quirk(),
    "allenai/Llama-3.1-Tulu-3-8B-SFT-RM": Quirk(),
    "allenai/open_instruct_dev": Quirk(),
    # an encoder; question and answer are two texts; 512 tokens, so long profiles are cut
    "OpenAssistant/reward-model-deberta-v3-": Quirk(layout="pair"),
    # 19 objectives mixed by a gate; the mixture is the output's `score`
    "RLHFlow/ArmoRM-Llama3-8B": Quirk(read="score", remote_code=True),
    # quantiles of several attributes; their expectation is in `score`
    "nicolinho/QRM-": Quirk(read="score", remote_code=True),
    # uncertainty-aware; the first logit is the mean reward
    "LxzGordon/URM-": Quirk(logit=0, remote_code=True),
    # causal LMs whose next-token logit of token 0 is the reward
    "nvidia/Llama-3.1-Nemotron-70B-Reward-HF": Quirk(kind="causal", read="first-logit"),
    "nvidia/Llama-3.3-Nemotron-70B-Reward": Quirk(kind="causal", read="first-logit"),
    # AutoModel with get_score(tokenizer, chat)
    "internlm/internlm2-": Quirk(
        unsupported="it is scored by a method of its own code; wrap its get_score in a small plug-in (docs/models.md)"
    ),
    # a pairwise encoder
    "llm-blender/PairRM": Quirk(
        unsupported="it reads both answers in one input through the llm-blender package; wrap it as a comparer plug-in"
    ),
}
"""By hub id, or a prefix of it."""


def quirk_of(path: str) -> Quirk:
    """The entry whose checkpoint name fits best; a local folder matches by its own name."""
    name = path.rstrip("/")
    last = name.rsplit("/", 1)[-1]
    known = [key for key in CATALOGUE if name.startswith(key) or last.startswith(key.rsplit("/", 1)[-1])]
    return CATALOGUE[max(known, key=len)] if known else Quirk()


@MODELS.register("classifier")
def classifier(
    path: str,
    logit: Logit = "auto",
    input: Literal["auto", "chat", "pair"] = "auto",
    system: str | None = None,
    cache: bool = True,
    loading: Loading = DEFAULT_LOADING,
) -> Scorer:
    """A reward head on an LLM or encoder (path=folder or hub id): Skywork, Tulu-RM, OpenAssistant, …

    logit: a single logit is the reward. Of several, `auto` and `softmax` take the log-odds of the last class, as the
    scripts of published benchmarks do; a number picks one. input: `chat` applies the model's chat template to user and
    assistant turns, `pair` gives prompt and answer as two texts, `auto` follows the catalogue, else chat.
    """
    quirk = quirk_of(path)
    if quirk.unsupported:
        raise BadInput(f"{path}: {quirk.unsupported}")
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
