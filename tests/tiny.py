"""Tiny random models with a real tokenizer, built in a moment: architectures are tested, not weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.llm.tiny import byte_level

torch = pytest.importorskip("torch", reason="needs the torch extra")
transformers = pytest.importorskip("transformers", reason="needs the torch extra")

WORDS = [
    *"abcdefgh", "answer", "ask", "assistant", "be", "best", "better", "big", "book", "bread", "city", "cook", "day",
    "early", "late", "long", "morning",
]  # fmt: skip
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SIZE = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def tokenizer(template: str | None = CHAT, *, encoder: bool = False) -> Any:
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

    special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    template_of = TemplateProcessing(
        single="<s> $A </s>" if encoder else "<s> $A",
        pair="<s> $A </s> $B:1 </s>:1" if encoder else None,
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    processor = Sequence([ByteLevel(trim_offsets=False), template_of])
    return byte_level(WORDS, special, 400, template, post_processor=processor, model_max_length=512)


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL = {**SIZE, **IDS, "num_key_value_heads": 2}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32, "type_vocab_size": 0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", CAUSAL),
    "qwen2": ("Qwen2Config", CAUSAL),
    "gemma": ("GemmaConfig", {**CAUSAL, "num_key_value_heads": 1, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**CAUSAL, "head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8}),
    "gpt2": ("GPT2Config", {"vocab_size": 400, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512, **IDS}),
    "bert": ("BertConfig", {**SIZE, "pad_token_id": 0}),
    "deberta": (
        "DebertaV2Config",
        {**SIZE, **DEBERTA, "pad_token_id": 0, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    ),
}


def save(
    folder: Path, architecture: str, *, labels: int | None = None, template: str | None = CHAT, seed: int = 0
) -> Path:
    """A checkpoint on disk: a causal language model, or with `labels` a classifier."""
    torch.manual_seed(seed)
    kind, options = CONFIGS[architecture]
    settings = getattr(transformers, kind)(**options)
    if labels is None:
        model = transformers.AutoModelForCausalLM.from_config(settings)
    else:
        settings.num_labels = labels
        model = transformers.AutoModelForSequenceClassification.from_config(settings)
    larger_weights(model).save_pretrained(folder)
    tokenizer(template, encoder=architecture in ("bert", "deberta")).save_pretrained(folder)
    return folder


def larger_weights(model: Any) -> Any:
    """Fresh weights are nearly linear; larger ones make attention, masks and positions matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
