"""Request traces: JSON lines, read and written.

Three forms of a line, one form a file:

- `{"blocks": [["prefix-7", 2048], ["q-31", 64]], "output": 32}`: blocks of the prompt from its
  beginning, each with a hash (a string or a number) and its tokens. Two prompts share a block
  when they share its hash and everything before it.
- `{"hash_ids": [12, 13, 14], "input_length": 1300, "output_length": 80}`: as Mooncake's published
  traces have it, blocks of `block_tokens` each, the last one shorter.
- `{"text": "...", "output": 32}`: a prompt to tokenise; blocks of `block_tokens` tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.simulate.replay import Request
from hiqcache.simulate.tree import Block

Tokenize = Callable[[str], Sequence[int]]


def read_trace(
    path: Path, block_tokens: int, tokenize: Tokenize | None = None
) -> Iterator[Request]:
    """Read a trace line by line.

    Parameters
    ----------
    block_tokens
        Tokens of a block, for the last two forms.
    tokenize
        Token ids of a text; needed for the last form.

    Raises
    ------
    UsageError
        A line that has none of the forms, by number; or no lines at all.
    """
    number = 0
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield _request(json.loads(line), block_tokens, tokenize)
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{path} line {number}: expected blocks, hash_ids with input_length, or text, "
                    f"got {line.strip()[:80]!r} ({type(error).__name__}: {error})"
                ) from error
    if not number:
        raise UsageError(f"{path} holds no requests")


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """Write the first form; the file must not exist."""
    with path.open("x", encoding="utf-8") as out:
        for request in requests:
            line = {"blocks": request.blocks, "output": request.output}
            out.write(json.dumps(line, separators=(",", ":")) + "\n")


def _request(entry: dict[str, Any], block_tokens: int, tokenize: Tokenize | None) -> Request:
    if "blocks" in entry:
        blocks = tuple((key, _positive(tokens)) for key, tokens in entry["blocks"])
        if not blocks:
            raise ValueError("a request without blocks")
        return Request(blocks, int(entry.get("output", 0)))
    if "hash_ids" in entry:
        return _mooncake(entry, block_tokens)
    text = entry["text"]
    if tokenize is None:
        raise UsageError("a trace of texts needs --tokenizer")
    tokens = tokenize(text)
    if not tokens:
        raise ValueError("an empty text")
    chunks = (
        tuple(tokens[start : start + block_tokens]) for start in range(0, len(tokens), block_tokens)
    )
    return Request(tuple((chunk, len(chunk)) for chunk in chunks), int(entry.get("output", 0)))


def _mooncake(entry: dict[str, Any], block_tokens: int) -> Request:
    left = _positive(entry["input_length"])
    blocks: list[Block] = []
    for key in entry["hash_ids"]:
        blocks.append((key, min(left, block_tokens)))
        left -= block_tokens
        if left <= 0:
            break
    if left > 0:
        raise ValueError(f"hash_ids end {left} tokens before input_length")
    return Request(tuple(blocks), int(entry.get("output_length", 0)))


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"expected a positive whole number of tokens, got {value!r}")
    return value
