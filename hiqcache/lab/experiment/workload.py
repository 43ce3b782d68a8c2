"""The workload: groups of prompts that share a prefix, made by SGLang's own generator."""

from __future__ import annotations

import contextlib
import io
import random
from dataclasses import dataclass, replace
from typing import Any

from hiqcache.errors import UsageError


@dataclass(frozen=True)
class Workload:
    """SGLang's `generated-shared-prefix` dataset, shuffled, at a fixed concurrency.

    32 groups of 4 prompts, prefixes of 2048 tokens, questions of 64, answers of 32: 128
    requests, 65,536 tokens of prefixes, 77,824 tokens that caching everything would keep.
    """

    groups: int = 32
    prompts: int = 4
    prefix: int = 2048
    question: int = 64
    output: int = 32
    concurrency: int = 8

    def __post_init__(self) -> None:
        for name in ("groups", "prompts", "prefix", "question", "output", "concurrency"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def requests(self) -> int:
        return self.groups * self.prompts

    @property
    def prefix_set(self) -> int:
        """Tokens that are asked for again: all prefixes."""
        return self.groups * self.prefix

    @property
    def group_tokens(self) -> int:
        """Tokens of a group's prefix and of its questions and answers."""
        return self.prefix + self.prompts * (self.question + self.output)

    @property
    def working_set(self) -> int:
        """Tokens of all prefixes, questions and answers: what a cache is offered."""
        return self.groups * self.group_tokens

    @property
    def ceiling(self) -> float:
        """The hit rate when nothing is ever lost: every prompt but a group's first hits."""
        return (1 - 1 / self.prompts) * self.prefix / (self.prefix + self.question)

    def with_groups(self, groups: int) -> Workload:
        return replace(self, groups=groups)

    def order(self, seed: int) -> list[int]:
        """The group of each request, in the order in which SGLang's client sends them.

        The generator draws as many random numbers for any vocabulary, so the order needs no
        tokenizer.
        """
        rows = _generate(self, seed, _Vocabulary())
        groups: dict[tuple[int, ...], int] = {}
        return [groups.setdefault(tuple(row.prompt[: self.prefix]), len(groups)) for row in rows]


class _Vocabulary:
    """Enough of a tokenizer for the generator to draw token ids from."""

    def get_vocab(self) -> dict[str, int]:
        return {str(token): token for token in range(1024)}


def _generate(workload: Workload, seed: int, tokenizer: Any) -> list[Any]:
    import numpy as np
    from sglang.benchmark.datasets.generated_shared_prefix import (
        sample_generated_shared_prefix_requests,
    )

    # The two generators that the client seeds; other code's draws are put back afterwards.
    state, np_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return list(
                sample_generated_shared_prefix_requests(
                    num_groups=workload.groups,
                    prompts_per_group=workload.prompts,
                    system_prompt_len=workload.prefix,
                    question_len=workload.question,
                    output_len=workload.output,
                    range_ratio=1.0,
                    tokenizer=tokenizer,
                    seed=seed,
                    # Keeps the generator from its cache on disk, see experiment/client.py.
                    send_routing_key=True,
                    fast_prepare=True,
                    input_ids=True,
                )
            )
    finally:
        random.setstate(state)
        np.random.set_state(np_state)
