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

from hiqcache.codec.row import BF16, RowType, row_type
from hiqcache.errors import UsageError

Shape = tuple[int, int, int]
TIE_LEADS = (254, 222, 206, 238, 242, 159, 143, 175)
"""Magnitudes whose scales have few significant bits, so that rows hold ties under them."""
QWEN3_8B_SHAPE: Shape = (512, 8, 128)
"""The batch behind the published figures: tokens, KV heads, head_dim."""


def named_input(
    name: str, shape: Shape, seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """One of `INPUTS`, on the CPU.

    Parameters
    ----------
    name
        A key of `INPUTS`.
    shape
        tokens, heads, head_dim.
    seed
        Chooses the random numbers, where there are any.
    dtype
        Of the rows.

    Returns
    -------
    Tensor
        `[tokens, heads, head_dim]` of `dtype`.

    Raises
    ------
    UsageError
        An unknown name, or a type that is not encoded.
    """
    if name not in INPUTS:
        raise UsageError(f"unknown input {name!r}: expected one of {', '.join(INPUTS)}")
    rng, kind = random.Random(f"{name} {seed}"), row_type(dtype)
    if kind.value_bytes == 2 or name.endswith("patterns"):
        return INPUTS[name](shape, rng, kind)
    # Those of BF16, within the range of the smaller type.
    rows = INPUTS[name](shape, rng, BF16).float()
    inside = rows.clamp(-kind.largest, kind.largest)
    return torch.where(rows.isfinite(), inside, rows).to(kind.dtype)


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


def random_unit(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    return normal(shape, rng).to(kind.dtype)


def random_large(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    return (normal(shape, rng) * 1000).to(kind.dtype)


def all_zeros(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    return torch.zeros(shape, dtype=kind.dtype)


def exact_grid(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """Multiples of a power of two up to 127 of it, which INT8 holds without loss."""
    grid = (normal(shape, rng) * 40).round().clamp(-127, 127)
    grid[..., 0] = 127
    return (grid * _powers(shape, -8, 8)).to(kind.dtype)


def exact_ties(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
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
        held = ties[(ties <= lead) & (ties == ties.to(kind.dtype).double())].tolist()
        signed = [held[i % len(held)] * (1 - 2 * rng.getrandbits(1)) for i in range(head_dim - 1)]
        rows.append([lead, *signed])
    grid = torch.tensor(rows, dtype=torch.float64).view(shape)
    return (grid * _powers(shape, -8, 8)).to(kind.dtype)


def negative_zero(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """Heads of -0.0 alone, and heads where it stands among numbers."""
    rows = random_unit(shape, rng, kind)
    rows[..., ::2] = -0.0
    rows[::2] = -0.0
    return rows


def subnormal(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """Subnormals of both signs and nothing else."""
    size = shape[0] * shape[1] * shape[2]
    raw = torch.frombuffer(bytearray(rng.randbytes(size * 2)), dtype=torch.int16).view(shape)
    sign = torch.where(raw < 0, -0x8000, 0).to(torch.int16)
    # The exponent's lowest bit is the smallest normal number: below it, all are subnormal.
    fraction = (kind.infinity_bits & -kind.infinity_bits) - 1
    return ((raw & fraction) | sign).view(kind.dtype)


def near_floor(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """Heads whose absmax lies from far below the smallest scale's to just above it.

    In BF16 that is the floor of 2^-112; FP16 has no such small numbers, and goes from heads that
    are all zero through subnormal ones to normal ones.
    """
    low, high = (-130, -108) if kind is BF16 else (-28, -10)
    return (normal(shape, rng).double() * _powers(shape, low, high)).to(kind.dtype)


def nan(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """One NaN in every second head of every second token."""
    rows = random_unit(shape, rng, kind)
    rows[::2, ::2, shape[2] // 2] = torch.nan
    return rows


def infinity(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """One infinity in every second head of a token, of either sign in turn."""
    rows = random_unit(shape, rng, kind)
    rows[::2, ::2, -1] = torch.inf
    rows[1::2, ::2, 0] = -torch.inf
    return rows


def huge_value(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """One value of 1e30, in FP16 60000, in each head: the others round to zero beside it."""
    rows = random_unit(shape, rng, kind)
    rows[..., 1] = 1e30 if kind is BF16 else 6e4
    return rows


def largest_finite(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """The largest finite value of both signs, beside values of every size below it."""
    low, high = (100, 125) if kind is BF16 else (-10, 12)
    rows = (normal(shape, rng).double() * _powers(shape, low, high)).to(kind.dtype)
    rows[..., 0] = kind.largest
    rows[..., -1] = -kind.largest
    return rows


def all_patterns(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """Every pattern in order: a head holds neighbours, of one exponent or two."""
    return _patterns(shape, kind, step=1)


def scattered_patterns(shape: Shape, rng: random.Random, kind: RowType) -> Tensor:
    """Every pattern, neighbours far apart: a head holds values of all sizes."""
    return _patterns(shape, kind, step=40503)


def _patterns(shape: Shape, kind: RowType, step: int) -> Tensor:
    size = shape[0] * shape[1] * shape[2]
    # An odd step visits each of the 2^16 patterns once before it repeats one.
    bits = torch.arange(size, dtype=torch.int64) * step % (1 << (8 * kind.value_bytes))
    if kind.value_bytes == 1:
        return bits.to(torch.uint8).view(shape).view(kind.dtype)
    return bits.where(bits < 2**15, bits - 2**16).to(torch.int16).view(shape).view(kind.dtype)


def _powers(shape: Shape, low: int, high: int) -> Tensor:
    """One power of two a head, low to high and round again: `[tokens, heads, 1]` float64."""
    tokens, heads, _ = shape
    span = high - low + 1
    powers = [2.0 ** (low + index % span) for index in range(tokens * heads)]
    return torch.tensor(powers, dtype=torch.float64).view(tokens, heads, 1)


INPUTS: dict[str, Callable[[Shape, random.Random, RowType], Tensor]] = {
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
