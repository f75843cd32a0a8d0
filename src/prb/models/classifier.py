"""Reward models with a classification head: any checkpoint of `AutoModelForSequenceClassification`.

The engine runs them (`classifier?path=…`), or a server does (`classifier?url=…`).
Known checkpoints and their peculiarities are data, in `CATALOGUE`; all others are loaded as they come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prb.engine.chat import AnswerScorer, Chat, TwoTexts
from prb.engine.load import DEFAULT_LOADING, Loading, load_shared, load_tokenizer, shortest_limit
from prb.errors import BadInput, BadSpec
from prb.hashing import short_digest
from prb.models import MODELS
from prb.models.served import NOT_SERVED, PROBES, PrbServer, ServedHead, Server, Serving
from prb.types import Query, Scorer

Logit = Literal["auto"] | int
Input = Literal["auto", "chat", "pair"]


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
    tested: str = ""
    """What was run here: a tiny random model of this architecture, against its own forward pass."""

    @property
    def paths(self) -> str:
        return "plug-in" if self.unsupported else "engine (own code)" if self.remote_code else "engine"


CATALOGUE: dict[str, Quirk] = {
    # one logit; templates write the BOS themselves, so it must not be added again
    "Skywork/Skywork-Reward-V2-Qwen3": Quirk(tested="Qwen3"),
    "Skywork/Skywork-Reward-V2-": Quirk(tested="Llama"),
    "Skywork/Skywork-Reward-Llama-3.1-8B": Quirk(tested="Llama"),
    # trained with eager attention: attn_implementation=eager
    "Skywork/Skywork-Reward-Gemma-2-27B": Quirk(tested="Gemma 2"),
    # one logit
    "allenai/Llama-3.1-Tulu-3-8B-RM": Quirk(tested="Llama"),
    "allenai/Llama-3.1-Tulu-3-8B-SFT-RM": Quirk(tested="Llama"),
    "allenai/open_instruct_dev": Quirk(tested="Llama"),
    # an encoder; question and answer are two texts; 512 tokens, so long profiles are cut
    "OpenAssistant/reward-model-deberta-v3-": Quirk(layout="pair", tested="DeBERTa"),
    # 19 objectives mixed by a gate; the mixture is the output's `score`
    "RLHFlow/ArmoRM-Llama3-8B": Quirk(read="score", remote_code=True, tested="Llama with a forward pass of its own"),
    # quantiles of several attributes; their expectation is in `score`
    "nicolinho/QRM-": Quirk(read="score", remote_code=True, tested="Llama with a forward pass of its own"),
    # uncertainty-aware; the first logit is the mean reward
    "LxzGordon/URM-": Quirk(logit=0, remote_code=True, tested="Llama with a forward pass of its own"),
    # causal LMs whose next-token logit of token 0 is the reward; 70B: device_map=auto
    "nvidia/Llama-3.1-Nemotron-70B-Reward-HF": Quirk(kind="causal", read="first-logit", tested="Llama"),
    "nvidia/Llama-3.3-Nemotron-70B-Reward": Quirk(kind="causal", read="first-logit", tested="Llama"),
    # fine-tuned heads are plain ones; the regularized ones return a tuple with the LM's logits before the reward
    "Ray2333/GRM-": Quirk(tested="Llama, Gemma 2"),
    "Ray2333/GRM-Gemma-2B-sftreg": Quirk(unsupported="its own code returns a tuple whose third part is the reward"),
    "Ray2333/GRM-llama3-8B-": Quirk(unsupported="its own code returns a tuple whose third part is the reward"),
    # AutoModel with get_score(tokenizer, chat), which appends a token that no chat template writes
    "internlm/internlm2-": Quirk(unsupported="its own code scores it at a token that it appends"),
    # one logit, in a class of its own
    "Qwen/Qwen2.5-Math-RM": Quirk(unsupported="its head is in its own code"),
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


@MODELS.register("classifier")
def classifier(
    path: str | None = None,
    logit: Logit = "auto",
    input: Input = "auto",
    system: str | None = None,
    loading: Loading = DEFAULT_LOADING,
    serving: Serving = NOT_SERVED,
) -> Scorer:
    """A reward head on an LLM or encoder (path=folder or hub id, or url=server): Skywork, Tulu-RM, OpenAssistant, …

    logit: a single logit is the reward. Of several, `auto` takes the log-odds of the last class, as the scripts of
    published benchmarks do; a number picks one. input: `chat` applies the model's chat template to user and
    assistant turns, `pair` gives prompt and answer as two texts, `auto` follows the catalogue, else chat.
    url: a server that has the weights (vLLM, SGLang, prb serve).
    """
    if (path is None) == (serving.url is None):
        raise BadSpec("model 'classifier' needs path=… (weights) or url=… (a server)" + (", not both" if path else ""))
    if path is None:
        return _served(logit, input, system, loading, serving)
    quirk = quirk_of(path)
    if quirk.unsupported:
        raise BadInput(
            f"{path}: {quirk.unsupported}; wrap it in a small plug-in, `--model mine.py:Name` (docs/models.md)"
        )
    if quirk.remote_code and not loading.trust_remote_code:
        raise BadInput(f"{path} comes with its own code; add trust_remote_code=true if you trust it")
    from prb.engine.heads import LastToken, OwnForwardPass

    checkpoint = load_shared(path, quirk.kind, loading)
    chosen, layout = logit if logit != "auto" else quirk.logit, input if input != "auto" else quirk.layout
    head = LastToken(checkpoint) if quirk.read == "logits" else OwnForwardPass(checkpoint, quirk.read)
    if isinstance(head, LastToken) and head.custom and head.outputs > 1 and chosen == "auto":
        raise BadInput(
            f"{path}: its own forward pass gives {head.outputs} numbers for a text, and nothing says which is the "
            "reward; choose one with logit=N"
        )
    return AnswerScorer(
        TwoTexts(checkpoint.tokenizer) if layout == "pair" else Chat(checkpoint.tokenizer, system=system),
        lambda groups: [[reward_of(row.tolist(), chosen) for row in rows] for rows in head.logits(groups)],
        fingerprint=f"classifier-{checkpoint.fingerprint}-{layout}-{chosen}-{system or ''}",
        limit=checkpoint.max_length,
        execution=str(head.sharing),
    )


def _served(logit: Logit, input: Input, system: str | None, loading: Loading, serving: Serving) -> Scorer:
    """Texts become tokens here, with the server's own tokenizer; logits come from there."""
    server = Server(serving, loading)
    about = server.about
    if about.kind == "prb":
        return PrbServer(server)
    quirk = quirk_of(about.source)
    if quirk.read != "logits" or quirk.kind != "classifier":
        raise BadInput(f"{about.model}: its reward is not among the logits that a server gives; use path=…")
    chosen, layout = logit if logit != "auto" else quirk.logit, input if input != "auto" else quirk.layout
    tokenizer = load_tokenizer(serving.tokenizer or about.tokenizer or about.source, loading)
    reader = TwoTexts(tokenizer) if layout == "pair" else Chat(tokenizer, system=system)
    head = ServedHead(server, lambda logits: reward_of(logits, chosen))
    head.check([reader.texts(Query(question=question), [answer])[0] for question, answer in PROBES], tokenizer)
    tokens = short_digest([tokenizer.chat_template, len(tokenizer)])
    return AnswerScorer(
        reader,
        head.rewards,
        fingerprint=f"{about.identity}-{tokens}-{layout}-{chosen}-{system or ''}",
        limit=shortest_limit(about.max_length, loading.max_length, getattr(tokenizer, "model_max_length", None)),
        remote=server.client.remote,
    )


def reward_of(logits: Sequence[float], logit: Logit) -> float:
    """One number from a head's output. Of several classes the log-odds of the last, log p/(1−p): the same order as its
    softmax probability, without its rounding to 0 and 1."""
    if isinstance(logit, int):
        if not -len(logits) <= logit < len(logits):
            raise BadInput(f"logit={logit}: the head has {len(logits)}")
        return float(logits[logit])
    *others, last = logits
    if not others:
        return float(last)
    top = max(others)
    return float(last - (top + math.log(sum(math.exp(x - top) for x in others))))
