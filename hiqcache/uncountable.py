"""Models whose KV is not one K and one V row a token and layer, and why.

The architectures are those that SGLang 0.5.23 gives another pool than the plain MHA one
(`is_hybrid_swa_model`, `mambaish_config`, `is_minimax_sparse`, the MLA list of
`_derive_model_shapes`), together with all models whose layers interleave sliding windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL_ATTENTION = frozenset({"full_attention", "attention"})

WINDOWED = (
    "Beam",
    "Cohere2",
    "DiffusionGemma",
    "EmbeddingGemma",
    "Gemma2",
    "Gemma3",
    "Gemma4",
    "GptOss",
    "GraniteMoeSWA",
    "GraniteSWA",
    "IQuestQ1",
    "Inkling",
    "Laguna",
    "Llama4",
    "Mellum",
    "MiMoV2",
    "MuseGlimmer",
    "MuseSpark",
    "Step3p",
    "UnlimitedOCR",
)
"""Prefixes of architectures with sliding windows in some layers."""

STATEFUL = frozenset(
    {
        "bailing_hybrid",
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "gigachat3_5",
        "inkling_mm_model",
        "inkling_model",
        "intern_s2_preview",
        "jamba",
        "jet_nemotron",
        "jet_vlm",
        "kimi_linear",
        "lfm2",
        "lfm2-vl",
        "lfm2_moe",
        "lfm2_vl",
        "mamba",
        "mamba2",
        "minicpm_sala",
        "minimax",
        "nemotron_h",
        "NemotronH_Nano_VL_V2",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "zamba",
        "zamba2",
        "zaya",
    }
)
"""Model types with Mamba, linear-attention or convolution layers."""

STATE_KEYS = (
    "attn_type_list",
    "full_attention_interval",
    "hybrid_override_pattern",
    "linear_attn_config",
    "mamba_d_state",
    "ssm_cfg",
    "ssm_state_size",
)
WINDOW_KEYS = (
    "attention_chunk_size",
    "hybrid_layer_pattern",
    "interleaved_sliding_window",
    "is_hybrid_swa",
    "sliding_window_pattern",
)
OTHERS = {
    "DeciLM": "layers of different shapes (block_configs)",
    "DeepseekV4": "compressed attention",
    "IQuestLoopCoder": "layers that run several times a token",
    "MiniMaxM3Sparse": "sparse attention with an index of its own",
    "Mllama": "cross-attention layers",
    "MossVL": "cross-attention layers",
    "Nanbeige": "layers that may run several times a token",
    "Whisper": "an encoder and a decoder",
}


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The `architectures` of a config.json, empty if there are none."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def why_uncountable(config: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    """Say in a phrase why a model cannot be counted as plain MHA or GQA, or return None.

    Parameters
    ----------
    config, text
        The whole config.json, and the part of it that describes the language model.
    """
    names = architectures(config) + architectures(text)
    types = {str(part.get("model_type")) for part in (config, text)}
    label = names[0] if names else text.get("model_type") or "this model"
    if text.get("kv_lora_rank") is not None:
        return f"{label} uses multi-head latent attention (kv_lora_rank={text['kv_lora_rank']})"
    if config.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        return f"{label} has an encoder and a decoder"
    for prefix, reason in OTHERS.items():
        if any(name.startswith(prefix) for name in names):
            return f"{label} has {reason}"
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        other = sorted({str(kind) for kind in kinds} - FULL_ATTENTION)
        if other:
            return f"{label} has layers of another kind than full attention ({', '.join(other)})"
    # Granite 4 without Mamba layers still carries Mamba's keys: its layer_types decide.
    elif types & STATEFUL or any(text.get(key) is not None for key in STATE_KEYS):
        return f"{label} mixes attention with state-space, linear or convolution layers"
    if any(name.startswith(WINDOWED) for name in names) or any(map(text.get, WINDOW_KEYS)):
        return f"{label} interleaves layers of sliding-window attention"
    return None
