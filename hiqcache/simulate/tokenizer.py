"""Prompts as token ids, by the model's own tokenizer and chat template."""

from __future__ import annotations

from typing import Any

from hiqcache.errors import UsageError


class Tokenizer:
    """A Hugging Face tokenizer.

    Parameters
    ----------
    source
        A Hugging Face id or a folder.

    Raises
    ------
    UsageError
        Transformers is not installed, or the tokenizer cannot be loaded.
    """

    def __init__(self, source: str) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UsageError(
                "--tokenizer needs transformers, which is not installed: pip install transformers"
            ) from error
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source)
        except Exception as error:  # whatever a damaged file makes of it
            raise UsageError(f"--tokenizer {source} cannot be loaded: {error}") from error

    def text(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        ids: list[int] = self._tokenizer(text).input_ids
        return ids

    def chat(self, messages: list[Any], tools: list[Any] | None) -> list[int]:
        """Token ids of a conversation, up to where the answer begins.

        Raises
        ------
        ValueError
            The model has no chat template, or its template refuses these messages.
        """
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, return_dict=False
            )
        except Exception as error:  # templates raise what they like
            raise ValueError(f"the chat template refuses it: {error}") from error
        return ids
