# mypy: ignore-errors
"""How a tile's rows and records are read and written: the part that all codecs share.

A GPU asks the PCIe link for memory in aligned lines of 128 bytes, and a line that two
instructions touch in parts crosses the link as two requests. Records need not start on a line
(1040-byte records start 16 bytes further on each time), so a program works on the *window* of
lines that a record touches: 9 lines for 1040 bytes, whatever the start. A tile is `s.tile` lines,
the windows of `s.rows` records one after the other, and each line is read or written once, whole,
by eight neighbouring threads of 16 bytes each.

`s` is a side's `SidePlan` throughout. Everything is 64-bit where a slot is involved.
"""

import triton
import triton.language as tl

LINE = tl.constexpr(128)
UNIT = tl.constexpr(16)
"""Bytes that one thread moves at once. Records start and rows start on multiples of it."""
WORDS = tl.constexpr(32)
"""32-bit words in a line."""


@triton.jit
def live_rows(first, tokens, s: tl.constexpr):
    """The tile's tokens, `[s.rows_pad]`: their places in the slots, and which there are."""
    row = tl.arange(0, s.rows_pad)
    token = first + row
    return row, token, (row < s.rows) & (token < tokens)


@triton.jit
def window(records, slots, first, tokens, s: tl.constexpr):
    """Where each line of a tile lies.

    Returns
    -------
    row, token, live
        `[s.tile]`: which of the tile's records, its place in `slots`, and whether there is one.
    ahead
        `[s.tile]` int32: bytes of the record's window in front of the record.
    start
        `[s.tile]` int32: the record's byte at which the line begins; negative in front of it.
    line
        `[s.tile]` pointers, on multiples of `LINE`.
    """
    place = tl.arange(0, s.tile)
    row = place // s.lines
    token = first + row
    live = (row < s.rows) & (token < tokens)
    slot = tl.load(slots + token, mask=live, other=0)
    record = records + slot * s.stride
    ahead = (record & (LINE - 1)).to(tl.int32)
    start = tl.multiple_of((place - row * s.lines) * LINE - ahead, UNIT)
    line = tl.multiple_of((record + start).to(tl.pointer_type(tl.int8)), LINE)
    return row, token, live, ahead, start, line


@triton.jit
def window_words(records, slots, first, tokens, s: tl.constexpr):
    """A tile's windows in words of 32 bits.

    Returns
    -------
    row
        `[s.tile]`: which of the tile's records.
    word
        `[s.tile, WORDS]` int32: which word of the record; negative in front of it.
    live
        `[s.tile, 1]`: whether there is a record.
    pointers
        `[s.tile, WORDS]`
    """
    row, token, live, ahead, start, line = window(records, slots, first, tokens, s)
    across = tl.arange(0, WORDS)[None, :]
    word = tl.multiple_of(start // 4, UNIT // 4)[:, None] + across
    return row, word, live[:, None], line.to(tl.pointer_type(tl.int32))[:, None] + across


@triton.jit
def last_pieces(records, slots, first, tokens, s: tl.constexpr):
    """The last bytes of records that do not end on a unit, in pieces of two, or of one if odd.

    They are stored apart: a mask that splits a unit would make the compiler store all of the
    record in such pieces.

    Returns
    -------
    row
        `[s.rows_pad, 1]`: which of the tile's records.
    byte, inside, pointers
        `[s.rows_pad, UNIT]`: the byte of the record at which a piece begins, whether there is
        one, and where it lies.
    """
    row, token, live = live_rows(first, tokens, s)
    slot = tl.load(slots + token, mask=live, other=0)
    whole = s.used // UNIT * UNIT
    if s.used % 2 == 0:
        byte = (row * 0)[:, None] + (tl.arange(0, UNIT) * 2 + whole)[None, :]
        record = (records + slot * s.stride).to(tl.pointer_type(tl.int16))
        pointers = record[:, None] + byte // 2
    else:
        byte = (row * 0)[:, None] + (tl.arange(0, UNIT) + whole)[None, :]
        record = (records + slot * s.stride).to(tl.pointer_type(tl.int8))
        pointers = record[:, None] + byte
    return row[:, None], byte, live[:, None] & (byte < s.used), pointers


@triton.jit
def value_pointers(rows, slots, token, live, s: tl.constexpr):
    """The first value of each row, as pointers to its bits."""
    slot = tl.load(slots + token, mask=live, other=0)
    if s.value_bytes == 1:
        return tl.multiple_of((rows + slot * s.row_bytes).to(tl.pointer_type(tl.int8)), UNIT)
    else:
        return tl.multiple_of((rows + slot * s.row_bytes).to(tl.pointer_type(tl.int16)), UNIT)


@triton.jit
def load_heads(rows, slots, first, tokens, s: tl.constexpr):
    """A tile's rows, `[s.rows_pad, s.heads_pad, s.dim_pad]`: their bits in int32, 0 in between.

    Bits of a negative number are extended by its sign.
    """
    row, token, live = live_rows(first, tokens, s)
    head = tl.arange(0, s.heads_pad)[None, :, None]
    column = tl.arange(0, s.dim_pad)[None, None, :]
    pointers = value_pointers(rows, slots, token, live, s)[:, None, None]
    mask = live[:, None, None] & (head < s.heads) & (column < s.dim)
    return tl.load(pointers + (head * s.dim + column), mask=mask, other=0).to(tl.int32)


@triton.jit
def copy_tile(rows, records, device_slots, host_slots, first, tokens, s: tl.constexpr,
              BACKUP: tl.constexpr):  # fmt: skip
    """The identity codec: `s.used` bytes, a multiple of a unit, bit by bit, one way or the other.

    Reference: `codec/bf16.py`.
    """
    row, token, live, ahead, start, line = window(records, host_slots, first, tokens, s)
    across = tl.arange(0, LINE // 2)[None, :]
    value = tl.multiple_of(start // 2, UNIT // 2)[:, None] + across
    mask = live[:, None] & (value >= 0) & (value < s.used // 2)
    host = line.to(tl.pointer_type(tl.int16))[:, None] + across
    slot = tl.load(device_slots + token, mask=live, other=0)
    device = tl.multiple_of((rows + slot * s.row_bytes).to(tl.pointer_type(tl.int16)), UNIT)
    device = device[:, None] + value
    if BACKUP:
        tl.store(host, tl.load(device, mask=mask, other=0), mask=mask)
    else:
        tl.store(device, tl.load(host, mask=mask, other=0), mask=mask)
