# mypy: ignore-errors
"""INT8 with a scale for each head, in Triton.

Reference, bit for bit: `codec/int8.py`, which explains the arithmetic. Scales are BF16, whatever
the rows are.
"""

import triton
import triton.language as tl

from hiqcache.transfer.kernels.bits import (
    HALF_NAN,
    INFINITY,
    MAGNITUDE,
    NAN,
    bf16_bits,
    float_of,
    float_of_half,
    half_bits,
    to_float,
)
from hiqcache.transfer.kernels.window import (
    LINE,
    UNIT,
    WORDS,
    last_pieces,
    load_heads,
    value_pointers,
    window,
    window_words,
)

GROUP = tl.constexpr(8)
"""head_dim and the start of a window are multiples of it: one head's scale serves a group."""

PEAK_FLOOR = tl.constexpr(0x0780)  # 2^-112 as BF16
PEAK_CEILING = tl.constexpr(0x7F7E)  # 254 x 2^120 as BF16
HALF_LARGEST_BITS = tl.constexpr(0x7BFF)
FLOOR = tl.constexpr(2.0**-112)
QMAX = tl.constexpr(127)
ROUNDER = tl.constexpr(12582912.0)  # 1.5 x 2^23: a float32 this large has no fraction bits left
ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def encode(bits, s: tl.constexpr):
    """The parts of a tile's records, four bytes to an int32.

    Parameters
    ----------
    bits
        `[s.rows_pad, s.heads_pad, s.dim_pad]` int32: the values' bits.

    Returns
    -------
    payload
        `[s.rows_pad * s.heads_pad * s.dim_pad / 4]`
    scales
        `[s.rows_pad * s.heads_pad / 2]`
    nonfinite
        How many heads hold a NaN or an infinity, int32.
    """
    COUNT: tl.constexpr = s.rows_pad * s.heads_pad * s.dim_pad
    # Magnitudes are ordered like their bits, with infinity and NaN on top.
    peak = tl.max(bits & MAGNITUDE, axis=2)
    nonfinite = peak >= s.infinity
    x = tl.where(nonfinite[:, :, None], 0.0, to_float(bits, s))
    if s.row == "float16":
        absmax = tl.maximum(float_of_half(tl.minimum(peak, HALF_LARGEST_BITS)), FLOOR)
    else:
        absmax = float_of(tl.minimum(tl.maximum(peak, PEAK_FLOOR), PEAK_CEILING))
    scale_bits = tl.where(nonfinite, NAN, bf16_bits(tl.div_rn(absmax, 127.0)))
    scale = tl.where(nonfinite, 1.0, float_of(scale_bits))[:, :, None]
    quotient = x * tl.div_rn(1.0, scale)
    # Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
    rounded = quotient + ROUNDER
    q = rounded.to(tl.int32, bitcast=True) - ROUNDER_BITS
    # A product with the reciprocal is off by 2^-16 at most, and quotients that are no tie are
    # 2^-10 away from one (in FP16, 2^-13 under 8, where the product is off by 2^-20): only exact
    # ties can round to the wrong side. They are found by the remainder, which is exact, and put
    # right.
    rest = x - (rounded - ROUNDER) * scale
    odd_tie = ((q & 1) != 0) & (tl.abs(rest) * 2 == scale)
    q += tl.where(odd_tie, tl.where(rest > 0, 1, -1), 0)
    q = tl.minimum(tl.maximum(q, -QMAX), QMAX) & 0xFF
    fours = tl.reshape(q, [COUNT // 4, 4])
    payload = tl.sum(fours << (tl.arange(0, 4) * 8)[None, :], axis=1)
    pairs = tl.reshape(scale_bits, [s.rows_pad * s.heads_pad // 2, 2])
    scales = tl.sum(pairs << (tl.arange(0, 2) * 16)[None, :], axis=1)
    return payload, scales, tl.sum(tl.ravel(nonfinite).to(tl.int32))


@triton.jit
def record_words(payload, scales, row, word, inside, COUNT: tl.constexpr, WIDTH: tl.constexpr,
                 s: tl.constexpr):  # fmt: skip
    """`[COUNT, WIDTH]` int32: word `word` of record `row`, of what `encode` gave."""
    PAYLOAD: tl.constexpr = s.heads * s.dim // 4
    first = inside & (word < PAYLOAD)
    head = word // (s.dim // 4)
    place = (row * s.heads_pad + head) * (s.dim_pad // 4) + (word - head * (s.dim // 4))
    place = tl.reshape(tl.where(first, place, 0), [COUNT * WIDTH])
    second = inside & (word >= PAYLOAD)
    pair = tl.where(second, row * (s.heads_pad // 2) + (word - PAYLOAD), 0)
    values = tl.reshape(tl.gather(payload, place, 0), [COUNT, WIDTH])
    scale = tl.gather(scales, tl.reshape(pair, [COUNT * WIDTH]), 0)
    return tl.where(second, tl.reshape(scale, [COUNT, WIDTH]), values)


@triton.jit
def encode_tile(rows, records, device_slots, host_slots, first, tokens, nonfinite_heads,
                s: tl.constexpr):  # fmt: skip
    WHOLE: tl.constexpr = s.used // UNIT * UNIT
    bits = load_heads(rows, device_slots, first, tokens, s)
    payload, scales, nonfinite = encode(bits, s)
    tl.atomic_add(nonfinite_heads, nonfinite.to(tl.int64), mask=nonfinite > 0, sem="relaxed")
    row, word, live, pointers = window_words(records, host_slots, first, tokens, s)
    inside = live & (word >= 0) & (word < WHOLE // 4)
    data = record_words(payload, scales, row[:, None], word, inside, s.tile, WORDS, s)
    tl.store(pointers, data, mask=inside)
    if s.used > WHOLE:
        row, byte, inside, pointers = last_pieces(records, host_slots, first, tokens, s)
        data = record_words(payload, scales, row, byte // 4, inside, s.rows_pad, UNIT, s)
        data = data >> (byte % 4 * 8)
        tl.store(pointers, data.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def decode(data, row, live, ahead, start, s: tl.constexpr):
    """The bits of the values that a tile's bytes stand for.

    Parameters
    ----------
    data
        `[s.tile, LINE]` int8: the lines, 0 where there is no record.
    row, live, ahead, start
        Of `window`.

    Returns
    -------
    Tensor
        `[s.tile, LINE]` int32; of no use where the byte is none of the payload.
    """
    GROUPS: tl.constexpr = LINE // GROUP
    # The scales came with the lines: look them up in the tile, one a group of values.
    group = start[:, None] + (tl.arange(0, GROUPS) * GROUP)[None, :]
    head = tl.minimum(tl.maximum(group, 0) // s.dim, s.heads - 1)
    place = (row * (s.lines * LINE) + ahead + s.heads * s.dim)[:, None] + head * 2
    place = tl.reshape(tl.where(live[:, None], place, 0), [s.tile * GROUPS])
    flat = tl.reshape(data, [s.tile * LINE])
    low = tl.gather(flat, place, 0).to(tl.int32) & 0xFF
    high = tl.gather(flat, place + 1, 0).to(tl.int32) & 0xFF
    scale = tl.reshape(low | (high << 8), [s.tile, GROUPS, 1])
    scale = tl.reshape(tl.broadcast_to(scale, [s.tile, GROUPS, GROUP]), [s.tile, LINE])

    nonfinite = (scale & MAGNITUDE) > INFINITY
    product = data.to(tl.float32) * tl.where(nonfinite, 0.0, float_of(scale))
    if s.row == "float16":
        return half_bits(product) | tl.where(nonfinite, HALF_NAN, 0)
    else:
        return bf16_bits(product) | tl.where(nonfinite, NAN, 0)


@triton.jit
def decode_tile(rows, records, device_slots, host_slots, first, tokens, s: tl.constexpr):
    # Whole units, up to 14 bytes into the padding: records are multiples of a unit.
    WHOLE: tl.constexpr = (s.used + UNIT - 1) // UNIT * UNIT
    row, token, live, ahead, start, line = window(records, host_slots, first, tokens, s)
    across = tl.arange(0, LINE)[None, :]
    byte = start[:, None] + across
    inside = live[:, None] & (byte >= 0)
    data = tl.load(line[:, None] + across, mask=inside & (byte < WHOLE), other=0)
    bits = decode(data, row, live, ahead, start, s)
    pointers = value_pointers(rows, device_slots, token, live, s)
    mask = inside & (byte < s.heads * s.dim)
    tl.store(pointers[:, None] + byte, bits.to(tl.int16), mask=mask)
