"""Models whose KV is not one K and one V row for each token and layer in one pool, and why.

The architectures are those that SGLang 0.5.23 gives another pool than the plain MHA one
(`is_hybrid_swa_model`, `mambaish_config`, `is_minimax_sparse`, the MLA list of
`_derive_model_shapes`). A sliding window alone is no reason: Gemma 2 and 3, Exaone 4, Olmo 3 or
Cohere 2 keep every token of every layer in the plain pool, and their windows only mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL_LENGTH = frozenset({"attention", "chunked_attention", "full_attention", "sliding_attention"})
"""Kinds of layers with a K and a V row of every token, as long as they share the plain pool."""

WINDOW_POOL = frozenset(
    {
        "BeamForCausalLM",
        "Dots3NoteForCausalLM",
        "GptOssForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM",
        "IQuestQ1ForCausalLM",
        "IQuestQ1MTP",
        "LagunaForCausalLM",
        "Llama4ForConditionalGeneration",
        "MellumForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "MuseSparkForConditionalGeneration",
        "Step3p5MTP",
        "UnlimitedOCRForCausalLM",
    }
)
"""Architectures whose windowed layers get a pool of their own, unless SGLang is told otherwise.

Step3p5 and Step3p7 are none: SGLang tells itself so as soon as HiCache is on.
"""

SHAPED_WINDOW_POOL = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForCausalLMDSpark",
        "DeepseekV4ForCausalLMNextN",
        "DiffusionGemmaForBlockDiffusion",
        "EmbeddingGemma2Model",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "InklingForConditionalGeneration",
        "InklingForConditionalGenerationMTP",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2MTP",
    }
)
"""As above, with windowed layers of another shape, which one pool cannot hold."""

ONE_POOL_FLAG = "--disable-hybrid-swa-memory"

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
    "full_attention_interval",
    "hybrid_override_pattern",
    "linear_attn_config",
    "mamba_d_state",
    "ssm_cfg",
    "ssm_state_size",
)
OTHERS = {
    "DeciLM": "layers of different shapes (block_configs)",
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


def latent_attention(text: Mapping[str, Any]) -> str | None:
    """Name the attention of a model without K and V rows, which the engine refuses as well."""
    rank = text.get("kv_lora_rank")
    return None if rank is None else f"multi-head latent attention (kv_lora_rank={rank})"


def why_unsupported(
    config: Mapping[str, Any], text: Mapping[str, Any], *, one_pool: bool = False
) -> str | None:
    """Say in a phrase why a model cannot be counted as plain MHA or GQA, or return None.

    Parameters
    ----------
    config, text
        The whole config.json, and the part of it that describes the language model.
    one_pool
        SGLang runs with `--disable-hybrid-swa-memory`.
    """
    names = architectures(config) + architectures(text)
    types = {str(part.get("model_type")) for part in (config, text)}
    label = names[0] if names else text.get("model_type") or "this model"
    if latent := latent_attention(text):
        return f"{label} uses {latent}"
    if config.get("is_encoder_decoder") or text.get("is_encoder_decoder"):
        return f"{label} has an encoder and a decoder"
    for prefix, reason in OTHERS.items():
        if any(name.startswith(prefix) for name in names):
            return f"{label} has {reason}"
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        other = sorted({str(kind) for kind in kinds} - FULL_LENGTH)
        if other:
            return f"{label} has layers that keep no K and V rows ({', '.join(other)})"
    # Granite 4 without Mamba layers still carries Mamba's keys: its layer_types decide.
    elif (
        types & STATEFUL
        or any(text.get(key) is not None for key in STATE_KEYS)
        or _has_linear_layers(text.get("attn_type_list"))
    ):
        return f"{label} mixes attention with state-space, linear or convolution layers"
    if SHAPED_WINDOW_POOL.intersection(names):
        return f"{label} has sliding-window layers of another shape, in a pool of their own"
    if _has_window_pool(names, text) and not one_pool:
        return (
            f"{label} keeps its sliding-window layers in a pool of their own; {ONE_POOL_FLAG}, to "
            f"SGLang and here, puts every layer into one"
        )
    return None


def _has_linear_layers(kinds: Any) -> bool:
    """MiniMax's list of layers: 1 is softmax attention, 0 linear; MiniMax-M2 has ones only."""
    return kinds is not None and not (isinstance(kinds, list) and all(kind == 1 for kind in kinds))


def _has_window_pool(names: list[str], text: Mapping[str, Any]) -> bool:
    """SGLang's `is_hybrid_swa_model`, less the shapes that one pool cannot hold."""
    if "BeamForCausalLM" in names:
        kinds = text.get("layer_types")
        return isinstance(kinds, list) and "sliding_attention" in kinds
    if "LagunaForCausalLM" in names and not text.get("sliding_window"):
        return False
    return bool(WINDOW_POOL.intersection(names) or text.get("is_hybrid_swa"))
