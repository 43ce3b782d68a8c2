"""A user's own prompts: a JSON-lines file of prompts, or a text that is cut into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.lab.quality.prompt import CONTINUATION_TOKENS, Encode, Prompt

LEAST_TOKENS = 320
"""A prefix's least length: with pages of 16, less than 5 % of it is computed and not restored."""

CUT_TOKENS = 1000
FIELDS = ("prefix", "continuation", "question", "answer", "kind")


def load_prompts(path: Path, encode: Encode) -> list[Prompt]:
    """Read `path`: JSON lines if its name ends in `.jsonl`, else text.

    A JSON line is an object with `prefix` and any of `continuation`, `question`, `answer` and
    `kind`, all strings. Text is cut every 1,064 tokens: 1,000 to be restored and 64 to be read
    behind them.

    Raises
    ------
    UsageError
        Says the line, what was expected and what came.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} cannot be read as UTF-8 text: {error}") from error
    if path.suffix != ".jsonl":
        return _cut(path, encode(text))
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    prompts = [_prompt(f"{path}, line {number}", number, line, encode) for number, line in lines]
    if not prompts:
        raise UsageError(f"--prompts {path} holds no prompt: expected one JSON object a line")
    return prompts


def _prompt(where: str, number: int, line: str, encode: Encode) -> Prompt:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: expected a JSON object, got {line[:40]!r}: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("prefix"), str):
        raise UsageError(f'{where}: expected an object with a string "prefix", got {line[:40]!r}')
    for key, value in record.items():
        if key not in FIELDS or not isinstance(value, str):
            raise UsageError(
                f"{where}: expected strings under {', '.join(FIELDS)}, got {key!r}: {value!r:.40}"
            )
    prefix = encode(record["prefix"])
    if len(prefix) < LEAST_TOKENS:
        raise UsageError(
            f"{where}: the prefix has {len(prefix)} tokens, expected {LEAST_TOKENS} or more: a "
            f"shorter one does not come back from L2 at 95 %"
        )
    if "answer" in record and not record["answer"].strip():
        raise UsageError(f"{where}: the answer is empty: leave it out where there is none")
    return Prompt(
        name=f"line-{number:03}",
        kind=record.get("kind", "question" if "answer" in record else "text"),
        prefix=tuple(prefix),
        continuation=tuple(encode(record.get("continuation", ""))),
        question=tuple(encode(record.get("question", ""))),
        answer=record.get("answer", "").strip() or None,
    )


def _cut(path: Path, tokens: list[int]) -> list[Prompt]:
    step = CUT_TOKENS + CONTINUATION_TOKENS
    count = len(tokens) // step
    if not count:
        raise UsageError(
            f"--prompts {path} has {len(tokens)} tokens, expected {step} or more to cut a prompt "
            f"of (a JSON-lines file must be named .jsonl)"
        )
    return [
        Prompt(
            name=f"cut-{index + 1:03}",
            kind="text",
            prefix=tuple(tokens[index * step : index * step + CUT_TOKENS]),
            continuation=tuple(tokens[index * step + CUT_TOKENS : (index + 1) * step]),
        )
        for index in range(count)
    ]
