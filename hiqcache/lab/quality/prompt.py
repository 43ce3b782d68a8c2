"""One prompt of the quality run: what goes through L2, and what is read or asked after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Encode = Callable[[str], list[int]]
"""A tokenizer without special tokens: text to token ids."""

CONTINUATION_TOKENS = 64
FREE_TOKENS = 24
TASK_TOKENS = 12


@dataclass(frozen=True)
class Prompt:
    """A prefix that is cached, and the two ways in which it is read afterwards.

    Parameters
    ----------
    name
        Unique in a run.
    kind
        `text`, or the task that it poses: `needle`, `key-value`, `recall`, `question`.
    prefix
        Token ids that are computed once, stored in L2 and restored.
    continuation
        Token ids that really follow the prefix: held out, read under teacher forcing. Empty
        where the user's file has none.
    question
        Token ids that are appended to the prefix before the model answers freely.
    answer
        What a right answer begins with; None where there is no right answer.
    depth
        Where in the prefix the answer stands, 0 at its beginning and 1 at its end.
    """

    name: str
    kind: str
    prefix: tuple[int, ...]
    continuation: tuple[int, ...]
    question: tuple[int, ...] = ()
    answer: str | None = None
    depth: float | None = None

    @property
    def new_tokens(self) -> int:
        """How many tokens the model answers."""
        return FREE_TOKENS if self.answer is None else TASK_TOKENS

    def is_right(self, text: str) -> bool | None:
        """Whether an answer begins with the right one, as a whole word; None without one.

        Case and leading space or quotes do not count.
        """
        if self.answer is None:
            return None
        given, wanted = text.lstrip(" \n\"'*").casefold(), self.answer.casefold()
        return given.startswith(wanted) and not given[len(wanted) : len(wanted) + 1].isalnum()


def longest(prompts: Sequence[Prompt]) -> int:
    """Tokens of the longest request that the prompts give, its answer included."""
    return max(
        len(p.prefix) + max(len(p.continuation) + 1, len(p.question) + p.new_tokens)
        for p in prompts
    )
