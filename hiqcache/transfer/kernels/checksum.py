# mypy: ignore-errors
"""The checksums of `transfer/checksum.py` as a kernel that reads records where they lie."""

import triton
import triton.language as tl

from hiqcache.transfer import checksum

PLACE = tl.constexpr(checksum.PLACE)
FIRST = tl.constexpr(checksum.FIRST)
SECOND = tl.constexpr(checksum.SECOND)
MOST_WORDS = tl.constexpr(checksum.MOST_WORDS)


@triton.jit
def shifted(x, BITS: tl.constexpr):
    """A logical shift of int32."""
    return (x.to(tl.uint32, bitcast=True) >> BITS).to(tl.int32, bitcast=True)


@triton.jit
def mixed(x):
    x ^= shifted(x, 16)
    x *= FIRST
    x ^= shifted(x, 13)
    x *= SECOND
    return x ^ shifted(x, 16)


@triton.jit
def side_sum(records, slots, live, place, STRIDE: tl.constexpr, USED: tl.constexpr,
             ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """`[ROWS]` int32: what the records at `slots` of one side and layer add to the checksum."""
    WORDS: tl.constexpr = (USED + 3) // 4
    total = tl.zeros([ROWS], tl.int32)
    start = (records + slots * STRIDE).to(tl.pointer_type(tl.int32))[:, None]
    for first in range(0, WORDS, WIDTH):
        word = first + tl.arange(0, WIDTH)[None, :]
        inside = live[:, None] & (word < WORDS)
        value = tl.load(start + word, mask=inside, other=0)
        if USED % 4 != 0:
            value = tl.where(word == WORDS - 1, value & 0xFFFF, value)
        value = mixed(value ^ (place + word) * PLACE)
        total += tl.sum(tl.where(inside, value, 0), axis=1)
    return total


# Not specialised on their values, like the kernels of `entry.py`.
@triton.jit(
    do_not_specialize=(
        "tables", "checksums", "host_slots", "tokens", "slots", "first_layer", "layers", "end",
        "mismatches",
    )
)  # fmt: skip
def verify(tables: tl.int64, checksums: tl.int64, host_slots: tl.int64, tokens: tl.int64,
           slots: tl.int64, layers: tl.int64, first_layer: tl.int64, end: tl.int64,
           mismatches: tl.int64, EVERY: tl.constexpr, K_STRIDE: tl.constexpr,
           K_USED: tl.constexpr, V_STRIDE: tl.constexpr, V_USED: tl.constexpr,
           ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Make, or compare, the checksums of the tokens at `host_slots` in layers up to `end`.

    All runtime arguments are integers; addresses among them point to int64, that of the
    checksums to int32. `tables` holds two rows of `layers` addresses: K records, V records.
    `checksums` holds `layers` rows of `slots`. `mismatches` is a number that grows by those that
    differ; where it is 0, the checksums are written instead.
    """
    table = tables.to(tl.pointer_type(tl.int64))
    host_slots = host_slots.to(tl.pointer_type(tl.int64))
    kept = checksums.to(tl.pointer_type(tl.int32))
    tiles = (tokens + ROWS - 1) // ROWS
    for item in range(tl.program_id(0), (end - first_layer) * tiles, tl.num_programs(0)):
        layer = first_layer + item // tiles
        token = (item % tiles) * ROWS + tl.arange(0, ROWS)
        slot = tl.load(host_slots + token, mask=token < tokens, other=1)
        live = (token < tokens) & (slot % EVERY == 0)
        place = (layer * (2 * MOST_WORDS)).to(tl.int32)
        now = side_sum(tl.load(table + layer), slot, live, place, K_STRIDE, K_USED, ROWS, WIDTH)
        now += side_sum(tl.load(table + layers + layer), slot, live, place + MOST_WORDS, V_STRIDE,
                        V_USED, ROWS, WIDTH)  # fmt: skip
        there = kept + layer * slots + slot
        if mismatches == 0:
            tl.store(there, now, mask=live)
        else:
            differ = live & (tl.load(there, mask=live, other=0) != now)
            found = tl.sum(differ.to(tl.int32), axis=0).to(tl.int64)
            count = mismatches.to(tl.pointer_type(tl.int64))
            tl.atomic_add(count, found, mask=found > 0, sem="relaxed")
