"""What both ways of measuring need first: tokenizer, prompts, and what goes with the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.model.hub import config_of, label, tokenizer_of
from hiqcache.lab.quality.corpus import LONGEST, SHORTEST, make_prompts
from hiqcache.lab.quality.prompt import CONTINUATION_TOKENS, FREE_TOKENS, Prompt
from hiqcache.lab.quality.prompt_file import LEAST_TOKENS, load_prompts


@dataclass(frozen=True)
class Text:
    """A model's tokenizer, both ways."""

    tokenizer: Any
    geometry: Geometry
    window: int | None = None
    """The narrowest window of a layer's attention, in tokens; None if every layer sees all."""

    @classmethod
    def load(cls, model: str) -> Text:
        """Refuses a model that HiQCache could not store, before anything is loaded or started.

        Raises
        ------
        UsageError
            The model cannot be loaded, or has no plain K and V row in every layer.
        """
        _require_checkpoint(model)
        config = config_of(model)
        geometry = Geometry.from_config(config, model, one_pool=True)
        window = config.get("sliding_window")
        types = config.get("layer_types") or ("sliding_attention",)
        return cls(tokenizer_of(model), geometry, window if "sliding_attention" in types else None)

    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest prefix that leaves a window room for what follows."""
        if self.window is None or self.window > LONGEST + 2 * CONTINUATION_TOKENS:
            return SHORTEST, LONGEST
        longest = self.window - CONTINUATION_TOKENS - FREE_TOKENS
        if longest < LEAST_TOKENS:
            raise UsageError(
                f"the model has windows of {self.window} tokens, and a prefix of {LEAST_TOKENS} "
                f"with what follows it does not fit: measure another model"
            )
        return min(SHORTEST, LEAST_TOKENS), longest

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))


def _require_checkpoint(model: str) -> None:
    """Refuse a folder that lacks what is read from one; an id is looked up elsewhere."""
    folder = Path(model)
    if not folder.is_dir():
        return
    parts = {
        "config.json": ["config.json"],
        "a tokenizer": ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.*"],
        "weights": ["*.safetensors", "*.bin", "*.pt"],
    }
    missing = [part for part, names in parts.items() if not any(map(_found(folder), names))]
    if missing:
        lacking = " and no ".join(part.removeprefix("a ") for part in missing)
        raise UsageError(
            f"--model {model} holds no {lacking}: expected a checkpoint's folder, with "
            f"{', '.join(parts)}"
        )


def _found(folder: Path) -> Callable[[str], bool]:
    return lambda name: any(folder.glob(name))


def choose_prompts(
    text: Text,
    file: Path | None,
    count: int | None,
    tokens: tuple[int, int] = (SHORTEST, LONGEST),
) -> list[Prompt]:
    """The user's prompts, or those that ship; the first `count` of them.

    A prefix begins with the model's BOS token where its tokenizer writes one.
    """
    start = text.tokenizer("a").input_ids
    begins_with_bos = start[0] == text.tokenizer.bos_token_id
    bos = (start[0],) if begins_with_bos else ()
    if file is not None:
        prompts = load_prompts(file, text.encode)[:count]
    else:
        prompts = make_prompts(text.encode, count or 1, *tokens)
    return [replace(prompt, prefix=bos + prompt.prefix) for prompt in prompts]


def describe(model: str, file: Path | None, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Model and prompts, for the results: names, no paths of this machine."""
    lengths = [len(prompt.prefix) for prompt in prompts]
    return {
        "model": label(model),
        "prompts": {
            "source": file.name if file else "hiqcache/lab/workload/texts",
            "count": len(prompts),
            "prefix_tokens": [min(lengths), max(lengths), sum(lengths)],
        },
    }
