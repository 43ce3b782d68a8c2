"""A llama GGUF turned into a Hugging Face checkpoint: weights, configuration, tokenizer."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hiqcache.errors import HiQCacheError

if TYPE_CHECKING:
    import numpy as np
    import torch

MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""A block's modules: llama.cpp's name to the name in `LlamaForCausalLM`."""

CONTROL_TOKEN = 3
"""`gguf.TokenType.CONTROL`: a token that text never produces."""


def check_requirements() -> None:
    """Import what `write_checkpoint` needs, so that a gap shows before a long download.

    Raises
    ------
    ImportError
        The package is not installed.
    """
    for package in ("gguf", "safetensors.torch", "tokenizers"):
        importlib.import_module(package)


def write_checkpoint(gguf_file: Path, folder: Path) -> None:
    """Write config.json, model.safetensors (bfloat16) and the tokenizer into a folder.

    Raises
    ------
    HiQCacheError
        The GGUF is not a llama model with tied embeddings and SmolLM's tokenizer, or the
        weights cannot be written.
    """
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kind = (meta.get("general.architecture"), meta.get("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise HiQCacheError(f"{gguf_file.name}: expected ('llama', 'smollm'), got {kind}")
    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    tensors = dict(
        _convert(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type), heads)
        for tensor in reader.tensors
    )
    save_weights(tensors, folder)
    dump(folder / "config.json", model_config(meta))
    dump(folder / "generation_config.json", _special_ids(meta))
    dump(folder / "tokenizer_config.json", tokenizer_config(meta))
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], "utf-8")
    _write_tokenizer(meta, folder / "tokenizer.json")


def save_weights(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write model.safetensors.

    Raises
    ------
    HiQCacheError
        It cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    weights = folder / "model.safetensors"
    try:
        save_file(tensors, weights, metadata={"format": "pt"})
    except SafetensorError as error:
        raise HiQCacheError(f"cannot write {weights.name}: {error}") from None
    # safetensors keeps the file to its owner; a cache may be read by another user.
    weights.chmod(0o644)


def restore_rotary_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of a Q or K projection back into Hugging Face's rotary order.

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3); `LlamaForCausalLM` rotates the two
    halves of a head against each other. llama.cpp's converter therefore interleaves the
    halves (`permute` in its `convert_hf_to_gguf.py`); this is the inverse.

    Parameters
    ----------
    weight
        `[heads * head_dim, hidden]`, interleaved.
    heads
        Heads of this projection: query heads for Q, KV heads for K.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)


def _convert(name: str, weight: np.ndarray, heads: dict[str, int]) -> tuple[str, torch.Tensor]:
    import numpy as np
    import torch

    match name.split("."):
        case ["token_embd", "weight"]:
            target = "model.embed_tokens.weight"
        case ["output_norm", "weight"]:
            target = "model.norm.weight"
        case ["blk", layer, module, "weight"] if module in MODULES:
            target = f"model.layers.{layer}.{MODULES[module]}.weight"
            if module in heads:
                weight = restore_rotary_order(weight, heads[module])
        case _:
            raise HiQCacheError(f"the GGUF holds an unexpected tensor {name!r}")
    # A copy: an F32 tensor of the GGUF is a read-only view of the mapped file.
    return target, torch.from_numpy(np.array(weight)).to(torch.bfloat16)


def model_config(meta: dict[str, Any]) -> dict[str, Any]:
    """config.json for `LlamaForCausalLM` from the GGUF's metadata."""
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": meta["llama.context_length"],
        # The GGUF holds a float32: 9.9999997e-06 is 1e-05 there.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": meta["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": meta["llama.vocab_size"],
        "torch_dtype": "bfloat16",
        **_special_ids(meta),
    }


def tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: which tokens are special, and how a chat is written."""
    tokens, ids = meta["tokenizer.ggml.tokens"], _special_ids(meta)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }


def _special_ids(meta: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(meta: dict[str, Any], path: Path) -> None:
    """Byte-level BPE; every digit is a word of its own, as llama.cpp's `smollm` splits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(path))


def dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
