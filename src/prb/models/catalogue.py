"""Known reward-model checkpoints and what is odd about them, as data. Everything else is taken as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Quirk:
    checkpoints: tuple[str, ...] = ()
    """Hub ids, or their beginnings."""
    kind: Literal["classifier", "causal"] = "classifier"
    """Which auto class loads it."""
    layout: Literal["chat", "pair"] = "chat"
    """Chat turns through the template, or prompt and answer as two texts."""
    read: Literal["logits", "score", "first-logit"] = "logits"
    """Where the reward stands: the head's logits, the output's own `score`, or the logit of token 0 at the end."""
    logit: int | Literal["auto"] = "auto"
    remote_code: bool = False
    """Whether the checkpoint needs its own code."""
    unsupported: str = ""
    """Why it cannot be run here, with what to do instead."""
    note: str = ""


USUAL = Quirk()

CATALOGUE = (
    Quirk(
        checkpoints=("Skywork/Skywork-Reward-V2-",),
        note="one logit; templates write the BOS themselves, so it must not be added again",
    ),
    Quirk(
        checkpoints=("Skywork/Skywork-Reward-Llama-3.1-8B", "Skywork/Skywork-Reward-Gemma-2-27B"),
        note="one logit; the Gemma version was trained with eager attention",
    ),
    Quirk(
        checkpoints=(
            "allenai/Llama-3.1-Tulu-3-8B-RM",
            "allenai/Llama-3.1-Tulu-3-8B-SFT-RM",
            "allenai/open_instruct_dev",
        ),
        note="one logit",
    ),
    Quirk(
        checkpoints=("OpenAssistant/reward-model-deberta-v3-",),
        layout="pair",
        note="an encoder; question and answer are two texts; 512 tokens, so long profiles are cut",
    ),
    Quirk(
        checkpoints=("RLHFlow/ArmoRM-Llama3-8B",),
        read="score",
        remote_code=True,
        note="19 objectives mixed by a gate; the mixture stands in the output's `score`",
    ),
    Quirk(
        checkpoints=("nicolinho/QRM-",),
        read="score",
        remote_code=True,
        note="quantiles of several attributes; their expectation stands in `score`",
    ),
    Quirk(
        checkpoints=("LxzGordon/URM-",),
        logit=0,
        remote_code=True,
        note="uncertainty-aware; the first logit is the mean reward",
    ),
    Quirk(
        checkpoints=("nvidia/Llama-3.1-Nemotron-70B-Reward-HF", "nvidia/Llama-3.3-Nemotron-70B-Reward"),
        kind="causal",
        read="first-logit",
        note="a causal language model whose next-token logit of token 0 is the reward",
    ),
    Quirk(
        checkpoints=("internlm/internlm2-",),
        remote_code=True,
        unsupported="it is scored by a method of its own code; wrap its get_score in a small plug-in (docs/models.md)",
        note="AutoModel with get_score(tokenizer, chat)",
    ),
    Quirk(
        checkpoints=("llm-blender/PairRM",),
        layout="pair",
        unsupported="it reads both answers in one input through the llm-blender package; wrap it as a comparer plug-in",
        note="pairwise encoder",
    ),
)


def quirk_of(path: str) -> Quirk:
    """The entry whose checkpoint name fits best; a local folder matches by its own name."""
    name = path.rstrip("/")
    found = [(len(known), quirk) for quirk in CATALOGUE for known in quirk.checkpoints if _fits(name, known)]
    return max(found, key=lambda pair: pair[0])[1] if found else USUAL


def _fits(name: str, known: str) -> bool:
    return name.startswith(known) or name.rsplit("/", 1)[-1].startswith(known.rsplit("/", 1)[-1])
