"""Weights → model: device, dtype, adapter, tokenizer, limits and fingerprint, for scoring, writing and training.

A source is a folder, a pulled name or a hub id. Only safetensors are read, and code from a repository runs only if
asked for.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from prb.config import Count
from prb.errors import BadInput, MissingExtra, first_line
from prb.weights import resolve_weights, weights_hash

if TYPE_CHECKING:
    from prb.engine.states import Sharing

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
    device_map: Literal["auto", "balanced", "sequential"] | None = None
    """How the layers are spread over all GPUs; without it the model is on one device."""
    attn_implementation: str | None = None
    """Attention of transformers: eager, sdpa, flash_attention_2 …; default its choice."""
    adapter: str | None = None
    """Folder or hub id of a LoRA adapter, merged into the weights."""
    tokens: Count | None = None
    """Tokens per forward pass; default 2,048 on a CPU, else 16,384."""
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
    came_with_padding: bool = True
    """Whether both tokenizer and config named a padding token before we did."""

    @property
    def body(self) -> Any:
        """The model without its head, if it has such a part."""
        return getattr(self.model, getattr(self.model, "base_model_prefix", "") or "-", None)

    @cached_property
    def probe_tokens(self) -> list[int]:
        """At least 64 tokens of prose, unless the model reads fewer."""
        from prb.engine.states import PROBE_TEXT, PROBE_TOKENS

        length = min(PROBE_TOKENS, self.max_length)
        return list(self.tokenizer(PROBE_TEXT, truncation=True, max_length=length)["input_ids"])[:length]

    @cached_property
    def sharing(self) -> Sharing:
        """How the body may be run; tried once."""
        from prb.engine.states import Sharing, probe

        if self.body is None:
            return Sharing(False, padding=False, why="its code does not say which part is the head")
        return probe(self.body, self.probe_tokens)


_SHARED: WeakValueDictionary[Any, Checkpoint] = WeakValueDictionary()


def load_shared(source: str, kind: Kind, options: Loading = DEFAULT_LOADING) -> Checkpoint:
    """As `load`, but users of the same weights share one copy, which is freed with the last of them."""
    where = resolve_weights(source)
    key = (where, kind, options, weights_hash(Path(where)) if Path(where).is_dir() else "")
    return _SHARED.get(key) or _SHARED.setdefault(key, load(source, kind, options))


def load(
    source: str, kind: Kind, options: Loading = DEFAULT_LOADING, *, fresh_head: bool = False, **settings: Any
) -> Checkpoint:
    """A copy of its own; `settings` go to the model's `from_pretrained`. `fresh_head`: for training, where a head that
    the weights lack is drawn at random and the tokenizer stays as it is."""
    try:
        import torch
        import transformers
        from transformers.utils.logging import disable_progress_bar
    except ImportError:
        raise MissingExtra("this model", "torch") from None
    disable_progress_bar()  # type: ignore[no-untyped-call]
    base: Any = transformers.PreTrainedModel
    if hasattr(base, "is_activation_checkpointing"):  # peft and trl ask by the older name, which warns
        base.is_gradient_checkpointing = base.is_activation_checkpointing
    where = resolve_weights(source)
    device = _device(options.device)
    dtype = ("fp32" if device == "cpu" else "bf16") if options.dtype == "auto" else options.dtype
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    auto = {"causal": transformers.AutoModelForCausalLM, "classifier": transformers.AutoModelForSequenceClassification}
    offline = not Path(where).exists() and hub_is_out_of_reach(where, options.revision)
    shared: dict[str, Any] = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    shared["local_files_only"] = offline
    chosen = {"attn_implementation": options.attn_implementation, "device_map": options.device_map}
    settings = {"use_safetensors": True, "dtype": torch_dtype, **settings, **{k: v for k, v in chosen.items() if v}}
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(where, **shared)
        model, info = auto[kind].from_pretrained(where, output_loading_info=True, **shared, **settings)
    except Exception as error:  # damaged or unusual files raise whatever their reader meets first
        why = first_line(error)
        if offline:
            why = "it is neither a folder nor in the local cache, and the hub cannot be reached"
        if options.trust_remote_code and isinstance(error, (ImportError, AttributeError)):
            why = (
                f"its own code does not run with transformers {transformers.__version__} ({why}); install what it was "
                "written for, or serve it there and use `classifier?url=http://HOST:8000&model=NAME`"
            )
        raise BadInput(f"cannot load {source!r}: {why}") from None
    # drawn at random, since the files do not hold them; buffers may be missing, since they are computed
    missing = sorted({name for name, _ in model.named_parameters()} & set(info["missing_keys"]))
    names = [fingerprint(where, options.revision), dtype, options.attn_implementation]
    if options.adapter:
        adapter = resolve_weights(options.adapter)
        model, missing = _with_adapter(model, adapter, missing)
        names.append(fingerprint(adapter) if Path(adapter).is_dir() else adapter)
    if options.max_length:  # which decides what is cut
        names.append(f"at-most-{options.max_length}")
    if missing and not fresh_head:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise BadInput(f"{source} {_random_weights(source, kind, model, missing).format(shown)}")
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = {*(stated if isinstance(stated, list) else [stated]), tokenizer.eos_token_id}
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return Checkpoint(
        model=model.eval() if options.device_map else model.eval().to(device),
        tokenizer=tokenizer,
        fingerprint="-".join(name for name in names if name),
        max_length=options.max_length or shortest_limit(positions, getattr(tokenizer, "model_max_length", None)),
        ends=frozenset(ends - {None}),
        budget=options.tokens or (CPU_TOKENS if device == "cpu" else GPU_TOKENS),
        came_with_padding=kind == "causal" or fresh_head or agree_on_padding(model, tokenizer),
    )


def load_tokenizer(source: str, options: Loading = DEFAULT_LOADING) -> Any:
    """The tokenizer alone, where a server has the weights."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            resolve_weights(source), revision=options.revision, trust_remote_code=options.trust_remote_code
        )
    except Exception as error:  # damaged or unusual files raise whatever their reader meets first
        raise BadInput(f"cannot load the tokenizer of {source!r}: {first_line(error)}") from None


def _random_weights(source: str, kind: Kind, model: Any, missing: list[str]) -> str:
    """What it means that these weights are not in the files."""
    if any(name.startswith(f"{model.base_model_prefix}.") for name in missing):
        return "lacks {}: these weights would be random; its files are incomplete, or of another kind"
    if kind == "causal":
        return "has no {}: it is not a causal LM, and its likelihoods would be random"
    return (
        "has no {}: it is not a reward model, and its scores would be random. Use it as "
        f"`likelihood?lm={source}` or `judge?llm=transformers/{source}`, or train a head: prb train reward-model"
    )


def agree_on_padding(model: Any, tokenizer: Any) -> bool:
    """Give config and tokenizer the same padding token; returns whether both had one.

    A classification head reads the last token that is not `config.pad_token_id`. So the config's own token stays: a
    text alone gets the score that the model gives it. If there is none, it must be one that does not end a text.
    """
    config = model.config.get_text_config()
    stated, tokenizers = config.pad_token_id, tokenizer.pad_token_id
    if stated is None or not 0 <= stated < model.get_input_embeddings().num_embeddings:
        candidates = [tokenizer.bos_token_id, tokenizers, tokenizer.unk_token_id, tokenizer.cls_token_id]
        unlike_end = [token for token in candidates if token is not None and token != tokenizer.eos_token_id]
        config.pad_token_id = next(iter(unlike_end), tokenizer.eos_token_id)
    if config.pad_token_id is not None:
        model.config.pad_token_id = config.pad_token_id
        if tokenizers != config.pad_token_id and (token := tokenizer.convert_ids_to_tokens(config.pad_token_id)):
            tokenizer.pad_token = token
    return stated is not None and tokenizers is not None


def shortest_limit(*limits: int | None) -> int:
    """The longest input that all of these allow; tokenizers without a limit state an absurd one."""
    return min([int(n) for n in limits if n and 0 < n < 10**9], default=UNSTATED_LENGTH)


def hub_is_out_of_reach(repository: str, revision: str | None) -> bool:
    """Asked once: transformers would ask for every file of a cached model, a minute each, and say so on every try."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(repository, revision=revision, timeout=10)
    except (HfHubHTTPError, HFValidationError):  # it answered, or need not; what is wrong is said on loading
        return False
    except Exception:
        return True
    return False


def fingerprint(where: str, revision: str | None = None) -> str:
    """Of a folder what its weights are, wherever it lies; of a hub model the commit that was read."""
    folder = Path(where)
    return weights_hash(folder) if folder.is_dir() else f"{where}@{cached_commit(where, revision) or revision}"


def cached_commit(repository: str, revision: str | None = None) -> str | None:
    """The commit of a hub model that is on this machine, if any."""
    from huggingface_hub import try_to_load_from_cache

    config = None
    with suppress(ValueError):  # not a name that a hub could know
        config = try_to_load_from_cache(repository, "config.json", revision=revision)
    # files of a commit lie in a folder with its name: …/snapshots/COMMIT/config.json
    return Path(config).parent.name if isinstance(config, str) else None


def _with_adapter(model: Any, adapter: str, missing: list[str]) -> tuple[Any, list[str]]:
    """The model with the adapter merged into it, and which of the `missing` parameters the adapter lacks too."""
    try:
        from peft import PeftModel
        from peft.utils import load_peft_weights
    except ImportError:
        raise MissingExtra("a LoRA adapter", "train") from None
    if Path(adapter).is_dir() and not (Path(adapter) / "adapter_model.safetensors").exists():
        raise BadInput(f"adapter {adapter} has no adapter_model.safetensors")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
            adapter_weights = load_peft_weights(adapter, device="cpu") if missing else {}
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadInput(f"adapter {adapter} cannot be used: {first_line(error)}") from None
    if any("missing adapter keys" in str(warning.message) for warning in caught):
        raise BadInput(f"adapter {adapter} is not of this model: it lacks weights for some of its layers")
    return merged, [name for name in missing if f"base_model.model.{name}" not in adapter_weights]


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput(f"device={name}: there is no GPU here")
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"device={name} cannot be used: {first_line(error)}") from None
    return name
