"""A Gemma 3 GGUF turned into a Hugging Face checkpoint: weights, configuration, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiqcache.errors import HiQCacheError
from hiqcache.lab.model.checkpoint import CONTROL_TOKEN, dump, save_weights

if TYPE_CHECKING:
    import numpy as np
    import torch

MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A block's modules: llama.cpp's name to the name in `Gemma3ForCausalLM`."""

EVERY_SIXTH = 6
"""Every sixth layer sees everything; the others have a window, and their RoPE a base of 10,000."""

USER_TOKEN = 4
"""`gguf.TokenType.USER_DEFINED`: taken out of a text whole."""

SPACE = "\u2581"


def write_checkpoint(gguf_file: Path, folder: Path) -> None:
    """Write config.json, model.safetensors (bfloat16) and the tokenizer into a folder.

    Raises
    ------
    HiQCacheError
        The GGUF is not a Gemma 3, or the weights cannot be written.
    """
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kind = meta.get("general.architecture")
    if kind != "gemma3":
        raise HiQCacheError(f"{gguf_file.name}: expected 'gemma3', got {kind!r}")
    tensors = dict(
        _convert(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
        for tensor in reader.tensors
    )
    save_weights(tensors, folder)
    dump(folder / "config.json", model_config(meta))
    dump(folder / "generation_config.json", _special_ids(meta))
    dump(folder / "tokenizer_config.json", _tokenizer_config(meta))
    _write_tokenizer(meta, folder / "tokenizer.json")


def _convert(name: str, weight: np.ndarray) -> tuple[str, torch.Tensor]:
    import numpy as np
    import torch

    match name.split("."):
        case ["token_embd", "weight"]:
            target = "model.embed_tokens.weight"
        case ["output_norm", "weight"]:
            target = "model.norm.weight"
        case ["blk", layer, module, "weight"] if module in MODULES:
            target = f"model.layers.{layer}.{MODULES[module]}.weight"
        case _:
            raise HiQCacheError(f"the GGUF holds an unexpected tensor {name!r}")
    if name.endswith("norm.weight"):
        # llama.cpp multiplies by the weight, Gemma by one more than it.
        weight = weight - 1
    return target, torch.from_numpy(np.array(weight)).to(torch.bfloat16)


def model_config(meta: dict[str, Any]) -> dict[str, Any]:
    """config.json for `Gemma3ForCausalLM` from the GGUF's metadata."""

    def own(name: str) -> Any:
        return meta[f"gemma3.{name}"]

    layers = own("block_count")
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": own("embedding_length"),
        "intermediate_size": own("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": own("attention.head_count"),
        "num_key_value_heads": own("attention.head_count_kv"),
        "head_dim": own("attention.key_length"),
        "query_pre_attn_scalar": own("attention.key_length"),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "max_position_embeddings": own("context_length"),
        # The GGUF holds a float32: 9.9999999e-07 is 1e-06 there.
        "rms_norm_eps": float(f"{own('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": own("rope.freq_base"),
        "rope_local_base_freq": 10000.0,
        "sliding_window": own("attention.sliding_window"),
        "sliding_window_pattern": EVERY_SIXTH,
        "layer_types": [
            "sliding_attention" if (layer + 1) % EVERY_SIXTH else "full_attention"
            for layer in range(layers)
        ],
        "tie_word_embeddings": True,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "torch_dtype": "bfloat16",
        **_special_ids(meta),
    }


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    tokens, ids = meta["tokenizer.ggml.tokens"], _special_ids(meta)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": meta["gemma3.context_length"],
        "clean_up_tokenization_spaces": False,
    }


def _special_ids(meta: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def merges_of(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """The merges of a BPE vocabulary that came as SentencePiece keeps it: pieces with scores.

    Two pieces merge if their union is one; of several the one of the best score goes first.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    found = [
        (-scores[index], ids[token[:cut]], ids[token[cut:]])
        for token, index in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(found)]


def _write_tokenizer(meta: dict[str, Any], path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    ids = _special_ids(meta)
    bos, unknown = tokens[ids["bos_token_id"]], tokens[meta["tokenizer.ggml.unknown_token_id"]]
    tokenizer = Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            merges_of(tokens, meta["tokenizer.ggml.scores"]),
            fuse_unk=True,
            byte_fallback=True,
            unk_token=unknown,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    for kind, special in ((CONTROL_TOKEN, True), (USER_TOKEN, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, found in zip(tokens, kinds, strict=True)
            if found == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, ids["bos_token_id"])]
    )
    tokenizer.save(str(path))
