"""Checkpoints for a real vLLM on a CPU, whose attention needs heads of at least 32 dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import CHAT, tokenizer, torch, transformers

SIZE = {
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": 1,
}
CONFIGS = {"llama": "LlamaConfig", "qwen3": "Qwen3Config"}


def save_head(folder: Path, architecture: str, *, labels: int = 1, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    settings = getattr(transformers, CONFIGS[architecture])(**SIZE | {"num_labels": labels})
    model = transformers.AutoModelForSequenceClassification.from_config(settings)
    with torch.no_grad():  # larger than fresh weights, so that attention, masks and positions matter
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    tokenizer(CHAT).save_pretrained(folder)
    return folder


def save_smollm2_head(folder: Path, weights: str) -> Path:
    """SmolLM2's own weights under a random head."""
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
        weights, num_labels=1, dtype=torch.float32
    )
    words: Any = transformers.AutoTokenizer.from_pretrained(weights)
    model.config.pad_token_id = words.pad_token_id if words.pad_token_id is not None else words.eos_token_id
    with torch.no_grad():
        model.score.weight.normal_(std=0.05)
    model.eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
