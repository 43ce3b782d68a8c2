"""What is known of a codec on a model: doctor warns where nobody has measured. Needs no torch.

K with a bias in its projection can be hundreds of times larger in a few channels than in the rest
(Qwen2 and Qwen2.5 have norms of several hundred in their first and last layers), and below 8 bits
any model may hold a surprise. What was measured is in docs/codecs.md.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from hiqcache.codec.catalog import codec_entry
from hiqcache.codec.record import Levels

MEASURED = {("llama", 576, 30): "SmolLM2-135M", ("gemma3_text", 640, 18): "Gemma 3 270M"}
"""Models of docs/codecs.md, by model_type, hidden_size and num_hidden_layers."""

BIASED = ("qwen2", "gpt_oss")
"""How the model_type of families begins whose K is known for a bias."""

LARGEST_HEADER = 100 * 2**20
NUMBERS = {"F32": ("f", 4), "F16": ("e", 2), "BF16": ("H", 2)}
"""How `struct` reads a safetensors dtype, and its bytes. BF16 is the upper half of a float."""


def warning(codec: str, config: Mapping[str, Any], folder: Path | None, model: str) -> str | None:
    """One sentence about a codec that nobody has measured on such a model; None if all is well.

    Parameters
    ----------
    config
        The whole config.json.
    folder
        Where the weights lie; None where only the config is here.
    model
        As the user calls it, for the command that measures.
    """
    entry = codec_entry(codec)
    if not entry.lossy:
        return None
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
    known = (text.get("model_type"), text.get("hidden_size"), text.get("num_hidden_layers"))
    if known in MEASURED:
        return None
    measure = f"run `hiqcache quality choose --model {model}`"
    if reason := _bias(text, folder):
        return f"{codec} is unmeasured on this model, {reason}: use exact, or {measure}"
    sides = [side.bits for side in (entry.k, entry.v) if isinstance(side, Levels)]
    if sides and min(sides) < 8:
        return (
            f"{codec} keeps {min(sides)} bits, and that has been measured on "
            f"{' and '.join(MEASURED.values())} alone: {measure} before relying on it"
        )
    return None


def _bias(text: Mapping[str, Any], folder: Path | None) -> str | None:
    """Why K may be far from what was measured."""
    norms = sorted(k_bias_norms(folder)) if folder is not None else []
    if norms and norms[-1] > 0:
        return (
            f"whose K has a bias in every layer (norms up to {norms[-1]:,.0f}, median "
            f"{median(norms):,.0f})"
        )
    kind = str(text.get("model_type"))
    if not norms and kind.startswith(BIASED):
        return f"of a family whose K has large biases ({kind})"
    return None


def k_bias_norms(folder: Path) -> list[float]:
    """The Euclidean norm of each layer's `k_proj.bias` in a folder of safetensors.

    Reads headers and those few kilobytes. A file that is no safetensors has none.
    """
    return [
        math.sqrt(sum(value * value for value in values))
        for path in sorted(folder.glob("*.safetensors"))
        for values in _k_biases(path)
    ]


def _k_biases(path: Path) -> Iterator[list[float]]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > LARGEST_HEADER:
                return
            header = json.loads(file.read(size))
            for name, tensor in header.items():
                if name.endswith("k_proj.bias") and tensor["dtype"] in NUMBERS:
                    begin, end = tensor["data_offsets"]
                    file.seek(8 + size + begin)
                    yield _numbers(file.read(end - begin), tensor["dtype"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return


def _numbers(raw: bytes, dtype: str) -> list[float]:
    form, size = NUMBERS[dtype]
    values = struct.unpack(f"<{len(raw) // size}{form}", raw)
    if dtype != "BF16":
        return list(values)
    wide = struct.pack(f"<{len(values)}I", *(value << 16 for value in values))
    return list(struct.unpack(f"<{len(values)}f", wide))
