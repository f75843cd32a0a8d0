"""Tiny language models with random weights: a Llama folder for transformers, a GGUF for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURNS = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[go]{% endif %}"
)
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "name a colour and say why you like it",
    "User: Assistant: System:",
]
SPECIAL = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]


def byte_level(texts: list[str], special: list[str], size: int, template: str | None, **settings: Any) -> Any:
    """Byte-level BPE trained on a few texts: any text goes in and comes out."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = settings.pop("post_processor", None)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", **settings
    )
    fast.chat_template = template
    return fast


def tokenizer(template: str | None = CHATML, *, adds_bos: bool = True) -> Any:
    from tokenizers.processors import TemplateProcessing

    bos = TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)]) if adds_bos else None
    return byte_level(TEXTS, SPECIAL, 320, template, post_processor=bos)


def llama(
    folder: Path, *, seed: int = 0, template: str | None = CHATML, positions: int = 256, **generation: Any
) -> Path:
    """A folder as a hub repository would be. Weights are wide, so that replies differ."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer(template)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def gguf(path: Path, *, template: str | None = None, space_first: bool = False) -> Path:
    """One layer, and a vocabulary of letters (that are written) and bytes (that are hardly ever)."""
    from gguf import GGUFWriter, TokenType

    words = [b"<unk>", b"<s>", b"</s>", *(f"<0x{n:02X}>".encode() for n in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    words += [bytes([n]) for n in range(33, 127)] + ["▁".encode()]
    kinds += [TokenType.NORMAL] * 95
    writer = GGUFWriter(path, "llama")
    sizes = {"context_length": 512, "embedding_length": 32, "block_count": 1, "feed_forward_length": 64}
    sizes |= {"head_count": 4, "head_count_kv": 2, "rope_dimension_count": 8, "layer_norm_rms_eps": 1e-5}
    special = {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "add_bos_token": True}
    settings: dict[str, Any] = {**sizes, **special, "vocab_size": len(words), "add_space_prefix": space_first}
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0 if kind != TokenType.NORMAL else -1.0 for kind in kinds])
    writer.add_token_types(kinds)
    if template:
        writer.add_chat_template(template)
    for name, array in _tensors(len(words), np.random.default_rng(0)).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(vocabulary: int, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    made = {f"blk.0.{name}.weight": rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    made |= {f"blk.0.{name}.weight": np.ones(32, np.float32) for name in ("attn_norm", "ffn_norm")}
    made["token_embd.weight"] = rng.normal(0, 0.4, (vocabulary, 32)).astype(np.float32)
    made["output.weight"] = rng.normal(0, 0.4, (vocabulary, 32)).astype(np.float32)
    made["output.weight"][: 3 + 256] = 0
    made["output_norm.weight"] = np.ones(32, np.float32)
    return made
