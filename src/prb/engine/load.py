"""Models and tokenizers from a folder, a pulled name or a hub id. Safetensors only; remote code only if asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prb.errors import BadInput, MissingExtra
from prb.weights import resolve_weights

Kind = Literal["causal", "classifier"]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How weights become a model; every torch family takes these options."""

    revision: str | None = None
    """Commit or tag of a hub repository."""
    dtype: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU. int8 quantises linear layers for CPUs."""
    device: str = "auto"
    """auto: the first GPU if there is one."""
    adapter: str | None = None
    """Folder or hub id of a LoRA adapter to put on top."""
    tokens: int | None = None
    """Padded tokens a forward pass; default 1,024 on a CPU (more costs copies of keys and values), 16,384 on a GPU."""
    keep: int = 0
    """Megabytes for queries that come again: what was read of them is kept between calls (for `prb serve`)."""
    max_length: int | None = None
    """Longest input in tokens; default what model and tokenizer say."""
    trust_remote_code: bool = False
    """Run code that comes with the weights. Only for repositories you trust."""


AS_IT_COMES = Loading()


@dataclass(frozen=True)
class Loaded:
    model: Any
    tokenizer: Any
    fingerprint: str
    budget: int
    max_length: int
    keep: int = 0
    """In bytes."""


def load(source: str, kind: Kind, options: Loading) -> Loaded:
    """The model in evaluation mode and its tokenizer."""
    torch, transformers = _libraries()
    where = resolve_weights(source)
    shared = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    auto = {"causal": transformers.AutoModelForCausalLM, "classifier": transformers.AutoModelForSequenceClassification}
    device = _device(torch, options.device)
    name = _dtype_name(options.dtype, device)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **shared)
        model = auto[kind].from_pretrained(where, dtype=_torch_dtype(torch, name), use_safetensors=True, **shared)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"cannot load {source!r}: {str(error).splitlines()[0]}") from None
    if options.adapter:
        model = _with_adapter(model, options.adapter)
    model = model.eval().to(device)
    if name == "int8":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        fingerprint="-".join([fingerprint(where, model, options.revision), name, *_adapter_print(options.adapter)]),
        budget=options.tokens or (1024 if device == "cpu" else 16384),
        max_length=options.max_length or longest(model, tokenizer),
        keep=options.keep * 10**6,
    )


def longest(model: Any, tokenizer: Any) -> int:
    """What both the positions of the model and the tokenizer's own limit allow."""
    limits = [getattr(model.config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    return min([int(n) for n in limits if n and 0 < n < 10**9], default=8192)


def fingerprint(where: str, model: Any, revision: str | None) -> str:
    """Hash of the weight files of a folder; of a hub model the commit that was read."""
    folder = Path(where)
    if folder.is_dir():
        return f"{folder.name}-{folder_hash(folder)}"
    commit = getattr(model.config, "_commit_hash", None) or revision
    return f"{where}@{commit}"


def folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json", ".jinja", ".model"):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _adapter_print(adapter: str | None) -> list[str]:
    if adapter is None:
        return []
    return [f"{Path(adapter).name}-{folder_hash(Path(adapter))}" if Path(adapter).is_dir() else adapter]


def _with_adapter(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        raise MissingExtra("a LoRA adapter", "train") from None
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def _device(torch: Any, wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device={wanted}: there is no GPU here")
    return wanted


def _dtype_name(wanted: str, device: str) -> str:
    if wanted == "int8" and device != "cpu":
        raise BadInput("dtype=int8 is for CPUs")
    return ("fp32" if device == "cpu" else "bf16") if wanted == "auto" else wanted


def _torch_dtype(torch: Any, name: str) -> Any:
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}[name]


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise MissingExtra("this model", "torch") from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    return torch, transformers
