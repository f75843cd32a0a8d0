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


def tokenizer(template: str | None = CHATML, *, adds_bos: bool = True) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    if adds_bos:
        made.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = template
    return fast


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
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0 if kind != TokenType.NORMAL else -1.0 for kind in kinds])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(space_first)
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
