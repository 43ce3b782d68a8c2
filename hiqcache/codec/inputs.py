"""Named inputs for codecs: the seed document's five, and the rows that break quantisers.

Every input is a function of its shape and a seed, and the same bits on every machine: random
numbers come from Python's Mersenne Twister as bytes and become floats by exact arithmetic, not
from a device's own generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

from hiqcache.errors import UsageError

Shape = tuple[int, int, int]
LARGEST_FINITE = 255 * 2.0**120
TIE_LEADS = (254, 222, 206, 238, 242, 159, 143, 175)
"""Magnitudes whose scales have few significant bits, so that BF16 holds ties under them."""
QWEN3_8B_SHAPE: Shape = (512, 8, 128)
"""The batch behind the published figures: tokens, KV heads, head_dim."""


def named_input(name: str, shape: Shape, seed: int = 0) -> Tensor:
    """One of `INPUTS`, on the CPU.

    Parameters
    ----------
    name
        A key of `INPUTS`.
    shape
        tokens, heads, head_dim.
    seed
        Chooses the random numbers, where there are any.

    Returns
    -------
    Tensor
        `[tokens, heads, head_dim]` bf16.

    Raises
    ------
    UsageError
        An unknown name.
    """
    if name not in INPUTS:
        raise UsageError(f"unknown input {name!r}: expected one of {', '.join(INPUTS)}")
    return INPUTS[name](shape, random.Random(f"{name} {seed}"))


def normal(shape: Shape, rng: random.Random) -> Tensor:
    """Nearly normal numbers of variance 1: sums of 48 uniform ones, integers until the end.

    Parameters
    ----------
    shape
        tokens, heads, head_dim.

    Returns
    -------
    Tensor
        `[tokens, heads, head_dim]` float32, multiples of 2^-17 within -12 to 12.
    """
    tokens, heads, head_dim = shape
    raw = bytearray(rng.randbytes(tokens * heads * head_dim * 48 * 2))
    total = torch.frombuffer(raw, dtype=torch.int16).view(*shape, 48).sum(-1, dtype=torch.int32)
    # 48 uniform 16-bit integers have a mean of -24 and a standard deviation of 2^17.
    return (total + 24).float() / 2**17


def random_unit(shape: Shape, rng: random.Random) -> Tensor:
    return normal(shape, rng).bfloat16()


def random_large(shape: Shape, rng: random.Random) -> Tensor:
    return (normal(shape, rng) * 1000).bfloat16()


def all_zeros(shape: Shape, rng: random.Random) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def exact_grid(shape: Shape, rng: random.Random) -> Tensor:
    """Multiples of a power of two up to 127 of it, which INT8 holds without loss."""
    grid = (normal(shape, rng) * 40).round().clamp(-127, 127)
    grid[..., 0] = 127
    return (grid * _powers(shape, -8, 8)).bfloat16()


def exact_ties(shape: Shape, rng: random.Random) -> Tensor:
    """Quotients of exactly k + 1/2, where rounding half to even shows.

    Seven of these ties (6.5, 12.5 and 14.5 steps of 1.75 among them) come out of a product with
    the reciprocal of the scale an ulp off and round the other way: the leads 206, 222, 238 and
    242 catch a device that divides so.
    """
    tokens, heads, head_dim = shape
    halves = torch.arange(127, dtype=torch.float64) + 0.5
    rows = []
    for index in range(tokens * heads):
        lead = TIE_LEADS[index % len(TIE_LEADS)]
        ties = halves * torch.tensor(lead / 127).bfloat16().double()
        held = ties[(ties <= lead) & (ties == ties.bfloat16().double())].tolist()
        signed = [held[i % len(held)] * (1 - 2 * rng.getrandbits(1)) for i in range(head_dim - 1)]
        rows.append([lead, *signed])
    grid = torch.tensor(rows, dtype=torch.float64).view(shape)
    return (grid * _powers(shape, -8, 8)).bfloat16()


def negative_zero(shape: Shape, rng: random.Random) -> Tensor:
    """Heads of -0.0 alone, and heads where it stands among numbers."""
    rows = random_unit(shape, rng)
    rows[..., ::2] = -0.0
    rows[::2] = -0.0
    return rows


def subnormal(shape: Shape, rng: random.Random) -> Tensor:
    """BF16 subnormals of both signs and nothing else."""
    size = shape[0] * shape[1] * shape[2]
    raw = torch.frombuffer(bytearray(rng.randbytes(size * 2)), dtype=torch.int16).view(shape)
    sign = torch.where(raw < 0, -0x8000, 0).to(torch.int16)
    return ((raw & 0x7F) | sign).view(torch.bfloat16)


def near_floor(shape: Shape, rng: random.Random) -> Tensor:
    """Heads whose absmax lies from far below the floor of 2^-112 to just above it."""
    return (normal(shape, rng).double() * _powers(shape, -130, -108)).bfloat16()


def nan(shape: Shape, rng: random.Random) -> Tensor:
    """One NaN in every second head of every second token."""
    rows = random_unit(shape, rng)
    rows[::2, ::2, shape[2] // 2] = torch.nan
    return rows


def infinity(shape: Shape, rng: random.Random) -> Tensor:
    """One infinity in every second head of a token, of either sign in turn."""
    rows = random_unit(shape, rng)
    rows[::2, ::2, -1] = torch.inf
    rows[1::2, ::2, 0] = -torch.inf
    return rows


def huge_value(shape: Shape, rng: random.Random) -> Tensor:
    """One value of 1e30 in each head, beside which the others round to zero."""
    rows = random_unit(shape, rng)
    rows[..., 1] = 1e30
    return rows


def largest_finite(shape: Shape, rng: random.Random) -> Tensor:
    """The largest BF16 of both signs, beside values of every size below it."""
    rows = (normal(shape, rng).double() * _powers(shape, 100, 125)).bfloat16()
    rows[..., 0] = LARGEST_FINITE
    rows[..., -1] = -LARGEST_FINITE
    return rows


def all_patterns(shape: Shape, rng: random.Random) -> Tensor:
    """Every 16-bit pattern in order: a head holds neighbours, of one exponent or two."""
    return _patterns(shape, step=1)


def scattered_patterns(shape: Shape, rng: random.Random) -> Tensor:
    """Every 16-bit pattern, neighbours far apart: a head holds values of all sizes."""
    return _patterns(shape, step=40503)


def _patterns(shape: Shape, step: int) -> Tensor:
    size = shape[0] * shape[1] * shape[2]
    # An odd step visits each of the 2^16 patterns once before it repeats one.
    bits = torch.arange(size, dtype=torch.int64) * step % 2**16
    return bits.where(bits < 2**15, bits - 2**16).to(torch.int16).view(shape).view(torch.bfloat16)


def _powers(shape: Shape, low: int, high: int) -> Tensor:
    """One power of two a head, low to high and round again: `[tokens, heads, 1]` float64."""
    tokens, heads, _ = shape
    span = high - low + 1
    powers = [2.0 ** (low + index % span) for index in range(tokens * heads)]
    return torch.tensor(powers, dtype=torch.float64).view(tokens, heads, 1)


INPUTS: dict[str, Callable[[Shape, random.Random], Tensor]] = {
    "random_unit": random_unit,
    "qwen3_8b_shaped": random_unit,
    "random_large": random_large,
    "all_zeros": all_zeros,
    "exact_grid": exact_grid,
    "exact_ties": exact_ties,
    "negative_zero": negative_zero,
    "subnormal": subnormal,
    "near_floor": near_floor,
    "nan": nan,
    "infinity": infinity,
    "huge_value": huge_value,
    "largest_finite": largest_finite,
    "all_patterns": all_patterns,
    "scattered_patterns": scattered_patterns,
}
"""Input by name. `qwen3_8b_shaped` is meant for `QWEN3_8B_SHAPE`: unit normal, seed of its own."""
