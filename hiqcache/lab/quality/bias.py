"""What a bias of K does to attention after a restore, simulated: `hiqcache quality bias`.

Qwen2 and Qwen2.5 add a bias to K that is hundreds of times larger than K's spread, in a few
channels. No such model is small enough to be measured here, so random K gets such a bias in some
RoPE pairs, goes through each codec, and random queries read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.lab.row import Row

TOKENS, QUERIES, HEADS, HEAD_DIM = 1024, 64, 8, 128
ROPE_BASE = 1_000_000.0
SIGMAS = (0.0, 30.0, 100.0, 300.0)
"""The bias, over the spread of K elsewhere."""

PAIRS = {
    "slow": (62, 60),
    "middle": (33, 31),
    "fast": (2, 0),
    "four slow": (62, 60, 58, 56),
}
"""RoPE pairs: those of a high number turn hardly at all within the tokens read. Two pairs are as
many values as a head of 128 has set aside, four are twice as many."""

SEED = 0


@dataclass(frozen=True, kw_only=True)
class Biased(Row):
    """One codec on one bias.

    Parameters
    ----------
    divergence
        KL of the attention's weights in nats, a mean over queries and heads.
    inexact_rows
        Of `exact`: rows that could not be kept bit for bit, of `TOKENS`.
    """

    codec: str
    sigma: float
    pairs: str
    divergence: float
    inexact_rows: int | None = None


def simulate(codecs: list[Codec]) -> Iterator[Biased]:
    """A row for each bias and codec; the same numbers on every machine to some digits."""
    for name, pairs in PAIRS.items():
        for sigma in SIGMAS:
            keys, queries = biased_attention(sigma, pairs)
            weights = _weights(queries, keys)
            for codec in codecs:
                layout = codec.layout("k", HEADS, HEAD_DIM)
                records = codec.encode(keys, layout)
                restored = _weights(queries, codec.decode(records, layout))
                kl = (weights.exp() * (weights - restored)).sum(-1).mean()
                marks = codec.entry.marks_inexact_rows
                yield Biased(
                    codec=codec.name,
                    sigma=sigma,
                    pairs=name,
                    divergence=max(0.0, float(kl)),
                    inexact_rows=int(codec.inexact_rows(records, layout).sum()) if marks else None,
                )


def biased_attention(sigma: float, pairs: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Rotated K, `[tokens, heads, head_dim]` bf16, and rotated queries behind it, in float64."""
    generator = torch.Generator().manual_seed(SEED)

    def normal(tokens: int) -> Tensor:
        return torch.randn(tokens, HEADS, HEAD_DIM, generator=generator, dtype=torch.float64)

    keys, queries = normal(TOKENS), normal(QUERIES)
    for pair in pairs:
        keys[:, :, [pair, pair + HEAD_DIM // 2]] += sigma
    places = torch.arange(TOKENS + QUERIES, dtype=torch.float64)
    rotated = _turn(keys, places[:TOKENS]).bfloat16()
    return rotated, _turn(queries, places[TOKENS:])


def _turn(x: Tensor, places: Tensor) -> Tensor:
    """RoPE, the two halves of a head against each other."""
    half = HEAD_DIM // 2
    speeds = ROPE_BASE ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = (places.unsqueeze(1) * speeds).unsqueeze(1)
    one, other = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


def _weights(queries: Tensor, keys: Tensor) -> Tensor:
    """Log of the attention's weights, `[heads, queries, tokens]`."""
    scores = queries.transpose(0, 1) @ keys.double().permute(1, 2, 0)
    return torch.log_softmax(scores / HEAD_DIM**0.5, -1)
