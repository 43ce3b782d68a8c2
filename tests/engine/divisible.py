"""The demo model with a fourth KV head, so that tensor parallelism can split it.

SmolLM2-135M has 9 heads over 3 KV heads, which divide by nothing but 3. The model written here
has 12 over 4: the fourth KV head and its three query heads are copies of the first ones, and the
output projection ignores them. It computes what SmolLM2 computes, real rows lie in every head,
and it splits over 2 and over 4 ranks.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HEADS, KV_HEADS, HEAD_DIM = 12, 4, 64
ADDED = 3
"""Query heads of one KV head."""


def divisible(model: Path, folder: Path) -> Path:
    """Write the widened copy of a SmolLM2 checkpoint into `folder`; returns it."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    found = (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"])
    assert found == (HEADS - ADDED, KV_HEADS - 1, HEAD_DIM), found
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(model / name, folder / name)
    weights = load_file(model / "model.safetensors")
    widened = {name: _widen(name, weight) for name, weight in weights.items()}
    save_file(widened, folder / "model.safetensors", metadata={"format": "pt"})
    # Last: what has a config is whole.
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return folder


def _widen(name: str, weight: torch.Tensor) -> torch.Tensor:
    """`[heads * head_dim, hidden]` for Q, K and V, `[hidden, heads * head_dim]` for O."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    match kind:
        case "q_proj":
            return torch.cat([weight, weight[: ADDED * HEAD_DIM]])
        case "k_proj" | "v_proj":
            return torch.cat([weight, weight[:HEAD_DIM]])
        case "o_proj":
            return torch.cat([weight, weight.new_zeros(len(weight), ADDED * HEAD_DIM)], dim=1)
    return weight
