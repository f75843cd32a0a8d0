"""Reward heads run by vLLM in this process, for offline batches on GPUs: `vllm?path=…`.

vLLM has an environment of its own: it pins torch and transformers, and nothing else here needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from prb.cache import Cache
from prb.config import Count
from prb.engine.answers import AnswerScorer
from prb.engine.chat import Chat, Text, TwoTexts
from prb.engine.load import Dtype, fingerprint
from prb.errors import BadInput, PrbError
from prb.models import MODELS
from prb.models.classifier import Logit, quirk_of, reward_of
from prb.models.served import stated_length
from prb.types import Scorer
from prb.weights import resolve_weights

Dtypes = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@MODELS.register("vllm")
def vllm(
    path: str,
    logit: Logit = "auto",
    input: Literal["auto", "chat", "pair"] = "auto",
    system: str | None = None,
    dtype: Dtype = "auto",
    max_length: Count | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    gpus: Count = 1,
    memory: Annotated[float, Field(gt=0, le=1)] = 0.9,
    cache: bool = True,
) -> Scorer:
    """A reward head that vLLM runs in this process (path=folder or hub id), with its prefix cache.

    `gpus` share the weights (tensor parallel); `memory` is the share of each that vLLM takes. The other options are
    those of `classifier`.
    """
    quirk = quirk_of(path)
    if quirk.unsupported or quirk.read != "logits" or quirk.kind != "classifier":
        raise BadInput(f"{path}: {quirk.unsupported or 'its reward is not among the logits of a head'}; use classifier")
    try:
        import vllm as library
    except ImportError as error:
        how = "pip install vllm in an environment of its own (`make test-vllm` makes .venv-vllm), or classifier?url=…"
        raise BadInput(f"model 'vllm' needs vLLM, which cannot be imported here ({error}): {how}") from None
    where = resolve_weights(path)
    try:
        engine = library.LLM(
            where,
            runner="pooling",
            enable_prefix_caching=True,
            dtype=Dtypes[dtype],
            max_model_len=max_length,
            revision=revision,
            trust_remote_code=trust_remote_code,
            tensor_parallel_size=gpus,
            gpu_memory_utilization=memory,
        )
    except Exception as error:  # whatever its engine meets first
        raise BadInput(f"vLLM cannot load {path!r}: {_line(error)}") from None
    tokenizer = engine.get_tokenizer()
    layout = quirk.layout if input == "auto" else input
    chosen = quirk.logit if logit == "auto" else logit
    settings = engine.llm_engine.model_config
    kind = str(settings.dtype).removeprefix("torch.")
    parameters = library.PoolingParams(use_activation=False)

    def rewards(groups: Sequence[Sequence[Text]]) -> list[list[float]]:
        """In the order of their tokens, so that equal beginnings follow one another in the prefix cache."""
        order = sorted(range(len(groups)), key=lambda n: list(groups[n][0].ids))
        prompts = [{"prompt_token_ids": list(text.ids)} for n in order for text in groups[n]]
        try:
            outputs: list[Any] = engine.classify(prompts, pooling_params=parameters, use_tqdm=False)
        except Exception as error:
            raise PrbError(f"vLLM failed: {_line(error)}") from None
        values = iter([reward_of(output.outputs.probs, chosen) for output in outputs])
        scores = {n: [next(values) for _ in groups[n]] for n in order}
        return [scores[n] for n in range(len(groups))]

    limits = [int(settings.max_model_len), stated_length(tokenizer)]
    name = f"vllm-{library.__version__}-{fingerprint(where, revision)}-{kind}-{layout}-{chosen}-{system or ''}"
    return AnswerScorer(
        TwoTexts(tokenizer) if layout == "pair" else Chat(tokenizer, system=system),
        rewards,
        fingerprint=name,
        limit=min(n for n in limits if n),
        cache=Cache() if cache else None,
    )


def _line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]
