"""A model folder for geometry-only runs: a real config.json, no weights, words that are numbers.

With `--load-format dummy` a config.json is all that SGLang needs. The benchmark client also
wants a tokenizer, and takes the first chunk with *text* for the first token: an id without text
would make the time to the first token too long. Here each id of the model's whole vocabulary is
the word `t<id>`.
"""

from __future__ import annotations

import json
from pathlib import Path

from hiqcache.errors import UsageError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def with_tokenizer(model: str, load_format: str | None, folder: Path) -> str:
    """The model itself, or a copy of its config.json with such a tokenizer beside it.

    Raises
    ------
    UsageError
        A folder without a tokenizer whose weights are to be loaded, or without a config.json.
    """
    source = Path(model)
    if not source.is_dir() or any((source / name).exists() for name in TOKENIZERS):
        return model
    if load_format != "dummy":
        raise UsageError(
            f"{model} holds no tokenizer: expected a whole checkpoint, or --load-format dummy "
            f"for a run of its geometry with random weights"
        )
    try:
        config = json.loads((source / "config.json").read_text("utf-8"))
        vocabulary = int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{model}: no config.json with a vocab_size: {error!r}") from error
    target = folder / source.name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(target, vocabulary)
    return str(target)


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"t{token}": token for token in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "unk_token": "t0",
        "model_max_length": 10**9,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
