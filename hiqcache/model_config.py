"""Figures of a language model's config under their many names, for `geometry`.

Where the file leaves one open, it is what SGLang 0.5.23 takes, and a note says so. A number of KV
heads is never assumed where another name for it is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hiqcache.errors import UsageError, brief

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
OTHER_KV_HEADS = re.compile(r"(kv|key_?value).*(head|group)|head.*kv|query_?group", re.IGNORECASE)
"""What looks like a number of KV heads under a name that SGLang does not read."""

LIMIT = 1_000_000
"""No model comes near it; a larger figure is a damaged file."""


class Figures:
    """The figures of one language model's config, and notes about those it leaves open.

    Parameters
    ----------
    config
        The part of a config.json that describes the language model, under Hugging Face's names.
    name
        What the user asked for; begins every error.
    """

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.notes: list[str] = []

    def optional(
        self, keys: tuple[str, ...], within: Mapping[str, Any] | None = None
    ) -> int | None:
        """The first of several names that is there; a note if another one disagrees."""
        config = self.config if within is None else within
        found = [(key, config[key]) for key in keys if config.get(key) is not None]
        if not found:
            return None
        key, value = found[0]
        if type(value) is not int or not 1 <= value <= LIMIT:
            raise UsageError(
                f"{self.name}: expected a positive integer for {key}, got {brief(value)}"
            )
        others = [f"{other} {brief(it)}" for other, it in found[1:] if it != value]
        if others:
            self.notes.append(f"{key} {value} counts, as in SGLang, and not {', '.join(others)}")
        return value

    def need(self, keys: tuple[str, ...]) -> int:
        value = self.optional(keys)
        if value is None:
            raise UsageError(f"{self.name}: the config has no {keys[0]}; is it a language model's?")
        return value

    def head_dim(self, heads: int) -> int:
        hidden = self.need(HIDDEN)
        if hidden % heads:
            raise UsageError(
                f"{self.name}: the config has no head_dim, and its hidden size {hidden} is no "
                f"multiple of its {heads} attention heads"
            )
        self.notes.append(
            f"head_dim is not given: {hidden // heads}, the hidden size {hidden} over {heads} "
            f"attention heads"
        )
        return hidden // heads

    def kv_heads(self, heads: int, *, nested: bool) -> int:
        text = self.config
        falcon = text.get("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel")
        if text.get("multi_query") and not (falcon and text.get("new_decoder_architecture")):
            return 1
        attention = text.get("attn_config")
        if text.get("model_type") in ("mpt", "dbrx") and isinstance(attention, dict):
            found = self.optional(("kv_n_heads",), attention)
        else:
            found = self.optional(KV_HEADS)
        if found is not None:
            return found
        for key, value in _other_kv_heads(text):
            raise UsageError(
                f"{self.name}: no num_key_value_heads, but {key} {brief(value)}, a name that "
                f"SGLang does not read: add num_key_value_heads to the file if it means the KV "
                f"heads"
            )
        if nested:
            # A nested configuration leaves out what equals its class's default, which is
            # often some other figure than the number of attention heads.
            raise UsageError(f"{self.name}: the language model's config has no num_key_value_heads")
        self.notes.append(
            f"the number of KV heads is not given: {heads}, one for each attention head, as SGLang "
            f"takes it"
        )
        return heads


def _other_kv_heads(text: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys that name KV heads some other way, here or in a part about attention."""
    for key, value in text.items():
        if isinstance(value, dict) and "att" in key:
            yield from _other_kv_heads(value)
        elif value is not None and OTHER_KV_HEADS.search(key):
            yield key, value
