"""Published reward models as data: how each is read, which path runs it, and what of it was run here.

None of the checkpoints themselves was run here, only tiny models of their architectures. How they are read is what
their model cards say; that a server supports an architecture is what its documentation states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Server = Literal["vLLM", "SGLang"]
BOTH: tuple[Server, ...] = ("vLLM", "SGLang")


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
    """Why the engine cannot run it."""
    servers: tuple[Server, ...] = ()
    """Servers that run it; see `classifier?url=…`."""
    tested: str = ""
    """What was run here: a tiny random model of this architecture, against its own forward pass."""

    @property
    def paths(self) -> str:
        """What runs it, the engine first."""
        own = "engine (own code)" if self.remote_code else "engine"
        return ", ".join([*([] if self.unsupported else [own]), *self.servers]) or "plug-in"

    def instead(self, path: str) -> str:
        """The command that works where the engine does not."""
        if "vLLM" in self.servers:
            serve = f"vllm serve {path} --runner pooling --trust-remote-code"
            return f"serve it with `{serve}` and use `classifier?url=http://HOST:8000&model={path}`"
        return "wrap it in a small plug-in, `--model mine.py:Name` (docs/models.md)"


CATALOGUE: dict[str, Quirk] = {
    # one logit; templates write the BOS themselves, so it must not be added again
    "Skywork/Skywork-Reward-V2-Qwen3": Quirk(servers=("vLLM",), tested="Qwen3"),
    "Skywork/Skywork-Reward-V2-": Quirk(servers=BOTH, tested="Llama"),
    "Skywork/Skywork-Reward-Llama-3.1-8B": Quirk(servers=BOTH, tested="Llama"),
    # trained with eager attention: attn_implementation=eager
    "Skywork/Skywork-Reward-Gemma-2-27B": Quirk(servers=BOTH, tested="Gemma 2"),
    # one logit
    "allenai/Llama-3.1-Tulu-3-8B-RM": Quirk(servers=BOTH, tested="Llama"),
    "allenai/Llama-3.1-Tulu-3-8B-SFT-RM": Quirk(servers=BOTH, tested="Llama"),
    "allenai/open_instruct_dev": Quirk(servers=BOTH, tested="Llama"),
    # an encoder; question and answer are two texts; 512 tokens, so long profiles are cut
    "OpenAssistant/reward-model-deberta-v3-": Quirk(layout="pair", tested="DeBERTa"),
    # 19 objectives mixed by a gate; the mixture is the output's `score`
    "RLHFlow/ArmoRM-Llama3-8B": Quirk(read="score", remote_code=True, tested="Llama with a forward pass of its own"),
    # quantiles of several attributes; their expectation is in `score`
    "nicolinho/QRM-": Quirk(read="score", remote_code=True, tested="Llama with a forward pass of its own"),
    # uncertainty-aware; the first logit is the mean reward
    "LxzGordon/URM-": Quirk(logit=0, remote_code=True, tested="Llama with a forward pass of its own"),
    # causal LMs whose next-token logit of token 0 is the reward; 70B: device_map=auto, or quantization=4bit
    "nvidia/Llama-3.1-Nemotron-70B-Reward-HF": Quirk(kind="causal", read="first-logit", tested="Llama"),
    "nvidia/Llama-3.3-Nemotron-70B-Reward": Quirk(kind="causal", read="first-logit", tested="Llama"),
    # fine-tuned heads are plain ones; the regularized ones return a tuple with the LM's logits before the reward
    "Ray2333/GRM-": Quirk(servers=("vLLM",), tested="Llama, Gemma 2"),
    "Ray2333/GRM-Gemma-2B-sftreg": Quirk(unsupported="its own code returns a tuple whose third part is the reward"),
    "Ray2333/GRM-llama3-8B-": Quirk(unsupported="its own code returns a tuple whose third part is the reward"),
    # AutoModel with get_score(tokenizer, chat)
    "internlm/internlm2-": Quirk(unsupported="it is scored by a method of its own code", servers=BOTH),
    # two linear layers with a ReLU, in a class that is only in the model card
    "infly/INF-ORM-Llama3.1-70B": Quirk(unsupported="the class of its head is in its model card, not in its files"),
    # a pairwise encoder
    "llm-blender/PairRM": Quirk(unsupported="it reads both answers in one input through the llm-blender package"),
}
"""By hub id, or a prefix of it."""


def quirk_of(path: str) -> Quirk:
    """The entry whose checkpoint name fits best; a local folder matches by its own name."""
    name = path.rstrip("/")
    last = name.rsplit("/", 1)[-1]
    known = [key for key in CATALOGUE if name.startswith(key) or last.startswith(key.rsplit("/", 1)[-1])]
    return CATALOGUE[max(known, key=len)] if known else Quirk()
