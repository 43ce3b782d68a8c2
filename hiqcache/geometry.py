"""A model's KV shape: how many layers, KV heads and values a token leaves in the cache.

Read from any Hugging Face config.json or Mistral's params.json, in the way SGLang 0.5.23 reads it
(`sglang/srt/configs/model_config.py`, `_derive_model_shapes` and `get_num_kv_heads`). What the file
leaves open is taken as SGLang takes it, and said in `Geometry.notes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hiqcache.checkpoint import fp8_kv, read_config
from hiqcache.errors import UsageError, brief
from hiqcache.geometries import close_names, shipped_config, shipped_name, shipped_names
from hiqcache.model_config import HEADS, LAYERS, Figures
from hiqcache.unsupported_models import architectures, why_unsupported

NESTED = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where a multimodal config.json keeps its language model, in SGLang's order."""

FP8_KV_NOTE = (
    "asks for an FP8 KV cache, which HiQCache does not encode: start the server with "
    "--kv-cache-dtype bfloat16, for which the figures are"
)


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
    notes
        Sentences for whoever reads the figures: what the file left open and was taken as SGLang
        takes it, and what the server has to be told.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention_heads: int | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

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
        text = text_config(config)
        reason = why_unsupported(config, text, one_pool=one_pool)
        if reason:
            raise UsageError(
                f"{name}: {reason}; HiQCache counts models in which every layer keeps one K "
                f"and one V row of every token (MHA, GQA, MQA)"
            )
        read = Figures(text, name)
        layers, heads = read.need(LAYERS), read.need(HEADS)
        head_dim = read.optional(("head_dim",))
        if head_dim is None:
            head_dim = read.head_dim(heads)
        kv_heads = read.kv_heads(heads, nested=text is not config)
        # SGLang takes a v_head_dim of 0 for "as wide as K", as DeepSeek-VL2 writes it.
        asymmetric = text.get("v_head_dim") not in (None, 0)
        v_head_dim = read.need(("v_head_dim",)) if asymmetric else head_dim
        return cls(name, layers, kv_heads, head_dim, v_head_dim, heads, tuple(read.notes))

    @classmethod
    def load(cls, source: str, *, one_pool: bool = False) -> Geometry:
        """Load by a path to a config.json or params.json, a folder that holds one, or a name.

        Parameters
        ----------
        source
            A shipped name, with or without its owner (`Qwen/Qwen3-8B`), in any case, or a path.
        one_pool
            As for `from_config`.

        Raises
        ------
        UsageError
            No such name or file, not JSON, or what `from_config` refuses.
        """
        config, name, folder = load_config(source)
        geometry = cls.from_config(config, name, one_pool=one_pool)
        asked = None if folder is None else fp8_kv(config, folder)
        if asked is None:
            return geometry
        return replace(geometry, notes=(*geometry.notes, f"{asked} {FP8_KV_NOTE}"))

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


def load_config(source: str) -> tuple[dict[str, Any], str, Path | None]:
    """A model's config, its name, and its folder unless it is a shipped one.

    Raises
    ------
    UsageError
        No such name or file, or not JSON.
    """
    if not source:
        raise UsageError("an empty geometry: expected a name or a path")
    name = shipped_name(source)
    if name is not None:
        return shipped_config(name), name, None
    try:
        config, path = read_config(Path(source), f"geometry {brief(source)}")
    except FileNotFoundError:
        raise UsageError(_no_such(source)) from None
    return config, source, path.parent


def _no_such(source: str) -> str:
    close = close_names(source)
    advice = f"did you mean {' or '.join(close)}? Expected" if close else "expected"
    known = "a shipped name" if close else f"one of {', '.join(shipped_names())}"
    return (
        f"no geometry {brief(source)}: {advice} a config.json, a folder that holds one, or {known}"
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    first = next(iter(architectures(config)), "")
    if first.startswith("Llava") and first.endswith("ForCausalLM"):
        return config  # its text_config is an unused default
    for key in NESTED:
        nested = config.get(key)
        if isinstance(nested, dict):
            return text_config(nested) if key == "thinker_config" else nested
    return config
