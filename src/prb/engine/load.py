"""Weights → model: device, dtype, adapter, tokenizer, limits and fingerprint, for scoring, writing and training.

A source is a folder, a pulled name or a hub id. Only safetensors are read, and code from a repository runs only if
asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from prb.config import Count, Size
from prb.errors import BadInput, MissingExtra
from prb.weights import folder_hash, resolve_weights

Kind = Literal["causal", "classifier"]
Dtype = Literal["auto", "fp32", "bf16", "fp16"]

UNSTATED_LENGTH = 8192
"""Longest input of a model that states none, such as one without position embeddings."""
CPU_TOKENS, GPU_TOKENS = 2048, 16384


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How weights become a model; every torch family takes these options."""

    revision: str | None = None
    """Commit or tag of a hub repository."""
    dtype: Dtype = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    device: str = "auto"
    """auto: the first GPU if there is one."""
    adapter: str | None = None
    """Folder or hub id of a LoRA adapter, merged into the weights."""
    tokens: Count | None = None
    """Tokens per forward pass; default 2,048 on a CPU, else 16,384."""
    keep: Size = 0
    """Megabytes for the keys and values of queries that come again (for `prb serve`)."""
    max_length: Count | None = None
    """Longest input in tokens; default what model and tokenizer state."""
    trust_remote_code: bool = False
    """Run code that comes with the weights. Only for repositories you trust."""


DEFAULT_LOADING = Loading()


@dataclass(frozen=True)
class Checkpoint:
    """A model in evaluation mode on its device, with what its users need to know about it."""

    model: Any
    tokenizer: Any
    fingerprint: str
    max_length: int
    """Longest input in tokens."""
    ends: frozenset[int]
    """Tokens that end a reply, by the tokenizer and the repository's generation config."""
    budget: int
    """Tokens per forward pass."""
    keep: int = 0
    """Bytes for the keys and values of prefixes that come again."""


_SHARED: WeakValueDictionary[Any, Checkpoint] = WeakValueDictionary()


def load_shared(source: str, kind: Kind, options: Loading = DEFAULT_LOADING) -> Checkpoint:
    """As `load`, but users of the same weights share one copy, which is freed with the last of them."""
    where = resolve_weights(source)
    key = (where, kind, options, folder_hash(Path(where)) if Path(where).is_dir() else "")
    checkpoint = _SHARED.get(key)
    if checkpoint is None:
        checkpoint = _SHARED[key] = load(source, kind, options)
    return checkpoint


def load(source: str, kind: Kind, options: Loading = DEFAULT_LOADING, **settings: Any) -> Checkpoint:
    """A copy of its own; `settings` go to the model's `from_pretrained`."""
    try:
        import torch
        import transformers
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise MissingExtra("this model", "torch") from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    where = resolve_weights(source)
    device = _device(options.device)
    dtype = ("fp32" if device == "cpu" else "bf16") if options.dtype == "auto" else options.dtype
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    auto = {"causal": transformers.AutoModelForCausalLM, "classifier": transformers.AutoModelForSequenceClassification}
    shared: dict[str, Any] = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(where, **shared)
        model: Any = auto[kind].from_pretrained(where, dtype=torch_dtype, use_safetensors=True, **shared, **settings)
    except Exception as error:  # damaged or unusual files raise whatever their reader meets first
        raise BadInput(f"cannot load {source!r}: {(str(error) or repr(error)).splitlines()[0]}") from None
    names = [fingerprint(where, options.revision), dtype]
    if options.adapter:
        adapter = resolve_weights(options.adapter)
        model = _with_adapter(model, adapter)
        names.append(fingerprint(adapter) if Path(adapter).is_dir() else adapter)
    return Checkpoint(
        model=model.eval().to(device),
        tokenizer=tokenizer,
        fingerprint="-".join(names),
        max_length=options.max_length or longest(model, tokenizer),
        ends=_end_tokens(model, tokenizer),
        budget=options.tokens or (CPU_TOKENS if device == "cpu" else GPU_TOKENS),
        keep=options.keep * 10**6,
    )


def longest(model: Any, tokenizer: Any) -> int:
    """What both the positions of the model and the tokenizer's own limit allow."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    limits = [positions, getattr(tokenizer, "model_max_length", None)]
    return min([int(n) for n in limits if n and 0 < n < 10**9], default=UNSTATED_LENGTH)


def fingerprint(where: str, revision: str | None = None) -> str:
    """Name and hash of a folder's weight files; of a hub model the commit that was read."""
    folder = Path(where)
    if folder.is_dir():
        return f"{folder.name}-{folder_hash(folder)}"
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(where, "config.json", revision=revision)
    # files of a commit lie in a folder with its name: …/snapshots/COMMIT/config.json
    return f"{where}@{Path(config).parent.name if isinstance(config, str) else revision}"


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = stated if isinstance(stated, list) else [stated]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)


def _with_adapter(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra("a LoRA adapter", "train") from None
    if Path(adapter).is_dir() and not (Path(adapter) / "adapter_model.safetensors").exists():
        raise BadInput(f"adapter {adapter} has no adapter_model.safetensors")
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device={name}: there is no GPU here")
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"device={name} cannot be used: {str(error).splitlines()[0]}") from None
    return name
