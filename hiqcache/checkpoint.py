"""The files that describe a checkpoint: config.json, Mistral's params.json, quantisation files.

`geometry` reads a model's KV shape through it, doctor and the engine what the files ask of the KV
cache. Nothing here needs torch or SGLang.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError

CONFIG = "config.json"
PARAMS = "params.json"
QUANTISATION = "hf_quant_config.json"

LARGEST = 64 * 2**20
"""Bytes; a published config.json has a few thousand, so that anything larger is another file."""

MISTRAL = {
    "dim": "hidden_size",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}
"""Names of Mistral's and Meta's params.json, from SGLang's `_remap_general_mistral_args`."""


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Parse a file that holds one JSON object, in UTF-8, UTF-16 or UTF-32, with or without a BOM.

    Parameters
    ----------
    what
        What the caller takes the file for; begins every error.

    Raises
    ------
    FileNotFoundError
        No such file: what to say then, the caller knows.
    UsageError
        Unreadable, no JSON, larger than any such file, or something else than an object.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise UsageError(f"{what} is larger than {LARGEST // 2**20} MiB: that is another file")
        value = json.loads(raw)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {what}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if "\0" in str(path):
            raise UsageError(f"{what} is no path: it holds a NUL character") from None
        raise UsageError(f"{what} is not JSON: {str(error) or type(error).__name__}") from None
    if not isinstance(value, dict):
        raise UsageError(
            f"{what} is not a model's {CONFIG}: expected an object, got {type(value).__name__}"
        )
    return value


def read_config(source: Path, what: str) -> tuple[dict[str, Any], Path]:
    """Read a config.json or params.json, or the one in a folder; config.json comes first.

    Returns
    -------
    tuple
        The object, with Hugging Face's names, and the file it came from.

    Raises
    ------
    FileNotFoundError, UsageError
        As `read_object`.
    """
    path = source
    if os.path.isdir(source):  # Path's own methods raise for a name that is too long
        path = source / CONFIG
        if not os.path.exists(path) and os.path.exists(source / PARAMS):
            path = source / PARAMS
    return with_usual_names(read_object(path, what)), path


def with_usual_names(config: dict[str, Any]) -> dict[str, Any]:
    """A params.json under Hugging Face's names; anything else as it is."""
    if "dim" not in config or "hidden_size" in config:
        return config
    return {MISTRAL.get(key, key): value for key, value in config.items()}


def fp8_kv(config: Mapping[str, Any], folder: Path | None) -> str | None:
    """Say which file and key ask for an FP8 KV cache, or return None.

    With `--kv-cache-dtype auto` SGLang follows them (`configure_kv_cache_dtype`): ModelOpt's
    `kv_cache_quant_algo`, and the `kv_cache_scheme` of compressed-tensors and ModelOpt.

    Parameters
    ----------
    config
        The whole config.json.
    folder
        Where a `hf_quant_config.json` may lie beside it; None where there is no folder.

    Raises
    ------
    UsageError
        A quantisation file that cannot be read: whether it asks for FP8 is then unknown.
    """
    parts = [(CONFIG, config.get(key)) for key in ("quantization_config", "compression_config")]
    text = config.get("text_config")
    if isinstance(text, dict):
        parts.append((CONFIG, text.get("quantization_config")))
    if folder is not None and os.path.exists(folder / QUANTISATION):
        found = read_object(folder / QUANTISATION, str(folder / QUANTISATION))
        parts += [(QUANTISATION, found), (QUANTISATION, found.get("quantization"))]
    for file, part in parts:
        if not isinstance(part, dict):
            continue
        algorithm, scheme = part.get("kv_cache_quant_algo"), part.get("kv_cache_scheme")
        if isinstance(algorithm, str) and algorithm.upper() == "FP8":
            return f"{file} (kv_cache_quant_algo {algorithm})"
        scheme = scheme if isinstance(scheme, dict) else {}
        if scheme.get("type") == "float" and scheme.get("num_bits") == 8:
            return f"{file} (kv_cache_scheme of 8-bit floats)"
    return None
