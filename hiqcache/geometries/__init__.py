"""The geometries that come with the package, and which of them a user means."""

from __future__ import annotations

import json
import os
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def shipped_names() -> tuple[str, ...]:
    """Their names, sorted."""
    folder = files(__name__)
    return tuple(
        sorted(
            entry.name.removesuffix(".json")
            for entry in folder.iterdir()
            if entry.name.endswith(".json")
        )
    )


def shipped_config(name: str) -> dict[str, Any]:
    """The keys of the model's config.json that its geometry follows from."""
    config: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text("utf-8"))
    return config


def shipped_name(source: str) -> str | None:
    """The shipped geometry that a name means, in any case; None if it is a path or no such name.

    The owner of a Hugging Face id (`Qwen/Qwen3-8B`) is left out, unless there is a file or folder
    of that very path.
    """
    owner, slash, name = source.lower().rpartition("/")
    if name not in shipped_names():
        return None
    if slash and (owner.count("/") or owner in ("", ".", "..", "~") or os.path.exists(source)):
        return None
    return name


def close_names(source: str) -> list[str]:
    """Shipped names that somebody who typed `source` may have meant; best first."""
    typed = source.lower().rpartition("/")[2]
    begun = [name for name in shipped_names() if typed.startswith(name)]  # qwen3-8b-fp8
    return begun or get_close_matches(typed, shipped_names(), n=3, cutoff=0.75)
