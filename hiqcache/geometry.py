"""A model's KV shape: how many layers, KV heads and values a token leaves in the cache.

Read from any Hugging Face config.json, in the way SGLang 0.5.23 reads it
(`sglang/srt/configs/model_config.py`, `_derive_model_shapes` and `get_num_kv_heads`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.unsupported_models import architectures, why_unsupported

NESTED = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where a multimodal config.json keeps its language model, in SGLang's order."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
LIMIT = 1_000_000
"""No model comes near it; a larger figure is a damaged file."""


class UnsupportedModel(UsageError):
    """A model whose KV is not one K and one V row per token and layer."""


@dataclass(frozen=True)
class Geometry:
    """What every layer of a model keeps for one token: a K row and a V row.

    Qwen3-8B is `Geometry("qwen3-8b", 36, 8, 128, 128)`: 36 layers of 8 KV heads, each head
    128 values of K and 128 of V; in BF16 that is 36 x (2048 + 2048) = 147,456 bytes.

    Parameters
    ----------
    name
        What the user asked for: a shipped name or a path.
    layers
        Attention layers with a KV cache of their own.
    kv_heads
        KV heads of the whole model, before tensor parallelism.
    head_dim, v_head_dim
        Values of one head's K and V row.
    attention_heads
        Query heads, where known: tensor parallelism must divide them too.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention_heads: int | None = None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], name: str, *, one_pool: bool = False
    ) -> Geometry:
        """Read a parsed config.json.

        Parameters
        ----------
        one_pool
            SGLang runs with `--disable-hybrid-swa-memory`: sliding-window layers share the pool
            of the others.

        Raises
        ------
        UsageError
            A key is missing or no positive integer, or the model is not plain MHA or GQA.
        """
        text = _text_config(config)
        reason = why_unsupported(config, text, one_pool=one_pool)
        if reason:
            raise UnsupportedModel(
                f"{name}: {reason}; HiQCache counts models in which every layer keeps one K "
                f"and one V row of every token (MHA, GQA, MQA)"
            )
        layers, heads = _need(text, LAYERS, name), _need(text, HEADS, name)
        head_dim = _optional(text, ("head_dim",), name)
        if head_dim is None:
            head_dim = _need(text, HIDDEN, name) // heads
        kv_heads = _kv_heads(text, heads, name, nested=text is not config)
        # SGLang takes a v_head_dim of 0 for "as wide as K", as DeepSeek-VL2 writes it.
        asymmetric = text.get("v_head_dim") not in (None, 0)
        v_head_dim = _need(text, ("v_head_dim",), name) if asymmetric else head_dim
        return cls(name, layers, kv_heads, head_dim, v_head_dim, heads)

    @classmethod
    def load(cls, source: str, *, one_pool: bool = False) -> Geometry:
        """Load by a shipped name, a path to a config.json, or a folder that holds one.

        Parameters
        ----------
        one_pool
            As for `from_config`.

        Raises
        ------
        UsageError
            No such name or file, not JSON, or what `from_config` refuses.
        """
        shipped = files("hiqcache") / "geometries" / f"{source.lower()}.json"
        if source.lower() in shipped_names():
            config = json.loads(shipped.read_text("utf-8"))
            return cls.from_config(config, source.lower(), one_pool=one_pool)
        if not source:
            raise UsageError("an empty geometry: expected a name or a path")
        try:
            path = Path(source)
            path = path / "config.json" if path.is_dir() else path
            config = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise UsageError(
                f"no geometry {source!r}: expected a config.json, a folder that holds one, or "
                f"one of {', '.join(shipped_names())}"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot read geometry {source!r}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            detail = str(error) or type(error).__name__
            raise UsageError(f"geometry {source!r} is not JSON: {detail}") from None
        if not isinstance(config, dict):
            raise UsageError(
                f"geometry {source!r} is not a model's config.json: expected an object, got "
                f"{type(config).__name__}"
            )
        return cls.from_config(config, source, one_pool=one_pool)

    def local_heads(self, tp: int = 1) -> int:
        """KV heads that one rank keeps under tensor parallelism.

        As in SGLang: `kv_heads // tp`, and with more ranks than KV heads one head on each,
        so that each head is kept by `tp // kv_heads` ranks.

        Raises
        ------
        UsageError
            SGLang could not split the model over `tp` ranks.
        """
        if tp < 1:
            raise UsageError(f"tensor parallelism must be at least 1, got {tp}")
        if self.attention_heads is not None and self.attention_heads % tp:
            raise UsageError(
                f"tensor parallelism {tp} does not divide the {self.attention_heads} attention "
                f"heads of {self.name}"
            )
        if max(self.kv_heads, tp) % min(self.kv_heads, tp):
            raise UsageError(
                f"tensor parallelism {tp} does not fit the {self.kv_heads} KV heads of "
                f"{self.name}: one must divide the other"
            )
        return max(1, self.kv_heads // tp)


def shipped_names() -> list[str]:
    """The geometries that come with the package, sorted."""
    folder = files("hiqcache") / "geometries"
    return sorted(
        entry.name.removesuffix(".json")
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    first = next(iter(architectures(config)), "")
    if first.startswith("Llava") and first.endswith("ForCausalLM"):
        return config  # its text_config is an unused default
    for key in NESTED:
        nested = config.get(key)
        if isinstance(nested, dict):
            return _text_config(nested) if key == "thinker_config" else nested
    return config


def _kv_heads(text: Mapping[str, Any], heads: int, name: str, *, nested: bool) -> int:
    falcon = text.get("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel")
    if text.get("multi_query") and not (falcon and text.get("new_decoder_architecture")):
        return 1
    attention = text.get("attn_config")
    if text.get("model_type") in ("mpt", "dbrx") and isinstance(attention, dict):
        return _optional(attention, ("kv_n_heads",), name) or heads
    if nested and not any(text.get(key) is not None for key in KV_HEADS):
        # A nested configuration leaves out what equals its class's default, which is
        # often some other figure than the number of attention heads.
        raise UsageError(f"{name}: the language model's config has no num_key_value_heads")
    return _optional(text, KV_HEADS, name) or heads


def _optional(config: Mapping[str, Any], keys: tuple[str, ...], name: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= LIMIT:
            raise UsageError(f"{name}: expected a positive integer for {key}, got {value!r}")
        return value
    return None


def _need(config: Mapping[str, Any], keys: tuple[str, ...], name: str) -> int:
    value = _optional(config, keys, name)
    if value is None:
        raise UsageError(f"{name}: the config has no {keys[0]}; is it a language model's?")
    return value
