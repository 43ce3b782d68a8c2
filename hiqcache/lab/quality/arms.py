"""The arms of a quality run: servers with a codec each, and the size of their pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hiqcache.lab.fleet import Arm, Launch, Pools
from hiqcache.lab.quality.prompt import Prompt, longest

PAGE = 16
"""Whole pages leave the tail of a prompt to each pass: docs/hicache-internals.md, last section."""

CHUNK, OTHER_CHUNK = 2048, 256
OTHER_CHUNKS, OTHER_BACKEND = "bf16-chunk", "bf16-backend"
"""The arms of the noise floor; they are only restored from."""

FILL = 1.5
"""Tokens that push everything out of L1, over L1's own."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of L1 and L2, the same in tokens for every arm.

    Parameters
    ----------
    l1_tokens
        Two of the longest requests, or what was asked for.
    filler_tokens
        What pushes everything out of L1.
    l2_tokens
        All prompts, what follows them and the fillers.
    """

    l1_tokens: int
    filler_tokens: int
    l2_tokens: int

    @classmethod
    def fit(cls, prompts: Sequence[Prompt], l1_tokens: int | None) -> Sizes:
        least = -(-2 * longest(prompts) // CHUNK) * CHUNK
        l1 = max(least, l1_tokens or 0)
        filler = int(FILL * l1)
        held = sum(
            len(p.prefix) + len(p.continuation) + len(p.question) + p.new_tokens + 2 * PAGE
            for p in prompts
        )
        # Under write_through what L1 holds is in L2 as well and cannot be evicted there.
        return cls(l1, filler, math.ceil(1.2 * (held + filler)) + l1)

    @property
    def pools(self) -> Pools:
        return Pools(
            l1_tokens=self.l1_tokens,
            l2=("--hicache-ratio", f"{self.l2_tokens / self.l1_tokens:.4f}"),
            page=PAGE,
            policy="write_through",
        )


def make_arms(codecs: Sequence[str], other_backend: str | None, sizes: Sizes) -> list[Arm]:
    """`bf16`, each codec, and the arms of the noise floor.

    Those are `bf16` as well: prefixes computed in other chunks, and everything computed by
    another attention backend.
    """

    def arm(name: str, codec: str, *arguments: str) -> Arm:
        return Arm(name=name, codec=codec, pools=sizes.pools, arguments=arguments)

    arms = [arm(codec, codec) for codec in dict.fromkeys(("bf16", *codecs))]
    arms.append(arm(OTHER_CHUNKS, "bf16", "--chunked-prefill-size", str(OTHER_CHUNK)))
    if other_backend:
        arms.append(arm(OTHER_BACKEND, "bf16", "--attention-backend", other_backend))
    return arms


def make_launch(model: str, arguments: Sequence[str], logs: Path) -> Launch:
    """What every arm's server is started with; the user's own arguments come last."""
    chunk = ("--chunked-prefill-size", str(CHUNK))
    return Launch(model=model, arguments=(*chunk, *arguments), logs=logs)
