"""The codec ladder: rotated heads in levels of 8, 6, 5 or 4 bits, K and V each with their own.

A row of any type that a device cache may have is taken as float32. For each head of n values:

1. K: the n / 32 largest magnitudes are set aside with their places, ties by the lowest place, and
   count as 0 from here on.
2. e is the exponent of the largest magnitude that is left, at least -80, and
   t = round(x * 2^(13-e)), ties to even: integers of up to 14 bits.
3. y = H t, exactly, with the rotation of `hadamard.py` over runs of r values.
4. For the values that share a scale (a head, or 64 of it), with b bits a value:
   scale = bf16(max |y| * 2^(e-13) / r / (2^(b-1) - 1/2)), one division and one rounding;
   q = floor(y * inv), inv = 1 / (scale * r * 2^(13-e)), clamped to b bits.
5. A level is q + 1/2: there is none at zero, so 2^b levels serve both signs alike.

    x^ = H (q + 1/2) * scale

exactly, rounded once to the row's type, at most its largest value; what was set aside is put back
bit for bit. A head of zeros has the scale 0 and restores zeros. A head that holds a NaN or an
infinity has NaN scales (0x7FC0), a payload of zeros, and restores NaN throughout.

The same bits on every device
-----------------------------
- t, y and H (2q + 1) are integers that float32 holds exactly, in any order of summation, also as
  products of 8-bit integers or with TF32.
- |t| is at most 2047 x 8 = 16376 (FP16; BF16 255 x 64), so it is 256 h + l with two 8-bit h and l.
- Products with a power of two are exact: e is at least -80, so that the smallest w below, 2^-101,
  over 127.5 is far above the smallest normal float32, and 2^(13-e) is finite.
- What is left are single IEEE operations: one division and one rounding for a scale, one division
  for inv, one product for each y, one rounding for each x^. No sum follows an inexact product.
- With two or four scales in a run, H is the rotation within each group, exact with its scale (16
  and 8 significant bits), and then sums of pairs in float32 in a fixed order, 2^9 smaller than they
  will be, lest the largest rows pass float32's range on the way.

`ladder_bound.py` has the bounds and their proofs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hiqcache.codec import planes
from hiqcache.codec.base import Codec
from hiqcache.codec.hadamard import combine, rotate, rotate_wide, run_length
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import BF16, row_type

FIXED_BITS = 13
"""Binary places of t below the leading bit of a head's largest value."""

LEAST_EXPONENT = -80
HEADROOM = 2.0**9
"""Sums of groups on their way are this much smaller, so that none passes float32's range."""
PLACES = 256


@dataclass(frozen=True)
class Parts:
    """The parts of records in place.

    Parameters
    ----------
    payload
        `[tokens, payload_bytes]` uint8: planes.
    scales
        `[tokens, heads, groups]` bf16.
    values
        `[tokens, heads, aside]` int16: bits of a row's value, of fp8 rows in the low byte.
    places
        `[tokens, heads, aside]` uint8.
    """

    payload: Tensor
    scales: Tensor
    values: Tensor
    places: Tensor


def split_records(records: Tensor, layout: RecordLayout) -> Parts:
    """The parts of records, without a copy; `records` is `[tokens, record_bytes]` uint8."""
    begin = layout.payload_bytes
    behind = begin + layout.scales_bytes
    kept = layout.heads * layout.aside
    shape = (len(records), layout.heads, layout.aside)
    scales = records[:, begin:behind].view(torch.bfloat16)
    return Parts(
        payload=records[:, :begin],
        scales=scales.view(len(records), layout.heads, layout.head_dim // layout.group),
        values=records[:, behind : behind + 2 * kept].view(torch.int16).view(shape),
        places=records[:, behind + 2 * kept : behind + 3 * kept].view(shape),
    )


@dataclass(frozen=True)
class Heads:
    """Rows as integers: what is left after the largest values are set aside.

    Parameters
    ----------
    y
        `[tokens, heads, head_dim]` float32 integers: the rotated head.
    exponent
        `[tokens, heads]` int32: e.
    broken
        `[tokens, heads]` bool: heads that hold a NaN or an infinity. Their y is 0.
    places
        `[tokens, heads, aside]` int64, the largest first; 0 in a broken head.
    """

    y: Tensor
    exponent: Tensor
    broken: Tensor
    places: Tensor


def rotate_heads(rows: Tensor, aside: int) -> Heads:
    """Steps 1 to 3, for rows `[tokens, heads, head_dim]` of any type that is encoded."""
    kind = row_type(rows.dtype)
    head_dim = rows.shape[-1]
    # One integer orders by magnitude, then by the lower place.
    keys = kind.magnitudes(rows).mul_(PLACES)
    keys += torch.arange(PLACES - 1, PLACES - 1 - head_dim, -1, device=rows.device).int()
    largest = keys.amax(-1, keepdim=True)
    broken = largest >= kind.infinity_bits * PLACES
    places = torch.empty((*rows.shape[:2], aside), dtype=torch.int64, device=rows.device)
    for index in range(aside):
        place = (PLACES - 1 - largest % PLACES).long()
        places[:, :, index : index + 1] = place
        keys.scatter_(-1, place, -1)
        largest = keys.amax(-1, keepdim=True)
    places.masked_fill_(broken, 0)
    # A broken head becomes zeros by its bits: an infinity times 0 would be NaN.
    bits = rows.view(kind.bits_dtype) * (~broken).to(kind.bits_dtype)
    left = bits.view(kind.dtype).float().scatter_(-1, places, 0.0)
    largest = largest.masked_fill_(broken, 0) // PLACES
    exponent = _exponent(largest.to(kind.bits_dtype).view(kind.dtype).float())
    t = left.mul_(power_of_two(FIXED_BITS - exponent)).round_()
    y = rotate_wide(t, run_length(head_dim))
    return Heads(y, exponent.squeeze(-1), broken.squeeze(-1), places)


def choose_scales(heads: Heads, layout: RecordLayout) -> Tensor:
    """Step 4's scales, `[tokens, heads, groups]` bf16; 0 for zeros, 0x7FC0 in a broken head."""
    tokens, count, head_dim = heads.y.shape
    groups = heads.y.view(tokens, count, head_dim // layout.group, layout.group)
    # Which zero the larger of two is depends on the device: adding 0 makes it +0.
    peak = torch.maximum(groups.amax(-1), -groups.amin(-1)).add_(0.0)
    unit = power_of_two(heads.exponent - FIXED_BITS) / run_length(head_dim)
    # A tensor, not a number: on CUDA, PyTorch turns division by a number into multiplication.
    levels = torch.full((), 2.0 ** (layout.value_bits - 1) - 0.5, device=peak.device)
    scales = ((peak * unit.unsqueeze(-1)) / levels).to(torch.bfloat16)
    bits = scales.view(torch.int16).masked_fill_(heads.broken.unsqueeze(-1), BF16.nan_bits)
    return bits.view(torch.bfloat16)


def quantize(heads: Heads, scales: Tensor, layout: RecordLayout) -> Tensor:
    """Step 4's q, `[tokens, heads, head_dim]` int8; 0 where the scale is 0 or NaN."""
    tokens, count, head_dim = heads.y.shape
    unit = power_of_two(FIXED_BITS - heads.exponent) * run_length(head_dim)
    step = scales.float() * unit.unsqueeze(-1)
    inverse = torch.ones_like(step).div_(step).masked_fill_(~(step > 0), 0.0)
    half = 2 ** (layout.value_bits - 1)
    groups = heads.y.view(tokens, count, head_dim // layout.group, layout.group)
    q = (groups * inverse.unsqueeze(-1)).floor_().clamp_(-half, half - 1)
    return q.to(torch.int8).view(heads.y.shape)


def dequantize(q: Tensor, scales: Tensor, layout: RecordLayout) -> Tensor:
    """H (q + 1/2) * scale in float32, `[tokens, heads, head_dim]`; 0 where the scale is NaN.

    Parameters
    ----------
    q
        `[tokens, heads, head_dim]` int8.
    scales
        `[tokens, heads, groups]` bf16.
    """
    tokens, count, head_dim = q.shape
    run = run_length(head_dim)
    inner = min(run, layout.group)
    levels = q.float().mul_(2.0).add_(1.0)
    halves = scales.float().nan_to_num_(nan=0.0).mul_(0.5)
    z = rotate(levels, inner).view(tokens, count, head_dim // layout.group, layout.group)
    if inner < run:
        x = z.mul_(halves.mul_(1 / HEADROOM).unsqueeze(-1))
        x = combine(x.view(-1, run // inner, inner), run // inner).mul_(HEADROOM)
    else:
        x = z.mul_(halves.unsqueeze(-1))
    # A negative integer times a scale of 0 is -0.
    return x.reshape(q.shape).add_(0.0)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent as float32, exactly; int32 exponents of normal numbers."""
    return ((exponent + 127) << 23).view(torch.float32)


def _exponent(magnitude: Tensor) -> Tensor:
    """The exponent of float32 numbers that are not negative, at least -80; int32."""
    return ((magnitude.view(torch.int32) >> 23) - 127).clamp_(min=LEAST_EXPONENT)


class LadderCodec(Codec):
    """One of the ladder: its formats say how many bits, and what is set aside."""

    def run_length(self, head_dim: int) -> int:
        return run_length(head_dim)

    def broken_heads(self, records: Tensor, layout: RecordLayout) -> Tensor:
        return split_records(records, layout).scales[:, :, 0].isnan()

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        parts = split_records(out, layout)
        heads = rotate_heads(rows, layout.aside)
        scales = choose_scales(heads, layout)
        parts.scales.copy_(scales)
        q = quantize(heads, scales, layout)
        bits, count = layout.value_bits, layout.heads * layout.head_dim
        values = q.view(torch.uint8)
        if bits < 8:
            values = (q + 2 ** (bits - 1)).view(torch.uint8)
            values = values.masked_fill_(heads.broken.unsqueeze(-1), 0)
        packed = planes.pack(values.view(len(rows), count), bits)
        parts.payload[:, : packed.shape[1]] = packed
        parts.payload[:, packed.shape[1] :] = 0
        if layout.aside:
            kind = row_type(rows.dtype)
            kept = rows.view(kind.bits_dtype).gather(-1, heads.places)
            kept = kept.masked_fill_(heads.broken.unsqueeze(-1), 0)
            parts.values.copy_(kept)
            parts.places.copy_(heads.places)

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        parts, kind = split_records(records, layout), row_type(out.dtype)
        bits, count = layout.value_bits, layout.heads * layout.head_dim
        shape = (len(records), layout.heads, layout.head_dim)
        values = planes.unpack(parts.payload, bits, count).reshape(shape)
        q = values.view(torch.int8) if bits == 8 else values.to(torch.int8) - 2 ** (bits - 1)
        x = dequantize(q, parts.scales, layout).clamp_(-kind.largest, kind.largest)
        out.copy_(x.to(kind.dtype))
        broken = parts.scales[:, :, :1].isnan()
        written = out.view(kind.bits_dtype)
        written.masked_fill_(broken, kind.nan_bits)
        if layout.aside:
            kept = parts.values.masked_fill(broken, kind.nan_bits).to(kind.bits_dtype)
            written.scatter_(-1, parts.places.long(), kept)
