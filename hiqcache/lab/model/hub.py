"""A model by its Hugging Face id or folder: KV shape, tokenizer, and what results call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry


def geometry_of(model: str) -> Geometry:
    """The KV shape, under the name that `label` gives.

    Raises
    ------
    UsageError
        The model cannot be loaded, or has no plain K and V row in every layer.
    """
    if Path(model).exists():
        return replace(Geometry.load(model), name=label(model))
    return Geometry.from_config(config_of(model), label(model))


def config_of(model: str) -> dict[str, Any]:
    """config.json, as transformers completes it."""
    from transformers import AutoConfig

    config: dict[str, Any] = _load(AutoConfig.from_pretrained, model).to_dict()
    return config


def tokenizer_of(model: str) -> Any:
    """The tokenizer, as transformers has it."""
    from transformers import AutoTokenizer

    return _load(AutoTokenizer.from_pretrained, model)


def label(model: str) -> str:
    """The id, or the name of the folder: where it lies says nothing about a figure."""
    return Path(model).name if Path(model).exists() else model


def _load(load: Callable[[str], Any], model: str) -> Any:
    try:
        return load(model)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {model} cannot be loaded: {error}") from error
