"""Request traces: JSON lines, read and written. docs/simulate.md shows the forms.

Blocks with hashes and tokens, Mooncake's `hash_ids`, or prompts: `text`, or the bodies of OpenAI's
completions and chat completions. Two prompts share a block when they share its hash and everything
before it; a hash has one size throughout a file.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hiqcache.errors import UsageError, brief
from hiqcache.simulate.lines import read_lines
from hiqcache.simulate.replay import Request
from hiqcache.simulate.tree import Block

BLOCK_TOKENS = 512
"""Mooncake's."""

MOST_TOKENS = 10**9
"""Of one request; more is a damaged file."""

FORMS = "blocks, hash_ids with input_length, text, prompt or messages"


class Tokenize(Protocol):
    """What turns prompts into token ids."""

    def text(self, text: str) -> Sequence[int]: ...

    def chat(self, messages: list[Any], tools: list[Any] | None) -> Sequence[int]: ...


@dataclass(frozen=True)
class Trace:
    """A file's requests, and sentences about what it left open."""

    requests: list[Request]
    notes: list[str]


def read_trace(
    path: str, block_tokens: int = BLOCK_TOKENS, tokenize: Tokenize | None = None
) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path
        A file, in gzip or not, or `-` for standard input.
    block_tokens
        Tokens of a block, but for the form that names them itself.
    tokenize
        Needed for prompts that are no token ids.

    Raises
    ------
    UsageError
        A line that has none of the forms, by number; no lines at all; hashes that do not fit the
        block size, with the one that does.
    """
    reader = _Reader(path, block_tokens, tokenize)
    for number, line in read_lines(path):
        try:
            reader.add(number, json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(
                f"{path} line {number}: expected {FORMS}, got {brief(line.strip())} "
                f"({reason or type(error).__name__})"
            ) from error
    return reader.trace()


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """Write the first form; the file must not exist."""
    with path.open("x", encoding="utf-8") as out:
        for request in requests:
            line = {"blocks": request.blocks, "output": request.output}
            out.write(json.dumps(line, separators=(",", ":")) + "\n")


@dataclass
class _Reader:
    path: str
    block_tokens: int
    tokenize: Tokenize | None
    requests: list[Request] = field(default_factory=list)
    sizes: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    hashed: list[tuple[int, int, int, list[Hashable]]] = field(default_factory=list)
    without_output: int = 0
    limit_only: int = 0

    def add(self, line: int, entry: Any) -> None:
        """Take one row; `line` is its number."""
        if not isinstance(entry, dict):
            raise TypeError(f"expected an object, got {type(entry).__name__}")
        if isinstance(entry.get("body"), dict):  # a line of OpenAI's batch files
            entry = entry["body"] | {key: entry[key] for key in ("output", "usage") if key in entry}
        output = self._output(entry)
        if "blocks" in entry:
            blocks = [(_hash(key), _tokens(tokens)) for key, tokens in _list(entry, "blocks")]
            self._append(blocks, output)
            self._check_sizes(line, blocks)
        elif "hash_ids" in entry:
            hashes = [_hash(key) for key in _list(entry, "hash_ids")]
            if not hashes:
                raise ValueError("hash_ids is empty")
            self.hashed.append((line, len(self.requests), _tokens(entry["input_length"]), hashes))
            self.requests.append(Request((), output))
        else:
            for ids in self._ids(entry):
                self._append(self._chunks(ids), output)

    def _append(self, blocks: list[Block], output: int) -> None:
        if not blocks:
            raise ValueError("an empty prompt")
        if sum(tokens for _, tokens in blocks) > MOST_TOKENS:
            raise ValueError(f"more than {MOST_TOKENS:,} tokens")
        self.requests.append(Request(tuple(blocks), output))

    def trace(self) -> Trace:
        """All of it, once the file has ended."""
        if not self.requests:
            raise UsageError(f"{self.path} holds no requests")
        self._cut_hashes()
        notes = []
        if self.without_output:
            notes.append(
                f"{self.without_output:,} requests do not say how long the answer was (output, "
                f"output_length or usage.completion_tokens): taken as 0 tokens"
            )
        if self.limit_only:
            notes.append(
                f"{self.limit_only:,} requests name the limit of the answer only (max_tokens): "
                f"taken as its length"
            )
        return Trace(self.requests, notes)

    def _cut_hashes(self) -> None:
        """Give each hash of Mooncake's form its tokens: all a block, the last one what is left."""
        if not self.hashed:
            return
        # `n` blocks hold `length` tokens if n is length / size, rounded up.
        least = max((-(-length // len(hashes)), line) for line, _, length, hashes in self.hashed)
        most = min(
            (MOST_TOKENS if len(hashes) == 1 else (length - 1) // (len(hashes) - 1), line)
            for line, _, length, hashes in self.hashed
        )
        size = self.block_tokens
        if least[0] > most[0]:
            raise UsageError(
                f"{self.path}: no block size fits its hash_ids: line {least[1]} needs at least "
                f"{least[0]:,} tokens a hash, line {most[1]} at most {most[0]:,}"
            )
        if not least[0] <= size <= most[0]:
            power = 1 << (least[0] - 1).bit_length()
            fits = power if power <= most[0] else least[0]
            raise UsageError(
                f"{self.path}: {size:,} tokens a hash do not fit its hash_ids (line "
                f"{least[1] if size < least[0] else most[1]}), {least[0]:,} to {most[0]:,} would: "
                f"give --block-tokens {fits}"
            )
        for line, index, length, hashes in self.hashed:
            blocks = [(key, size) for key in hashes[:-1]]
            blocks.append((hashes[-1], length - size * len(blocks)))
            try:
                self._check_sizes(line, blocks)
            except ValueError as error:
                raise UsageError(f"{self.path} line {line}: {error}") from None
            self.requests[index] = replace(self.requests[index], blocks=tuple(blocks))
        self.hashed.clear()

    def _check_sizes(self, line: int, blocks: Sequence[Block]) -> None:
        for key, tokens in blocks:
            size, first = self.sizes.setdefault(key, (tokens, line))
            if size != tokens:
                raise ValueError(
                    f"hash {brief(key)} has {tokens:,} tokens here and {size:,} in line {first}: "
                    f"a hash has one size"
                )

    def _ids(self, entry: dict[str, Any]) -> Iterator[Sequence[int]]:
        """Token ids of a row's prompts; a list of prompts is as many requests."""
        if "messages" in entry:
            messages = [_message(message) for message in _list(entry, "messages")]
            yield self._tokenizer().chat(messages, entry.get("tools"))
            return
        prompt = entry["prompt"] if "prompt" in entry else entry["text"]
        if isinstance(prompt, list) and prompt and type(prompt[0]) is not int:
            prompts = prompt
        else:
            prompts = [prompt]
        for one in prompts:
            if isinstance(one, str):
                yield self._tokenizer().text(one)
            elif isinstance(one, list) and all(type(token) is int for token in one):
                yield one
            else:
                raise TypeError(f"expected text or token ids, got {brief(one)}")

    def _tokenizer(self) -> Tokenize:
        if self.tokenize is None:
            raise UsageError(
                f"{self.path} holds prompts as text: name the model's tokenizer with --tokenizer"
            )
        return self.tokenize

    def _chunks(self, ids: Sequence[int]) -> list[Block]:
        step = self.block_tokens
        chunks = (tuple(ids[start : start + step]) for start in range(0, len(ids), step))
        return [(chunk, len(chunk)) for chunk in chunks]

    def _output(self, entry: dict[str, Any]) -> int:
        usage = entry.get("usage")
        said = (
            entry.get("output"),
            entry.get("output_length"),
            usage.get("completion_tokens") if isinstance(usage, dict) else None,
        )
        limits = (entry.get("max_completion_tokens"), entry.get("max_tokens"))
        found = next((value for value in (*said, *limits) if value is not None), None)
        if found is None:
            self.without_output += 1
            return 0
        self.limit_only += all(value is None for value in said)
        return _tokens(found, least=0)


def _message(message: Any) -> dict[str, Any]:
    """A chat message with its parts of text as one text."""
    if not isinstance(message, dict):
        raise TypeError(f"expected a message, got {brief(message)}")
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a message with parts that are no text, whose tokens cannot be counted")
    return message | {"content": "".join(str(text) for text in texts)}


def _list(entry: dict[str, Any], key: str) -> list[Any]:
    value = entry[key]
    if not isinstance(value, list):
        raise TypeError(f"expected a list for {key}, got {brief(value)}")
    return value


def _hash(value: Any) -> Hashable:
    """A block's hash: a string, a whole number, or a list of them."""
    if isinstance(value, list):
        return tuple(_hash(part) for part in value)
    if isinstance(value, str) or type(value) is int:
        return value
    raise TypeError(f"expected a string or a whole number for a hash, got {brief(value)}")


def _tokens(value: Any, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= MOST_TOKENS:
        raise ValueError(f"expected a whole number of tokens from {least}, got {brief(value)}")
    return value
