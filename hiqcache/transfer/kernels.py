# mypy: ignore-errors
"""Triton kernels that turn rows into records and records into rows, wherever either lies.

`backup` and `restore` take addresses, so that records may lie in pinned host memory (the
`fused` transfer) or on the GPU (the staging of `staged`). `hiqcache.codec.int8` is their
reference, bit for bit; the arithmetic below is explained there.

Lines
-----
A GPU asks the PCIe link for memory in aligned lines of 128 bytes, and a line that two
instructions touch in parts crosses the link as two requests. Records need not start on a line
(1040-byte records start 16 bytes further on each time), so a program works on the *window* of
lines that a record touches: 9 lines for 1040 bytes, whatever the start. A tile is `TILE` lines,
the windows of `ROWS` records one after the other, and each line is read or written once, whole,
by eight neighbouring threads of 16 bytes each. `byte` below is a position in the record, as
seen from a place in the tile; it is negative in front of the record.

Everything is 64-bit where a slot is involved, and integer where a bit pattern matters, so that
the same code gives the same bits on every GPU and in Triton's interpreter.

`RUN` is the number of values that are rotated together, 1 where none are.

`HALF` says that rows are FP16: their bits become floats, and floats their bits, by the GPU's own
conversions, which keep subnormals and round to nearest even. Scales are BF16 either way.
"""

import triton
import triton.language as tl

LINE = tl.constexpr(128)
UNIT = tl.constexpr(16)
"""Bytes that one thread moves at once. Records start and rows start on multiples of it."""
GROUP = tl.constexpr(8)
"""head_dim and the start of a window are multiples of it: one head's scale serves a group."""

MAGNITUDE = tl.constexpr(0x7FFF)
INFINITY = tl.constexpr(0x7F80)
NAN = tl.constexpr(0x7FC0)
PEAK_FLOOR = tl.constexpr(0x0780)  # 2^-112 as BF16
PEAK_CEILING = tl.constexpr(0x7F7E)  # 254 x 2^120 as BF16
HALF_LARGEST_BITS = tl.constexpr(0x7BFF)
HALF_LARGEST = tl.constexpr(65504.0)
HALF_INFINITY = tl.constexpr(0x7C00)
HALF_NAN = tl.constexpr(0x7E00)
FLOOR = tl.constexpr(2.0**-112)
CEILING = tl.constexpr(254 * 2.0**120)
LARGEST = tl.constexpr(255 * 2.0**120)
QMAX = tl.constexpr(127)
ROUNDER = tl.constexpr(12582912.0)  # 1.5 x 2^23: a float32 this large has no fraction bits left
ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def float_of(bits):
    """The float32 of BF16 bits in an int32."""
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def bf16_bits(value):
    """A finite float32 rounded to BF16, nearest even: its 16 bits in an int32."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


@triton.jit
def float_of_half(bits):
    """The float32 of FP16 bits in an int32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def half_bits(value):
    """A finite float32 rounded to FP16, at most the largest finite: its 16 bits in an int32."""
    value = tl.minimum(tl.maximum(value, -HALF_LARGEST), HALF_LARGEST)
    return value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)


@triton.jit
def sums_and_differences(x, COUNT: tl.constexpr, STEP: tl.constexpr):
    """`[COUNT]`: of each two values that lie `STEP` apart, in pairs of runs of `STEP`."""
    pairs = tl.permute(tl.reshape(x, [COUNT // (2 * STEP), 2, STEP]), (0, 2, 1))
    one, other = tl.split(pairs)
    pairs = tl.join(one + other, one - other)
    return tl.reshape(tl.permute(pairs, (0, 2, 1)), [COUNT])


@triton.jit
def rotated(x, COUNT: tl.constexpr, RUN: tl.constexpr):
    """`[COUNT]` float32: H x of each run of 8 or 16, summed in the order of `codec/rotation.py`."""
    x = sums_and_differences(x, COUNT, 1)
    x = sums_and_differences(x, COUNT, 2)
    x = sums_and_differences(x, COUNT, 4)
    if RUN == 16:
        x = sums_and_differences(x, COUNT, 8)
    return x


@triton.jit
def window(records, slots, first, tokens, STRIDE: tl.constexpr, LINES: tl.constexpr,
           ROWS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Where each line of a tile lies.

    Returns
    -------
    row, token, live
        `[TILE]`: which of the tile's records, its place in `slots`, and whether there is one.
    ahead
        `[TILE]` int32: bytes of the record's window in front of the record.
    start
        `[TILE]` int32: the record's byte at which the line begins.
    line
        `[TILE]` pointers, on multiples of `LINE`.
    """
    place = tl.arange(0, TILE)
    row = place // LINES
    token = first + row
    live = (row < ROWS) & (token < tokens)
    slot = tl.load(slots + token, mask=live, other=0)
    record = records + slot * STRIDE
    ahead = (record & (LINE - 1)).to(tl.int32)
    start = tl.multiple_of((place - row * LINES) * LINE - ahead, UNIT)
    line = tl.multiple_of((record + start).to(tl.pointer_type(tl.int8)), LINE)
    return row, token, live, ahead, start, line


@triton.jit
def row_pointers(rows, slots, token, live, ROW_BYTES: tl.constexpr):
    """The first value of each row, as pointers to its 16 bits."""
    slot = tl.load(slots + token, mask=live, other=0)
    return tl.multiple_of((rows + slot * ROW_BYTES).to(tl.pointer_type(tl.int16)), UNIT)


@triton.jit
def quantized(rows, slots, first, tokens, HALF: tl.constexpr, RUN: tl.constexpr,
              HEADS: tl.constexpr, DIM: tl.constexpr, ROW_BYTES: tl.constexpr, ROWS: tl.constexpr,
              ROWS_PAD: tl.constexpr, HEADS_PAD: tl.constexpr,
              DIM_PAD: tl.constexpr):  # fmt: skip
    """The parts of `ROWS` records, four bytes to an int32, in rows and heads padded to powers.

    Returns
    -------
    payload
        `[ROWS_PAD * HEADS_PAD * DIM_PAD / 4]`
    scales
        `[ROWS_PAD * HEADS_PAD / 2]`
    broken
        How many heads hold a NaN or an infinity, int32.
    """
    row = tl.arange(0, ROWS_PAD)
    token = first + row
    live = (row < ROWS) & (token < tokens)
    head = tl.arange(0, HEADS_PAD)[None, :, None]
    column = tl.arange(0, DIM_PAD)[None, None, :]
    pointers = row_pointers(rows, slots, token, live, ROW_BYTES)[:, None, None]
    mask = live[:, None, None] & (head < HEADS) & (column < DIM)
    bits = tl.load(pointers + (head * DIM + column), mask=mask, other=0).to(tl.int32)
    # Magnitudes are ordered like their bits, with infinity and NaN on top.
    peak = tl.max(bits & MAGNITUDE, axis=2)
    broken = peak >= (HALF_INFINITY if HALF else INFINITY)
    x = tl.where(broken[:, :, None], 0.0, float_of_half(bits) if HALF else float_of(bits))
    if RUN > 1:
        COUNT: tl.constexpr = ROWS_PAD * HEADS_PAD * DIM_PAD
        x = rotated(tl.reshape(x * (1.0 / RUN), [COUNT]), COUNT, RUN)
        x = tl.reshape(x, [ROWS_PAD, HEADS_PAD, DIM_PAD])
        absmax = tl.minimum(tl.maximum(tl.max(tl.abs(x), axis=2), FLOOR), CEILING)
    elif HALF:
        absmax = tl.maximum(float_of_half(tl.minimum(peak, HALF_LARGEST_BITS)), FLOOR)
    else:
        absmax = float_of(tl.minimum(tl.maximum(peak, PEAK_FLOOR), PEAK_CEILING))
    scale_bits = tl.where(broken, NAN, bf16_bits(tl.div_rn(absmax, 127.0)))
    scale = tl.where(broken, 1.0, float_of(scale_bits))[:, :, None]
    if RUN > 1:
        # A sum has more bits than a row's value, so that nothing short of a division will do.
        quotient = tl.div_rn(x, tl.broadcast_to(scale, x.shape))
    else:
        quotient = x * tl.div_rn(1.0, scale)
    # Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
    rounded = quotient + ROUNDER
    q = rounded.to(tl.int32, bitcast=True) - ROUNDER_BITS
    if RUN == 1:
        # A product with the reciprocal is off by 2^-16 at most, and quotients that are no tie are
        # 2^-10 away from one (in FP16, 2^-13 under 8, where the product is off by 2^-20): only
        # exact ties can round to the wrong side. They are found by the remainder, which is exact,
        # and put right.
        rest = x - (rounded - ROUNDER) * scale
        odd_tie = ((q & 1) != 0) & (tl.abs(rest) * 2 == scale)
        q += tl.where(odd_tie, tl.where(rest > 0, 1, -1), 0)
    q = tl.minimum(tl.maximum(q, -QMAX), QMAX) & 0xFF
    fours = tl.reshape(q, [ROWS_PAD * HEADS_PAD * DIM_PAD // 4, 4])
    payload = tl.sum(fours << (tl.arange(0, 4) * 8)[None, :], axis=1)
    pairs = tl.reshape(scale_bits, [ROWS_PAD * HEADS_PAD // 2, 2])
    scales = tl.sum(pairs << (tl.arange(0, 2) * 16)[None, :], axis=1)
    return payload, scales, tl.sum(tl.ravel(broken).to(tl.int32))


@triton.jit
def record_words(payload, scales, row, word, inside, HEADS: tl.constexpr, DIM: tl.constexpr,
                 HEADS_PAD: tl.constexpr, DIM_PAD: tl.constexpr, COUNT: tl.constexpr,
                 WIDTH: tl.constexpr):  # fmt: skip
    """`[COUNT, WIDTH]` int32: word `word` of record `row`, of what `quantized` gave."""
    WORDS: tl.constexpr = HEADS * DIM // 4
    first = inside & (word < WORDS)
    head = word // (DIM // 4)
    place = (row * HEADS_PAD + head) * (DIM_PAD // 4) + (word - head * (DIM // 4))
    place = tl.reshape(tl.where(first, place, 0), [COUNT * WIDTH])
    second = inside & (word >= WORDS)
    pair = tl.where(second, row * (HEADS_PAD // 2) + (word - WORDS), 0)
    values = tl.reshape(tl.gather(payload, place, 0), [COUNT, WIDTH])
    scale = tl.gather(scales, tl.reshape(pair, [COUNT * WIDTH]), 0)
    return tl.where(second, tl.reshape(scale, [COUNT, WIDTH]), values)


@triton.jit
def backup_int8(rows, records, device_slots, host_slots, first, tokens, broken_heads,
                HALF: tl.constexpr, RUN: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
                ROW_BYTES: tl.constexpr, STRIDE: tl.constexpr, USED: tl.constexpr,
                LINES: tl.constexpr, ROWS: tl.constexpr, ROWS_PAD: tl.constexpr,
                HEADS_PAD: tl.constexpr, DIM_PAD: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    WHOLE: tl.constexpr = USED // UNIT * UNIT
    WIDTH: tl.constexpr = LINE // 4
    payload, scales, broken = quantized(rows, device_slots, first, tokens, HALF, RUN, HEADS, DIM,
                                        ROW_BYTES, ROWS, ROWS_PAD, HEADS_PAD, DIM_PAD)  # fmt: skip
    tl.atomic_add(broken_heads, broken.to(tl.int64), mask=broken > 0, sem="relaxed")
    row, token, live, ahead, start, line = window(
        records, host_slots, first, tokens, STRIDE, LINES, ROWS, TILE
    )
    across = tl.arange(0, WIDTH)[None, :]
    word = tl.multiple_of(start // 4, 4)[:, None] + across
    inside = live[:, None] & (word >= 0) & (word < WHOLE // 4)
    data = record_words(payload, scales, row[:, None], word, inside, HEADS, DIM, HEADS_PAD,
                        DIM_PAD, TILE, WIDTH)  # fmt: skip
    tl.store(line.to(tl.pointer_type(tl.int32))[:, None] + across, data, mask=inside)
    if WHOLE < USED:
        # The last bytes of a record that does not end on a unit, apart: a mask that splits a
        # unit would make the compiler store all of the record in pieces of two bytes.
        row = tl.arange(0, ROWS_PAD)
        token = first + row
        live = (row < ROWS) & (token < tokens)
        half = WHOLE // 2 + tl.arange(0, UNIT // 2)[None, :] + tl.zeros([ROWS_PAD, 1], tl.int32)
        inside = live[:, None] & (half < USED // 2)
        data = record_words(payload, scales, row[:, None], half // 2, inside, HEADS, DIM,
                            HEADS_PAD, DIM_PAD, ROWS_PAD, UNIT // 2)  # fmt: skip
        data = (data >> ((half & 1) * 16)).to(tl.int16)
        slot = tl.load(host_slots + token, mask=live, other=0)
        record = (records + slot * STRIDE).to(tl.pointer_type(tl.int16))
        tl.store(record[:, None] + half, data, mask=inside)


@triton.jit
def restore_int8(rows, records, device_slots, host_slots, first, tokens, HALF: tl.constexpr,
                 RUN: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, ROW_BYTES: tl.constexpr,
                 STRIDE: tl.constexpr, USED: tl.constexpr, LINES: tl.constexpr,
                 ROWS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    PAYLOAD: tl.constexpr = HEADS * DIM
    # Whole units, up to 14 bytes into the padding: records are multiples of a unit.
    WHOLE: tl.constexpr = (USED + UNIT - 1) // UNIT * UNIT
    GROUPS: tl.constexpr = LINE // GROUP
    row, token, live, ahead, start, line = window(
        records, host_slots, first, tokens, STRIDE, LINES, ROWS, TILE
    )
    across = tl.arange(0, LINE)[None, :]
    byte = start[:, None] + across
    inside = live[:, None] & (byte >= 0)
    data = tl.load(line[:, None] + across, mask=inside & (byte < WHOLE), other=0)

    # The scales came with the lines: look them up in the tile, one a group of values.
    group = start[:, None] + (tl.arange(0, GROUPS) * GROUP)[None, :]
    head = tl.minimum(tl.maximum(group, 0) // DIM, HEADS - 1)
    place = (row * (LINES * LINE) + ahead + PAYLOAD)[:, None] + head * 2
    place = tl.reshape(tl.where(live[:, None], place, 0), [TILE * GROUPS])
    flat = tl.reshape(data, [TILE * LINE])
    low = tl.gather(flat, place, 0).to(tl.int32) & 0xFF
    high = tl.gather(flat, place + 1, 0).to(tl.int32) & 0xFF
    scale = tl.reshape(low | (high << 8), [TILE, GROUPS, 1])
    scale = tl.reshape(tl.broadcast_to(scale, [TILE, GROUPS, GROUP]), [TILE, LINE])

    broken = (scale & MAGNITUDE) > INFINITY
    product = data.to(tl.float32) * tl.where(broken, 0.0, float_of(scale))
    if RUN > 1:
        # Lines and records start on multiples of 16 bytes, and so does a run in its line.
        product = tl.reshape(product, [TILE * LINE])
        product = tl.reshape(rotated(product, TILE * LINE, RUN), [TILE, LINE])
        product = tl.minimum(tl.maximum(product, -LARGEST), LARGEST)
    if HALF:
        bits = half_bits(product) | tl.where(broken, HALF_NAN, 0)
    else:
        bits = bf16_bits(product) | tl.where(broken, NAN, 0)
    pointers = row_pointers(rows, device_slots, token, live, ROW_BYTES)
    tl.store(pointers[:, None] + byte, bits.to(tl.int16), mask=inside & (byte < PAYLOAD))


@triton.jit
def copy_rows(rows, records, device_slots, host_slots, first, tokens, ROW_BYTES: tl.constexpr,
              STRIDE: tl.constexpr, USED: tl.constexpr, LINES: tl.constexpr, ROWS: tl.constexpr,
              TILE: tl.constexpr, BACKUP: tl.constexpr):  # fmt: skip
    """The identity codec: `USED` bytes, a multiple of a unit, one way or the other.

    Bits are copied, whatever their type.
    """
    row, token, live, ahead, start, line = window(
        records, host_slots, first, tokens, STRIDE, LINES, ROWS, TILE
    )
    across = tl.arange(0, LINE // 2)[None, :]
    value = tl.multiple_of(start // 2, GROUP)[:, None] + across
    mask = live[:, None] & (value >= 0) & (value < USED // 2)
    host = line.to(tl.pointer_type(tl.int16))[:, None] + across
    device = row_pointers(rows, device_slots, token, live, ROW_BYTES)[:, None] + value
    if BACKUP:
        tl.store(host, tl.load(device, mask=mask, other=0), mask=mask)
    else:
        tl.store(device, tl.load(host, mask=mask, other=0), mask=mask)


@triton.jit
def backup_tile(rows, records, device_slots, host_slots, first, tokens, broken_heads,
                INT8: tl.constexpr, HALF: tl.constexpr, RUN: tl.constexpr, HEADS: tl.constexpr,
                DIM: tl.constexpr, ROW_BYTES: tl.constexpr, STRIDE: tl.constexpr,
                USED: tl.constexpr, LINES: tl.constexpr, ROWS: tl.constexpr,
                ROWS_PAD: tl.constexpr, HEADS_PAD: tl.constexpr, DIM_PAD: tl.constexpr,
                TILE: tl.constexpr):  # fmt: skip
    if INT8:
        backup_int8(rows, records, device_slots, host_slots, first, tokens, broken_heads, HALF,
                    RUN, HEADS, DIM, ROW_BYTES, STRIDE, USED, LINES, ROWS, ROWS_PAD, HEADS_PAD,
                    DIM_PAD, TILE)  # fmt: skip
    else:
        copy_rows(rows, records, device_slots, host_slots, first, tokens, ROW_BYTES, STRIDE,
                  USED, LINES, ROWS, TILE, True)  # fmt: skip


@triton.jit
def backup_side(row_table, record_table, device_slots, host_slots, tokens, layers, broken_heads,
                program, programs, INT8: tl.constexpr, HALF: tl.constexpr, RUN: tl.constexpr,
                HEADS: tl.constexpr, DIM: tl.constexpr, ROW_BYTES: tl.constexpr,
                STRIDE: tl.constexpr, USED: tl.constexpr, LINES: tl.constexpr, ROWS: tl.constexpr,
                ROWS_PAD: tl.constexpr, HEADS_PAD: tl.constexpr, DIM_PAD: tl.constexpr,
                TILE: tl.constexpr):  # fmt: skip
    tiles = (tokens + ROWS - 1) // ROWS
    for item in range(program, layers * tiles, programs):
        layer = item // tiles
        first = (item - layer * tiles) * ROWS
        rows = tl.load(row_table + layer)
        records = tl.load(record_table + layer)
        backup_tile(rows, records, device_slots, host_slots, first, tokens, broken_heads, INT8,
                    HALF, RUN, HEADS, DIM, ROW_BYTES, STRIDE, USED, LINES, ROWS, ROWS_PAD,
                    HEADS_PAD, DIM_PAD, TILE)  # fmt: skip


# Not specialised on their values: numbers of tokens and places of slots come in all alignments,
# and one variant must serve them all.
@triton.jit(
    do_not_specialize=(
        "tables", "device_slots", "host_slots", "tokens", "layers", "broken_heads", "k_programs"
    )
)  # fmt: skip
def backup(tables: tl.int64, device_slots: tl.int64, host_slots: tl.int64, tokens: tl.int64,
           layers: tl.int64, broken_heads: tl.int64, k_programs: tl.int64, INT8: tl.constexpr,
           HALF: tl.constexpr, HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, TILE: tl.constexpr,
           K_RUN: tl.constexpr, K_DIM: tl.constexpr, K_DIM_PAD: tl.constexpr,
           K_ROW_BYTES: tl.constexpr, K_STRIDE: tl.constexpr, K_USED: tl.constexpr,
           K_LINES: tl.constexpr, K_ROWS: tl.constexpr, K_ROWS_PAD: tl.constexpr,
           V_RUN: tl.constexpr, V_DIM: tl.constexpr, V_DIM_PAD: tl.constexpr,
           V_ROW_BYTES: tl.constexpr, V_STRIDE: tl.constexpr, V_USED: tl.constexpr,
           V_LINES: tl.constexpr, V_ROWS: tl.constexpr, V_ROWS_PAD: tl.constexpr):  # fmt: skip
    """Encode the rows of all layers into records.

    All runtime arguments are integers; addresses among them point to int64. `tables` holds four
    rows of `layers` addresses: K rows, K records, V rows, V records. `broken_heads` is a number
    that grows by the heads that hold a NaN or an infinity.
    """
    table = tables.to(tl.pointer_type(tl.int64))
    device_slots = device_slots.to(tl.pointer_type(tl.int64))
    host_slots = host_slots.to(tl.pointer_type(tl.int64))
    broken_heads = broken_heads.to(tl.pointer_type(tl.int64))
    program = tl.program_id(0)
    if program < k_programs:
        backup_side(table, table + layers, device_slots, host_slots, tokens, layers,
                    broken_heads, program, k_programs, INT8, HALF, K_RUN, HEADS, K_DIM,
                    K_ROW_BYTES, K_STRIDE, K_USED, K_LINES, K_ROWS, K_ROWS_PAD, HEADS_PAD,
                    K_DIM_PAD, TILE)  # fmt: skip
    else:
        backup_side(table + 2 * layers, table + 3 * layers, device_slots, host_slots, tokens,
                    layers, broken_heads, program - k_programs, tl.num_programs(0) - k_programs,
                    INT8, HALF, V_RUN, HEADS, V_DIM, V_ROW_BYTES, V_STRIDE, V_USED, V_LINES,
                    V_ROWS, V_ROWS_PAD, HEADS_PAD, V_DIM_PAD, TILE)  # fmt: skip


@triton.jit
def restore_side(row_table, record_table, device_slots, host_slots, tokens, first_layer, end,
                 finished, program, programs, INT8: tl.constexpr, HALF: tl.constexpr,
                 RUN: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, ROW_BYTES: tl.constexpr,
                 STRIDE: tl.constexpr, USED: tl.constexpr, LINES: tl.constexpr,
                 ROWS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    tiles = (tokens + ROWS - 1) // ROWS
    done = 0
    for item in range(program, (end - first_layer) * tiles, programs):
        past = item // tiles
        layer = first_layer + past
        first = (item - past * tiles) * ROWS
        rows = tl.load(row_table + layer)
        records = tl.load(record_table + layer)
        if INT8:
            restore_int8(rows, records, device_slots, host_slots, first, tokens, HALF, RUN, HEADS,
                         DIM, ROW_BYTES, STRIDE, USED, LINES, ROWS, TILE)  # fmt: skip
        else:
            copy_rows(rows, records, device_slots, host_slots, first, tokens, ROW_BYTES,
                      STRIDE, USED, LINES, ROWS, TILE, False)  # fmt: skip
        done += 1
        # Its last tile of this layer: the rows of all its threads come before the count. What
        # waits for the count is the GPU's front end, hence the scope.
        if (finished != 0) & ((item + programs) // tiles != past):
            tl.debug_barrier()
            counts = finished.to(tl.pointer_type(tl.int32))
            tl.atomic_add(counts + layer, done, sem="release", scope="sys")
            done = 0


@triton.jit(
    do_not_specialize=(
        "tables", "device_slots", "host_slots", "tokens", "layers", "first_layer", "end",
        "finished", "k_programs",
    )
)  # fmt: skip
def restore(tables: tl.int64, device_slots: tl.int64, host_slots: tl.int64, tokens: tl.int64,
            layers: tl.int64, first_layer: tl.int64, end: tl.int64, finished: tl.int64,
            k_programs: tl.int64, INT8: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
            TILE: tl.constexpr, K_RUN: tl.constexpr, K_DIM: tl.constexpr,
            K_ROW_BYTES: tl.constexpr, K_STRIDE: tl.constexpr, K_USED: tl.constexpr,
            K_LINES: tl.constexpr, K_ROWS: tl.constexpr, V_RUN: tl.constexpr,
            V_DIM: tl.constexpr, V_ROW_BYTES: tl.constexpr, V_STRIDE: tl.constexpr,
            V_USED: tl.constexpr, V_LINES: tl.constexpr, V_ROWS: tl.constexpr):  # fmt: skip
    """Decode the records of the layers from `first_layer` to `end` into rows, K and V together.

    All runtime arguments are integers, as for `backup`; `tables` is the same. `finished` is 0,
    or points to an int32 for each layer, which grows by the layer's tiles, K's and V's, as they
    are done.
    """
    table = tables.to(tl.pointer_type(tl.int64))
    device_slots = device_slots.to(tl.pointer_type(tl.int64))
    host_slots = host_slots.to(tl.pointer_type(tl.int64))
    program = tl.program_id(0)
    if program < k_programs:
        restore_side(table, table + layers, device_slots, host_slots, tokens, first_layer, end,
                     finished, program, k_programs, INT8, HALF, K_RUN, HEADS, K_DIM, K_ROW_BYTES,
                     K_STRIDE, K_USED, K_LINES, K_ROWS, TILE)  # fmt: skip
    else:
        restore_side(table + 2 * layers, table + 3 * layers, device_slots, host_slots, tokens,
                     first_layer, end, finished, program - k_programs,
                     tl.num_programs(0) - k_programs, INT8, HALF, V_RUN, HEADS, V_DIM, V_ROW_BYTES,
                     V_STRIDE, V_USED, V_LINES, V_ROWS, TILE)  # fmt: skip


@triton.jit(do_not_specialize=("address",))
def flip(address: tl.int64):
    """Invert the byte at an address: whether a kernel reads and writes what the CPU sees."""
    pointer = address.to(tl.pointer_type(tl.int8))
    tl.store(pointer, tl.load(pointer) ^ -1)
