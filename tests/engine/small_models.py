"""Small models of real architectures, to be served with random weights: one for each kind of stack.

What such a model answers means nothing; what counts is which pools SGLang builds for it, and that
every row of each comes back from L2 as the codec makes it. Serve one with `--load-format dummy`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
FULL, WINDOW, LINEAR = "full_attention", "sliding_attention", "linear_attention"


@dataclass(frozen=True)
class SmallModel:
    """What its config.json says beside `SMALL`, and the server options that its stack needs."""

    name: str
    config: dict[str, Any]
    arguments: tuple[str, ...] = field(default=())

    def write(self, folder: Path, tokenizer: Path) -> Path:
        """Its folder, with the tokenizer of another model."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((tokenizer / name).read_bytes())
        (folder / "config.json").write_text(json.dumps(self.full_config))
        return folder

    @property
    def full_config(self) -> dict[str, Any]:
        return SMALL | self.config


GEMMA3 = SmallModel(
    # Windows of 32 tokens in four layers of six: SGLang masks, and keeps every token in one pool.
    "gemma3",
    {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 40,
        "query_pre_attn_scalar": 40,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "hidden_activation": "gelu_pytorch_tanh",
    },
)
ROPE = {"rope_theta": 1e4, "rope_type": "default"}
MELLUM = SmallModel(
    # A pool for three windowed layers and one for the two others.
    "mellum",
    {
        "architectures": ["MellumForCausalLM"],
        "model_type": "mellum",
        "num_hidden_layers": 5,
        "head_dim": 32,
        "sliding_window": 128,
        "layer_types": [WINDOW, FULL, WINDOW, WINDOW, FULL],
        "mlp_layer_types": ["dense"] * 5,
        "mlp_only_layers": [0, 1, 2, 3, 4],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {FULL: ROPE, WINDOW: ROPE},
    },
    # `torch_native` reads a windowed layer at the slots of full attention (0.5.23): with a pool as
    # long as theirs they exist. Answers then mean even less than with random weights alone.
    ("--swa-full-tokens-ratio", "1.0"),
)
GPT_OSS = SmallModel(
    "gpt-oss",
    {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": [WINDOW, FULL] * 3,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "tie_word_embeddings": False,
    },
)
QWEN3_NEXT_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 2,
    "head_dim": 128,
    "partial_rotary_factor": 0.25,
    "rope_theta": 1e6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
QWEN3_NEXT = SmallModel("qwen3-next", QWEN3_NEXT_CONFIG)
GRANITE_HYBRID = SmallModel(
    # Mamba2 layers with attention in two of eight.
    "granite-hybrid",
    {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["mamba", "mamba", "mamba", "attention"] * 2,
        "position_embedding_type": "nope",
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_d_state": 64,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 256,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 256,
        "embedding_multiplier": 12.0,
        "logits_scaling": 1.0,
        "attention_multiplier": 0.125,
        "residual_multiplier": 0.22,
        "attention_bias": False,
        "hidden_act": "silu",
    },
)
QWEN3 = SmallModel(
    # One plain pool, and a draft of itself.
    "qwen3",
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": 1e6,
    },
)
WIDER: dict[str, dict[str, Any]] = {
    "gemma3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "query_pre_attn_scalar": 128,
        "num_hidden_layers": 12,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "hidden_size": 512,
    },
    "mellum": {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 512,
    },
    "gpt-oss": {"num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 512},
    "qwen3-next": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "granite-hybrid": {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "mamba_n_heads": 16,
    },
    "qwen3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 512,
    },
}
"""What makes their rows wide enough for a GPU's traffic to fill an L2 of 1 GB, by name."""
