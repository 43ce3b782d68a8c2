# mypy: ignore-errors
"""The codec ladder in Triton: rotated heads in planes of 8, 6, 5 or 4 bits.

References, bit for bit: `codec/ladder.py`, whose steps the comments name, `codec/planes.py` and
`codec/hadamard.py`. Rotations are products of int8 matrices with int32 sums, exact in any order,
of blocks of `s.dot` values: a run of up to 128, or several that are shorter than 32. Two blocks
are combined for runs of 256.

Heads and head_dim are padded to powers of two: `[rows, heads_pad, dim_pad]`. Eight values are a
group: 4 bytes of the plane of nibbles, and 2 or 1 of the plane behind it.
"""

import triton
import triton.language as tl

from hiqcache.transfer.kernels.bits import bf16_bits, float_of, from_float, power_of_two, to_float
from hiqcache.transfer.kernels.window import (
    UNIT,
    WORDS,
    last_pieces,
    live_rows,
    load_heads,
    value_pointers,
    window_words,
)

ROUNDER = tl.constexpr(12582912.0)  # 1.5 x 2^23: a float32 this large has no fraction bits left
ROUNDER_BITS = tl.constexpr(0x4B400000)
FIXED_BITS = tl.constexpr(13)
LEAST_EXPONENT = tl.constexpr(-80)
BF16_MAGNITUDE = tl.constexpr(0x7FFF)
BF16_INFINITY = tl.constexpr(0x7F80)
BF16_NAN = tl.constexpr(0x7FC0)


@triton.jit
def hadamard(first_rows, s: tl.constexpr):
    """`[s.dot, s.dot]` int8: Sylvester's matrix for each run of a block, of its first rows."""
    DOT: tl.constexpr = s.dot
    i = tl.arange(0, DOT)[:, None]
    j = tl.arange(0, DOT)[None, :]
    both = i & j & (s.inner - 1)
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    sign = 1 - 2 * (both & 1)
    return tl.where((i // s.inner == j // s.inner) & (i < first_rows), sign, 0).to(tl.int8)


@triton.jit
def combine(x, s: tl.constexpr):
    """The last step of a rotation over 256: sums and differences of neighbouring blocks of 128."""
    PAIRS: tl.constexpr = s.blocks_per_tile // 2
    DOT: tl.constexpr = s.dot
    one, other = tl.split(tl.permute(tl.reshape(x, [PAIRS, 2, DOT]), (0, 2, 1)))
    x = tl.permute(tl.join(one + other, one - other), (0, 2, 1))
    return tl.reshape(x, [2 * PAIRS, DOT])


@triton.jit
def unpacked(words, FIELD: tl.constexpr):
    """`[8 n]` int32: the eight fields of `FIELD` bits in each of `[n]`, the lowest first."""
    x = tl.interleave(words, words >> (4 * FIELD))
    x = tl.interleave(x, x >> (2 * FIELD))
    return tl.interleave(x, x >> FIELD) & ((1 << FIELD) - 1)


@triton.jit
def packed(groups, FIELD: tl.constexpr):
    """`[n]` int32: the eight fields of each of `[n, 8]`, the reverse of `unpacked`."""
    return tl.sum(groups << (tl.arange(0, 8) * FIELD)[None, :], axis=1)


@triton.jit
def levels(flat, record, s: tl.constexpr):
    """`[rows * heads_pad * dim_pad]` int8: the q of a tile's values.

    Parameters
    ----------
    flat
        `[tile * WORDS]` int32: the tile's windows.
    record
        `[rows]` int32: the word at which each record begins.
    """
    ROWS: tl.constexpr = s.rows
    ACROSS: tl.constexpr = s.heads_pad * s.dim_pad // 8
    COUNT: tl.constexpr = ROWS * ACROSS
    group = tl.arange(0, ACROSS)[None, :]
    head = group // (s.dim_pad // 8)
    column = group - head * (s.dim_pad // 8)
    real = (head < s.heads) & (column < s.dim // 8)
    group = tl.where(real, head * (s.dim // 8) + column, 0)
    begin = record[:, None]
    if s.bits == 8:
        place = tl.reshape(begin + 2 * group, [COUNT])
        x = tl.interleave(tl.gather(flat, place, 0), tl.gather(flat, place + 1, 0))
        x = tl.interleave(x, x >> 16)
        return tl.interleave(x, x >> 8).to(tl.int8)
    else:
        u = unpacked(tl.gather(flat, tl.reshape(begin + group, [COUNT]), 0), 4)
        HIGH: tl.constexpr = s.bits - 4
        if HIGH > 0:
            # HIGH bytes of the second plane for each group.
            byte = group * HIGH
            place = tl.reshape(begin + (s.heads * s.dim // 8 + byte // 4), [COUNT])
            word = tl.gather(flat, place, 0)
            shift = tl.reshape(tl.broadcast_to(byte % 4 * 8, [ROWS, ACROSS]), [COUNT])
            u |= unpacked(word >> shift, HIGH) << 4
        return (u - (1 << (s.bits - 1))).to(tl.int8)


@triton.jit
def tail_bytes(tail, row, byte, s: tl.constexpr):
    """The 32-bit word of the tail from which `byte`, counted from the scales on, is the lowest.

    Only as many bytes as are left in its word are of use.
    """
    byte += s.payload % 4
    word = tl.gather(tail, row * s.tail_words + byte // 4, 0)
    return word >> (byte % 4 * 8)


@triton.jit
def decode(flat, record, matrix, half_matrix, s: tl.constexpr):
    """The bits of a tile's values as the planes say, and the words behind the payload.

    Returns
    -------
    bits
        `[rows * heads_pad * dim_pad / dot, dot]` int32
    tail
        `[rows * tail_words]` int32
    """
    ROWS: tl.constexpr = s.rows
    DOT: tl.constexpr = s.dot
    BLOCKS: tl.constexpr = s.blocks_per_tile
    TAIL: tl.constexpr = s.tail_words
    q = tl.reshape(levels(flat, record, s), [BLOCKS, DOT])

    # What lies behind the payload, apart: it is looked up several times.
    last = tl.arange(0, ROWS) * (s.lines * WORDS) + (s.lines * WORDS - 1)
    place = (record + s.payload // 4)[:, None] + tl.arange(0, TAIL)[None, :]
    place = tl.minimum(place, last[:, None])
    tail = tl.gather(flat, tl.reshape(place, [ROWS * TAIL]), 0)
    block = tl.arange(0, BLOCKS)
    head = block // s.head_blocks
    row = head // s.heads_pad
    head = tl.minimum(head - row * s.heads_pad, s.heads - 1)
    inside = block % s.head_blocks * DOT
    # Step 5, with odd integers: H (2 q + 1) = 2 H q + n at the first value of each group of n.
    column = tl.arange(0, DOT)
    scale = head
    if s.groups > 1:
        scale = head * s.groups + tl.minimum(inside // s.group, s.groups - 1)
    scale_bits = tail_bytes(tail, row, scale * 2, s) & 0xFFFF
    nonfinite = (scale_bits & BF16_MAGNITUDE) > BF16_INFINITY
    scale_part = tl.where(nonfinite, 0.0, float_of(scale_bits))[:, None]
    if s.group < s.inner:
        # Two scales in a block. Divided by 2^10 instead of 2, so that no sum overflows.
        scale_part *= 2.0**-10
        odd = tl.where(column % s.group == 0, s.group, 0)[None, :]
        one = tl.dot(q, half_matrix, out_dtype=tl.int32)
        both = tl.dot(q, matrix, out_dtype=tl.int32)
        other_bits = tail_bytes(tail, row, scale * 2 + 2, s) & 0xFFFF
        other_part = tl.where(nonfinite, 0.0, float_of(other_bits) * 2.0**-10)[:, None]
        other = (both - one) * 2 + tl.where(column < s.group, odd, -odd)
        x = (one * 2 + odd).to(tl.float32) * scale_part + other.to(tl.float32) * other_part
        if s.run > DOT:
            x = combine(x, s)
        # A negative integer times a scale of 0 is -0; with a 0 added, here and below, it is 0.
        x = x * 512.0 + 0.0
    else:
        z = tl.dot(q, matrix, out_dtype=tl.int32) * 2
        z += tl.where(column % s.inner == 0, s.inner, 0)[None, :]
        if s.run > DOT:
            z = combine(z, s)
        x = z.to(tl.float32) * (scale_part * 0.5) + 0.0
    return tl.where(nonfinite[:, None], s.nan, from_float(x, s)), tail


@triton.jit
def put_back(rows, device_slots, first, tokens, tail, s: tl.constexpr):
    """Step 8: what was set aside, over what has been stored, a value each."""
    KEPT: tl.constexpr = s.rows * s.heads_pad * s.aside_pad
    place = tl.arange(0, KEPT)
    head = place // s.aside_pad
    number = place - head * s.aside_pad
    row = head // s.heads_pad
    head -= row * s.heads_pad
    real = (number < s.aside) & (head < s.heads) & (first + row < tokens)
    kept = tl.where(real, head * s.aside + number, 0)
    value = tail_bytes(tail, row, s.scales + kept * 2, s)
    column = tail_bytes(tail, row, s.scales + 2 * s.heads * s.aside + kept, s) & 0xFF
    scale = tl.where(real, head, 0) * (s.groups * 2)
    nonfinite = (tail_bytes(tail, row, scale, s) & BF16_MAGNITUDE) > BF16_INFINITY
    value = tl.where(nonfinite, s.nan, value)
    # Behind the stores of all threads: the same places.
    tl.debug_barrier()
    pointers = value_pointers(rows, device_slots, first + row, real, s) + head * s.dim + column
    tl.store(pointers, value.to(pointers.dtype.element_ty), mask=real & (column < s.dim))


@triton.jit
def load_tile(records, host_slots, first, tokens, s: tl.constexpr):
    """`[s.tile, WORDS]` int32: a tile's windows."""
    # Whole units, up to 14 bytes into the padding: records are multiples of a unit.
    READ: tl.constexpr = (s.used + UNIT - 1) // UNIT * (UNIT // 4)
    row, word, live, pointers = window_words(records, host_slots, first, tokens, s)
    return tl.load(pointers, mask=live & (word >= 0) & (word < READ), other=0)


@triton.jit
def decode_tile(rows, records, device_slots, host_slots, first, tokens, data, matrix, half_matrix,
                s: tl.constexpr):  # fmt: skip
    TILE: tl.constexpr = s.tile
    DOT: tl.constexpr = s.dot
    BLOCKS: tl.constexpr = s.blocks_per_tile
    flat = tl.reshape(data, [TILE * WORDS])
    row, token, live = live_rows(first, tokens, s)
    slot = tl.load(host_slots + token, mask=live, other=0)
    ahead = ((records + slot * s.stride) & 127).to(tl.int32)
    bits, tail = decode(flat, row * (s.lines * WORDS) + ahead // 4, matrix, half_matrix, s)

    block = tl.arange(0, BLOCKS)
    head = block // s.head_blocks
    row = head // s.heads_pad
    head -= row * s.heads_pad
    live = (first + row < tokens) & (head < s.heads)
    inside = (block % s.head_blocks * DOT)[:, None] + tl.arange(0, DOT)[None, :]
    row_start = value_pointers(rows, device_slots, first + row, live, s)
    pointers = row_start[:, None] + (head[:, None] * s.dim + inside)
    mask = live[:, None] & (inside < s.dim)
    tl.store(pointers, bits.to(pointers.dtype.element_ty), mask=mask)
    if s.aside > 0:
        put_back(rows, device_slots, first, tokens, tail, s)


@triton.jit
def set_aside(bits, s: tl.constexpr):
    """Step 1: the largest values of each head, and what is left.

    Returns
    -------
    kept
        `[rows, heads_pad, aside_pad]` int32: magnitude, 255 - place, sign, from the top bit on.
    left
        `[rows, heads_pad, dim_pad]` bool.
    largest
        `[rows, heads_pad]` int32: the largest magnitude that is left.
    """
    ROWS: tl.constexpr = s.rows
    HEADS: tl.constexpr = s.heads_pad
    PLACES: tl.constexpr = s.aside_pad
    ASIDE: tl.constexpr = s.aside
    magnitude = bits & s.magnitude
    column = tl.arange(0, s.dim_pad)[None, None, :]
    # One integer orders by magnitude, then by the lower place.
    key = (magnitude << 9) | ((255 - column) << 1) | tl.where(bits != magnitude, 1, 0)
    number = tl.arange(0, PLACES)[None, None, :]
    kept = tl.zeros([ROWS, HEADS, PLACES], tl.int32)
    for place in tl.static_range(ASIDE):
        largest = tl.max(key, axis=2)[:, :, None]
        kept = tl.where(number == place, largest, kept)
        key = tl.where(key == largest, -1, key)
    return kept, key >= 0, tl.max(key, axis=2) >> 9


@triton.jit
def encode(bits, matrix, s: tl.constexpr):
    """The parts of a tile's records.

    Parameters
    ----------
    bits
        `[rows, heads_pad, dim_pad]` int32: the values' bits.

    Returns
    -------
    u
        `[rows * heads_pad * dim_pad / 8, 8]` int32: what the planes hold.
    scales
        `[rows * heads_pad * scales per padded head]` int32: BF16 bits.
    values, places
        `[rows * heads_pad * aside_pad]` int32: what is set aside; of `scales` where nothing is.
    nonfinite
        How many heads hold a NaN or an infinity, int32.
    """
    ROWS: tl.constexpr = s.rows
    HEADS: tl.constexpr = s.heads_pad
    COUNT: tl.constexpr = ROWS * HEADS * s.dim_pad
    DOT: tl.constexpr = s.dot
    BLOCKS: tl.constexpr = s.blocks_per_tile
    PER_HEAD: tl.constexpr = s.dim_pad // s.group_pad
    SCALES: tl.constexpr = ROWS * HEADS * PER_HEAD
    GROUP: tl.constexpr = s.group_pad
    HALF: tl.constexpr = 1 << (s.bits - 1)
    nonfinite = tl.max(bits & s.magnitude, axis=2) >= s.infinity
    x = to_float(bits, s)
    if s.aside > 0:
        kept, left, largest = set_aside(bits, s)
        x = tl.where(left & (nonfinite == 0)[:, :, None], x, 0.0)
    else:
        largest = tl.max(bits & s.magnitude, axis=2)
        x = tl.where(nonfinite[:, :, None], 0.0, x)
    # Steps 2 and 3.
    largest = to_float(tl.where(nonfinite, 0, largest), s).to(tl.int32, bitcast=True)
    exponent = tl.maximum((largest >> 23) - 127, LEAST_EXPONENT)
    t = x * power_of_two(-exponent + FIXED_BITS)[:, :, None]
    # Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
    t = (t + ROUNDER).to(tl.int32, bitcast=True) - ROUNDER_BITS
    high = (t + 128) >> 8
    low = (t - high * 256).to(tl.int8)
    y = tl.dot(tl.reshape(high.to(tl.int8), [BLOCKS, DOT]), matrix, out_dtype=tl.int32) * 256
    y += tl.dot(tl.reshape(low, [BLOCKS, DOT]), matrix, out_dtype=tl.int32)
    if s.run > DOT:
        y = combine(y, s)
    # Step 4, for the values that share a scale.
    y = tl.reshape(y, [SCALES, GROUP])
    peak = tl.max(tl.abs(y), axis=1)
    exponent = tl.reshape(exponent, [ROWS * HEADS, 1])
    exponent = tl.reshape(tl.broadcast_to(exponent, [ROWS * HEADS, PER_HEAD]), [SCALES])
    broken = tl.reshape(nonfinite.to(tl.int32), [ROWS * HEADS, 1])
    broken = tl.reshape(tl.broadcast_to(broken, [ROWS * HEADS, PER_HEAD]), [SCALES])
    exponent -= FIXED_BITS + s.run_log
    scales = bf16_bits(tl.div_rn(peak.to(tl.float32) * power_of_two(exponent), HALF - 0.5))
    step = float_of(scales) * power_of_two(-exponent)
    inverse = tl.where(scales > 0, tl.div_rn(1.0, tl.where(scales > 0, step, 1.0)), 0.0)
    q = tl.floor(y.to(tl.float32) * inverse[:, None])
    q = tl.minimum(tl.maximum(q, -HALF), HALF - 1).to(tl.int32)
    if s.bits < 8:
        q = tl.where((broken != 0)[:, None], 0, q + HALF)
    scales = tl.where(broken != 0, BF16_NAN, scales)
    values = scales
    places = scales
    if s.aside > 0:
        kept = tl.where(nonfinite[:, :, None], 255 << 1, kept)
        values = tl.ravel((kept >> 9) | tl.where((kept & 1) != 0, s.magnitude + 1, 0))
        places = tl.ravel(255 - ((kept >> 1) & 255))
    u = tl.reshape(q, [COUNT // 8, 8])
    return u, scales, values, places, tl.sum(tl.ravel(nonfinite).to(tl.int32))


@triton.jit
def planes(u, s: tl.constexpr):
    """The two planes of a tile's values as integers of a group, or two groups' words for 8 bits.

    Returns
    -------
    low
        `[groups]`: a word of the first plane each; at 8 bits `[2 groups]`.
    high
        `[groups / s.joined]`: a word, or a part of one, of the second plane; `low` where is none.
    """
    GROUPS: tl.constexpr = s.rows * s.heads_pad * s.dim_pad // 8
    JOINED: tl.constexpr = s.joined
    if s.bits == 8:
        fours = tl.reshape(u & 0xFF, [2 * GROUPS, 4])
        low = tl.sum(fours << (tl.arange(0, 4) * 8)[None, :], axis=1)
        return low, low
    else:
        HIGH: tl.constexpr = s.bits - 4
        low = packed(u & 15, 4)
        if HIGH == 0:
            return low, low
        else:
            high = packed(u >> 4, HIGH)
            if JOINED > 1:
                high = tl.reshape(high, [GROUPS // JOINED, JOINED])
                high = tl.sum(high << (tl.arange(0, JOINED) * (8 * HIGH))[None, :], axis=1)
            return low, high


@triton.jit
def looked_up(source, place, inside, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """`[COUNT, WIDTH]`: `source[place]` where inside, else 0."""
    place = tl.reshape(tl.where(inside, place, 0), [COUNT * WIDTH])
    found = tl.reshape(tl.gather(source, place, 0), [COUNT, WIDTH])
    return tl.where(inside, found, 0)


@triton.jit
def tail_image(scales, values, places, s: tl.constexpr):
    """`[rows * tail_words]` int32: the words of what lies behind the payload, with its last."""
    ROWS: tl.constexpr = s.rows
    TAIL: tl.constexpr = s.tail_words
    HALVES: tl.constexpr = 2 * TAIL
    SCALES: tl.constexpr = s.heads * s.groups
    row = tl.arange(0, ROWS)[:, None]
    half = tl.arange(0, HALVES)[None, :] - s.payload % 4 // 2 + row * 0
    head = half // s.groups
    place = (row * s.heads_pad + head) * (s.dim_pad // s.group_pad) + half - head * s.groups
    image = looked_up(scales, place, (half >= 0) & (half < SCALES), ROWS, HALVES)
    if s.aside > 0:
        KEPT: tl.constexpr = s.heads * s.aside
        number = half - SCALES
        image |= looked_up(values, kept_place(number, row, s), (number >= 0) & (number < KEPT),
                           ROWS, HALVES)  # fmt: skip
        number = (number - KEPT) * 2
        for byte in tl.static_range(2):
            inside = (number >= 0) & (number + byte < KEPT)
            found = looked_up(places, kept_place(number + byte, row, s), inside, ROWS, HALVES)
            image |= found << (8 * byte)
    pairs = tl.reshape(image, [ROWS * TAIL, 2])
    return tl.sum(pairs << (tl.arange(0, 2) * 16)[None, :], axis=1)


@triton.jit
def kept_place(number, row, s: tl.constexpr):
    head = number // s.aside
    return (row * s.heads_pad + head) * s.aside_pad + number - head * s.aside


@triton.jit
def group_place(group, row, s: tl.constexpr):
    """Where a record's group of eight values is in padded heads."""
    head = group // (s.dim // 8)
    return (row * s.heads_pad + head) * (s.dim_pad // 8) + group - head * (s.dim // 8)


@triton.jit
def record_words(low, high, tail, row, word, inside, COUNT: tl.constexpr, WIDTH: tl.constexpr,
                 s: tl.constexpr):  # fmt: skip
    """`[COUNT, WIDTH]` int32: word `word` of record `row`."""
    GROUPS: tl.constexpr = s.heads * s.dim // 8
    if s.bits == 8:
        first = inside & (word < 2 * GROUPS)
        place = group_place(word // 2, row, s) * 2 + word % 2
    else:
        first = inside & (word < GROUPS)
        place = group_place(word, row, s)
    data = looked_up(low, place, first, COUNT, WIDTH)
    if (s.bits == 6) | (s.bits == 5):
        HIGH: tl.constexpr = s.bits - 4
        # Groups in a word of the second plane, some of them joined already.
        EACH: tl.constexpr = 4 // HIGH
        for part in tl.static_range(EACH // s.joined):
            group = (word - GROUPS) * EACH + part * s.joined
            second = inside & (group >= 0) & (group < GROUPS)
            place = group_place(group, row, s) // s.joined
            data |= looked_up(high, place, second, COUNT, WIDTH) << (8 * HIGH * part)
    behind = inside & (word >= s.payload // 4)
    place = row * s.tail_words + word - s.payload // 4
    return data | looked_up(tail, place, behind, COUNT, WIDTH)


@triton.jit
def encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, matrix,
                s: tl.constexpr):  # fmt: skip
    TILE: tl.constexpr = s.tile
    ROWS: tl.constexpr = s.rows
    WHOLE: tl.constexpr = s.used // UNIT * UNIT
    bits = load_heads(rows, device_slots, first, tokens, s)
    u, scales, values, places, nonfinite = encode(bits, matrix, s)
    tl.atomic_add(counts, nonfinite.to(tl.int64), mask=nonfinite > 0, sem="relaxed")
    low, high = planes(u, s)
    tail = tail_image(scales, values, places, s)
    row, word, live, pointers = window_words(records, host_slots, first, tokens, s)
    inside = live & (word >= 0) & (word < WHOLE // 4)
    data = record_words(low, high, tail, row[:, None], word, inside, TILE, WORDS, s)
    tl.store(pointers, data, mask=inside)
    if s.used > WHOLE:
        row, byte, inside, pointers = last_pieces(records, host_slots, first, tokens, s)
        data = record_words(low, high, tail, row, byte // 4, inside, ROWS, UNIT, s)
        data = data >> (byte % 4 * 8)
        tl.store(pointers, data.to(pointers.dtype.element_ty), mask=inside)
