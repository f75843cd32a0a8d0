"""Tiny configurations of the architectures that reward models are built on: two layers, a few thousand parameters."""

from __future__ import annotations

from typing import Any

from tests.tiny import DEBERTA, IDS, SIZE, larger_weights, torch, transformers

BASE = {**SIZE, "num_hidden_layers": 2}
GROUPED: dict[str, Any] = {**BASE, **IDS, "num_key_value_heads": 2}
HEAD = {"head_dim": 8}
LONG = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 10_000.0}
GPT2 = {"vocab_size": 400, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", GROUPED),
    "Mistral (window)": ("MistralConfig", {**GROUPED, "sliding_window": 16}),
    "Mixtral": ("MixtralConfig", {**GROUPED, "num_local_experts": 4}),
    "Qwen2": ("Qwen2Config", GROUPED),
    "Qwen3": ("Qwen3Config", {**GROUPED, **HEAD}),
    "Qwen3-MoE": ("Qwen3MoeConfig", {**GROUPED, **HEAD, **EXPERTS}),
    "Gemma": ("GemmaConfig", {**GROUPED, **HEAD}),
    "Gemma 2": ("Gemma2Config", {**GROUPED, **HEAD, "sliding_window": 16, "query_pre_attn_scalar": 8}),
    "Gemma 3": ("Gemma3TextConfig", {**GROUPED, **HEAD, "sliding_window": 16, "query_pre_attn_scalar": 8}),
    "Phi": ("PhiConfig", {**GROUPED, "num_key_value_heads": 4}),
    "Phi-3": ("Phi3Config", GROUPED),
    "Llama (llama3 rope)": (
        "LlamaConfig",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "OLMo 2": ("Olmo2Config", GROUPED),
    "GPT-NeoX": ("GPTNeoXConfig", {**BASE, **IDS}),
    "GPT-2": ("GPT2Config", {**GPT2, **IDS}),
    "GPT-J": ("GPTJConfig", {**GPT2, **IDS, "rotary_dim": 8}),
    "OPT": ("OPTConfig", {**BASE, **IDS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "Bloom (ALiBi)": ("BloomConfig", {"vocab_size": 400, "hidden_size": 32, "n_layer": 2, "n_head": 4, **IDS}),
    "Falcon": ("FalconConfig", {**BASE, **IDS, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "StableLM": ("StableLmConfig", GROUPED),
    "StarCoder 2": ("Starcoder2Config", GROUPED),
    "Granite": ("GraniteConfig", {**GROUPED, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "Cohere": ("CohereConfig", GROUPED),
    "Cohere 2": ("Cohere2Config", {**GROUPED, "sliding_window": 16}),
    "SmolLM3": ("SmolLM3Config", GROUPED),
    "GLM-4": ("Glm4Config", {**GROUPED, **HEAD}),
    "Exaone 4": ("Exaone4Config", {**GROUPED, "sliding_window": 16}),
    "Nemotron": ("NemotronConfig", GROUPED),
}
"""Causal attention alone: the answers to a query share what comes before them."""
HYBRID: dict[str, tuple[str, dict[str, Any]]] = {
    "LFM2": ("Lfm2Config", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    "Qwen3-Next": ("Qwen3NextConfig", {**GROUPED, **HEAD, **EXPERTS, **LINEAR, "shared_expert_intermediate_size": 24}),
    "Mamba": ("MambaConfig", {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, **IDS}),
}
"""Layers that keep another state than keys and values."""
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("BertConfig", {**BASE, "pad_token_id": 0}),
    "RoBERTa": ("RobertaConfig", {**BASE, **IDS, "max_position_embeddings": 514}),
    "ModernBERT": ("ModernBertConfig", {**BASE, **IDS, "local_attention": 16, "global_attn_every_n_layers": 2}),
    "DeBERTa": (
        "DebertaV2Config",
        {**BASE, **DEBERTA, "pad_token_id": 0, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    ),
}
"""Every token sees every other one."""
ROPE = {
    "Phi-3 (longrope)": (
        "Phi3Config",
        {
            **GROUPED,
            "original_max_position_embeddings": 200,
            "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 200, **LONG},
        },
    ),
    "Llama (dynamic rope)": (
        "LlamaConfig",
        {
            **GROUPED,
            "max_position_embeddings": 200,
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
        },
    ),
}
"""Rotary embeddings that depend on the length of a text."""
ARCHITECTURES = {**SHARED, **ROPE, **HYBRID, **ENCODERS}


def model_of(name: str, auto: str, dtype: Any = torch.float32) -> Any:
    """A random model of this architecture, made by an auto class of transformers."""
    kind, settings = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**settings)
    config.num_labels = 1
    torch.manual_seed(0)
    return larger_weights(getattr(transformers, auto).from_config(config)).to(dtype)
