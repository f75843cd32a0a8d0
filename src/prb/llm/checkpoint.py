"""A causal language model on disk or on the hub, ready to write: weights, tokenizer, where it ends, who it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from prb.errors import BadInput, MissingExtra
from prb.gguf import file_sha256
from prb.weights import resolve_weights

Dtype = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Loading:
    where: str
    device: str = "auto"
    dtype: Dtype = "auto"
    adapter: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    model: Any
    tokenizer: Any
    ends: frozenset[int]
    """Tokens that end a reply."""
    context: int
    fingerprint: str


@cache
def load(loading: Loading) -> Checkpoint:
    """Several models of a run may use the same weights."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise MissingExtra("a transformers language model", "torch") from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    device = _device(loading.device)
    dtype = ("fp32" if device == "cpu" else "bf16") if loading.dtype == "auto" else loading.dtype
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    shared: dict[str, Any] = {"revision": loading.revision, "trust_remote_code": loading.trust_remote_code}
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(loading.where, **shared)
        model: Any = AutoModelForCausalLM.from_pretrained(loading.where, dtype=kind, use_safetensors=True, **shared)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"cannot load {loading.where!r}: {(str(error) or repr(error)).splitlines()[0]}") from None
    names = ["transformers", _identity(loading.where, model, loading.revision), dtype]
    if loading.adapter:
        adapter = resolve_weights(loading.adapter)
        model = _with_adapter(model, adapter)
        names.append(_identity(adapter))
    ends = _end_tokens(model, tokenizer)
    model.generation_config = generation()  # what a repository suggests (penalties, top-k) is not what was asked for
    return Checkpoint(
        model=model.eval().to(device),
        tokenizer=tokenizer,
        ends=ends,
        context=_context(model, tokenizer),
        fingerprint="-".join(names),
    )


def generation(**settings: Any) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    told = getattr(model.generation_config, "eos_token_id", None)
    several = told if isinstance(told, list) else [told]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)


def _context(model: Any, tokenizer: Any) -> int:
    """What both the positions of the model and the tokenizer's own limit allow."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(int(n) for n in (positions, tokenizer.model_max_length, 10**9) if n and n > 0)


def _device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device={wanted}: there is no GPU here")
    return wanted


def _with_adapter(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra("a LoRA adapter", "train") from None
    if Path(adapter).is_dir() and not (Path(adapter) / "adapter_model.safetensors").exists():
        raise BadInput(f"adapter {adapter} has no adapter_model.safetensors")
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def _identity(where: str, model: Any = None, revision: str | None = None) -> str:
    """Name and hash of what is in a folder; of a hub model the commit that was read."""
    folder = Path(where)
    if not folder.is_dir():
        return f"{where}@{getattr(getattr(model, 'config', None), '_commit_hash', None) or revision}"
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".json", ".jinja", ".model")]
    hashes = "".join(
        file_sha256(path) if path.suffix == ".safetensors" else sha256(path.read_bytes()).hexdigest() for path in files
    )
    return f"{folder.name}-{sha256(hashes.encode()).hexdigest()[:12]}"
