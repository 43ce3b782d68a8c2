"""One arm of a quality run: a server with a codec and what it was started with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hiqcache.cpu_server import CPU_ARGUMENTS, CPU_ENVIRONMENT
from hiqcache.lab.quality.prompt import Prompt, longest
from hiqcache.lab.serving.server import Server

PAGE = 16
"""Whole pages leave the tail of a prompt to each pass: docs/hicache-internals.md, last section."""

CHUNK, OTHER_CHUNK = 2048, 256
FILL = 1.5
"""Tokens that push everything out of L1, over L1's own."""


@dataclass(frozen=True)
class Arm:
    """A server of a quality run.

    Parameters
    ----------
    name
        How results call it.
    codec
        The value of HIQCACHE_CODEC.
    arguments
        SGLang's arguments that only this arm has.
    every_pass
        Whether the cold and the L1 pass are made too; a noise arm is only restored from.
    """

    name: str
    codec: str
    arguments: tuple[str, ...] = ()
    every_pass: bool = True


def make_arms(codecs: Sequence[str], other_backend: str | None) -> list[Arm]:
    """`bf16`, each codec, and the arms of the noise floor.

    Those are `bf16` as well: prefixes computed in other chunks, and everything computed by
    another attention backend.
    """
    arms = [Arm("bf16", "bf16"), *(Arm(codec, codec) for codec in codecs if codec != "bf16")]
    chunk = ("--chunked-prefill-size", str(OTHER_CHUNK))
    arms.append(Arm("bf16-chunk", "bf16", chunk, every_pass=False))
    if other_backend:
        backend = ("--attention-backend", other_backend)
        arms.append(Arm("bf16-backend", "bf16", backend, every_pass=False))
    return arms


@dataclass(frozen=True)
class Pools:
    """Sizes of L1 and L2, the same in tokens for every arm.

    Parameters
    ----------
    l1_tokens
        `--max-total-tokens`: two of the longest requests, or what was asked for.
    filler_tokens
        What pushes everything out of L1.
    l2_tokens
        All prompts, what follows them and the fillers.
    """

    l1_tokens: int
    filler_tokens: int
    l2_tokens: int

    @classmethod
    def fit(cls, prompts: Sequence[Prompt], l1_tokens: int | None) -> Pools:
        least = -(-2 * longest(prompts) // CHUNK) * CHUNK
        l1 = max(least, l1_tokens or 0)
        filler = int(FILL * l1)
        held = sum(
            len(p.prefix) + len(p.continuation) + len(p.question) + p.new_tokens + 2 * PAGE
            for p in prompts
        )
        # Under write_through what L1 holds is in L2 as well and cannot be evicted there.
        return cls(l1, filler, math.ceil(1.2 * (held + filler)) + l1)


def make_server(
    arm: Arm,
    model: str,
    pools: Pools,
    gpu: bool,
    arguments: Sequence[str],
    log_folder: Path,
) -> Server:
    """The arm's server, not started.

    Parameters
    ----------
    arguments
        The user's own for every arm; the arm's come behind them, and the last one counts.
    """
    own = [
        *(() if gpu else CPU_ARGUMENTS),
        "--enable-hierarchical-cache",
        *("--hicache-write-policy", "write_through"),
        *("--hicache-ratio", f"{pools.l2_tokens / pools.l1_tokens:.4f}"),
        *("--max-total-tokens", str(pools.l1_tokens)),
        *("--page-size", str(PAGE)),
        *("--chunked-prefill-size", str(CHUNK)),
        *arguments,
        *arm.arguments,
    ]
    environment = {**({} if gpu else CPU_ENVIRONMENT), "HIQCACHE_CODEC": arm.codec}
    return Server(model, own, environment, log_folder / f"{arm.name}.log")
