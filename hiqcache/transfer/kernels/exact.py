# mypy: ignore-errors
"""`exact` in Triton: BF16 rows in 12 bits for each value, restored bit for bit.

Reference: `codec/exact.py`, which explains the record. Rows are padded to `[rows, values_pad]`, a
power of two. Escapes are rare: what looks for them runs only for tiles that have some, and once
for each escape of the row that has most.
"""

import triton
import triton.language as tl

from hiqcache.transfer.kernels.window import (
    WORDS,
    live_rows,
    value_pointers,
    window_words,
)

FRACTION_BITS = tl.constexpr(7)
FRACTION = tl.constexpr(127)
ESCAPE = tl.constexpr(15)
BEYOND = tl.constexpr(255)
NAN = tl.constexpr(0x7FC0)
GROUP = tl.constexpr(32)


@triton.jit
def byte_words(values, COUNT: tl.constexpr):
    """`[COUNT]` int32: four bytes each of `[4 * COUNT]`."""
    fours = tl.reshape(values & 0xFF, [COUNT, 4])
    return tl.sum(fours << (tl.arange(0, 4) * 8)[None, :], axis=1)


@triton.jit
def ranks(escapes, MOST: tl.constexpr):
    """`[rows, values]` int32: how many escapes of the row come before; at most `MOST`."""
    marks = escapes.to(tl.int32)
    return tl.minimum(tl.cumsum(marks, axis=1) - marks, MOST)


@triton.jit
def encode_tile(rows, records, device_slots, host_slots, first, tokens, counts,
                s: tl.constexpr):  # fmt: skip
    ROWS: tl.constexpr = s.rows
    WIDTH: tl.constexpr = s.values_pad
    COUNT: tl.constexpr = s.values
    GROUPS: tl.constexpr = WIDTH // GROUP
    LISTED: tl.constexpr = s.listed_pad
    TILE: tl.constexpr = s.tile
    row, token, live = live_rows(first, tokens, s)
    pointers = value_pointers(rows, device_slots, token, live, s)[:, None]
    place = tl.arange(0, WIDTH)[None, :]
    real = live[:, None] & (place < COUNT)
    bits = tl.load(pointers + place, mask=real, other=0).to(tl.int32) & 0xFFFF
    exponent = (bits >> FRACTION_BITS) & 0xFF
    finite = tl.reshape(tl.where(exponent == BEYOND, 0, exponent), [ROWS, GROUPS, GROUP])
    base = tl.max(finite, axis=2)
    spread = tl.broadcast_to(base[:, :, None], [ROWS, GROUPS, GROUP])
    distance = tl.reshape(spread, [ROWS, WIDTH]) - exponent
    # An infinity is above its base.
    escapes = real & ((distance >= ESCAPE) | (distance < 0))
    code = tl.where(escapes, ESCAPE, tl.where(real, distance, 0))

    listed = tl.zeros([ROWS, LISTED], tl.int32)
    flag = tl.zeros([ROWS], tl.int32)
    most = tl.max(tl.sum(escapes.to(tl.int32), axis=1), axis=0)
    if most > 0:
        rank = ranks(escapes, s.listed)
        number = tl.arange(0, LISTED)[None, :]
        for k in range(0, tl.minimum(most, s.listed)):
            found = tl.sum(tl.where(escapes & (rank == k), exponent, 0), axis=1)
            listed = tl.where(number == k, found[:, None], listed)
        lost = escapes & (rank >= s.listed)
        flag = tl.max((lost & ((bits & 0x7FFF) != 0)).to(tl.int32), axis=1)
        beyond = tl.reshape((lost & (exponent == BEYOND)).to(tl.int32), [ROWS, GROUPS, GROUP])
        base = tl.where(tl.max(beyond, axis=2) > 0, BEYOND, base)
    tl.atomic_add(counts + 1, tl.sum(flag, axis=0).to(tl.int64), mask=most > 0, sem="relaxed")

    # The record's parts in words: signs and fractions, codes, and what lies behind.
    raw = byte_words(tl.ravel(((bits >> 8) & 0x80) | (bits & FRACTION)), ROWS * WIDTH // 4)
    eights = tl.reshape(code, [ROWS * WIDTH // 8, 8])
    codes = tl.sum(eights << (tl.arange(0, 8) * 4)[None, :], axis=1)
    base = tl.ravel(base)
    listed = tl.ravel(listed)
    row, word, live, pointers = window_words(records, host_slots, first, tokens, s)
    row = row[:, None]
    inside = live & (word >= 0) & (word < s.used // 4)
    one = inside & (word < COUNT // 4)
    two = inside & (word >= COUNT // 4) & (word < s.payload // 4)
    raw_place = tl.where(one, row * (WIDTH // 4) + word, 0)
    code_place = tl.where(two, row * (WIDTH // 8) + word - COUNT // 4, 0)
    data = tl.reshape(tl.gather(raw, tl.reshape(raw_place, [TILE * WORDS]), 0), [TILE, WORDS])
    found = tl.reshape(tl.gather(codes, tl.reshape(code_place, [TILE * WORDS]), 0), [TILE, WORDS])
    data = tl.where(one, data, tl.where(two, found, 0))
    # Bases, escapes and the flag are small: built byte by byte.
    image = tail_image(base, listed, flag, s)
    behind = inside & (word >= s.payload // 4)
    place = tl.where(behind, row * s.tail_words + word - s.payload // 4, 0)
    found = tl.reshape(tl.gather(image, tl.reshape(place, [TILE * WORDS]), 0), [TILE, WORDS])
    data = tl.where(behind, found, data)
    tl.store(pointers, data, mask=inside)


@triton.jit
def tail_image(base, listed, flag, s: tl.constexpr):
    """`[rows * tail_words]` int32: bases, escapes and flag of each record, from `s.payload` on."""
    ROWS: tl.constexpr = s.rows
    BYTES: tl.constexpr = s.tail_words * 4
    row = tl.arange(0, ROWS)[:, None]
    byte = tl.arange(0, BYTES)[None, :] + row * 0
    group = byte < s.scales
    place = tl.where(group, row * (s.values_pad // GROUP) + byte, 0)
    image = tl.where(group, look_up(base, place, ROWS, BYTES), 0)
    number = byte - s.scales
    escape = (number >= 0) & (number < s.listed)
    place = tl.where(escape, row * s.listed_pad + number, 0)
    image = tl.where(escape, look_up(listed, place, ROWS, BYTES), image)
    image = tl.where(number == s.listed, flag[:, None], image)
    return byte_words(tl.ravel(image), ROWS * BYTES // 4)


@triton.jit
def look_up(source, place, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    found = tl.gather(source, tl.reshape(place, [COUNT * WIDTH]), 0)
    return tl.reshape(found, [COUNT, WIDTH])


@triton.jit
def look_up_byte(flat, byte, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """`[COUNT, WIDTH]` int32: bytes of a tile of words, at places counted in bytes."""
    return (look_up(flat, byte // 4, COUNT, WIDTH) >> (byte % 4 * 8)) & 0xFF


@triton.jit
def decode_tile(rows, records, device_slots, host_slots, first, tokens, s: tl.constexpr):
    ROWS: tl.constexpr = s.rows
    WIDTH: tl.constexpr = s.values_pad
    COUNT: tl.constexpr = s.values
    GROUPS: tl.constexpr = WIDTH // GROUP
    TILE: tl.constexpr = s.tile
    LAST: tl.constexpr = COUNT - 1
    row, word, live, pointers = window_words(records, host_slots, first, tokens, s)
    data = tl.load(pointers, mask=live & (word >= 0) & (word < s.used // 4), other=0)
    flat = tl.reshape(data, [TILE * WORDS])
    row, token, live = live_rows(first, tokens, s)
    slot = tl.load(host_slots + token, mask=live, other=0)
    ahead = ((records + slot * s.stride) & 127).to(tl.int32)
    begin = (row * (s.lines * WORDS) + ahead // 4)[:, None]

    # Four values from a word of signs and fractions, eight from one of codes.
    four = tl.minimum(tl.arange(0, WIDTH // 4), LAST // 4)[None, :]
    raw = look_up(flat, begin + four, ROWS, WIDTH // 4)
    raw = tl.ravel(raw)
    raw = tl.interleave(raw, raw >> 16)
    raw = tl.reshape(tl.interleave(raw, raw >> 8) & 0xFF, [ROWS, WIDTH])
    eight = tl.minimum(tl.arange(0, WIDTH // 8), LAST // 8)[None, :]
    code = tl.ravel(look_up(flat, begin + (COUNT // 4 + eight), ROWS, WIDTH // 8))
    code = tl.interleave(code, code >> 16)
    code = tl.interleave(code, code >> 8)
    code = tl.reshape(tl.interleave(code, code >> 4) & 15, [ROWS, WIDTH])
    group = tl.minimum(tl.arange(0, GROUPS), LAST // GROUP)[None, :]
    base = look_up_byte(flat, begin * 4 + (s.payload + group), ROWS, GROUPS)
    base = tl.broadcast_to(base[:, :, None], [ROWS, GROUPS, GROUP])
    base = tl.reshape(base, [ROWS, WIDTH])

    place = tl.arange(0, WIDTH)[None, :]
    real = live[:, None] & (place < COUNT)
    exponent = base - code
    fraction = raw & FRACTION
    escapes = real & (code == ESCAPE)
    if tl.max(tl.max(escapes.to(tl.int32), axis=1), axis=0) > 0:
        rank = ranks(escapes, s.listed)
        byte = begin * 4 + (s.payload + s.scales) + tl.minimum(rank, s.listed - 1)
        listed = look_up_byte(flat, byte, ROWS, WIDTH)
        listed = tl.where(rank < s.listed, listed, 0)
        fraction = tl.where(escapes & (rank >= s.listed), 0, fraction)
        exponent = tl.where(escapes, listed, exponent)
    bits = ((raw & 0x80) << 8) | (exponent << FRACTION_BITS) | fraction
    bits = tl.where(base == BEYOND, NAN, bits)
    pointers = value_pointers(rows, device_slots, token, live, s)[:, None]
    tl.store(pointers + place, bits.to(tl.int16), mask=real)
