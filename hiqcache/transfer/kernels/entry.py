# mypy: ignore-errors
"""The two kernels that are launched, one a direction; they share the work out and hand on tiles.

Their runtime arguments are 64-bit integers, addresses among them, and they are not specialised on
their values: numbers of tokens and places of slots come in all alignments, and one variant must
serve them all. `k` and `v` are the constants, a `SidePlan` each.
"""

import triton
import triton.language as tl

from hiqcache.transfer.kernels import int8
from hiqcache.transfer.kernels.window import copy_tile


@triton.jit
def encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, s: tl.constexpr):
    """The rows of one tile of one layer into records: where a codec's encoder is named."""
    if s.family == "int8":
        int8.encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, s)
    else:
        copy_tile(rows, records, device_slots, host_slots, first, tokens, s, True)


@triton.jit
def decode_tile(rows, records, device_slots, host_slots, first, tokens, s: tl.constexpr):
    """The records of one tile of one layer into rows: where a codec's decoder is named."""
    if s.family == "int8":
        int8.decode_tile(rows, records, device_slots, host_slots, first, tokens, s)
    else:
        copy_tile(rows, records, device_slots, host_slots, first, tokens, s, False)


@triton.jit
def backup_side(row_table, record_table, device_slots, host_slots, tokens, layers, counts, program,
                programs, s: tl.constexpr):  # fmt: skip
    tiles = (tokens + s.rows - 1) // s.rows
    for item in range(program, layers * tiles, programs):
        layer = item // tiles
        first = (item - layer * tiles) * s.rows
        rows = tl.load(row_table + layer)
        records = tl.load(record_table + layer)
        encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, s)


@triton.jit(
    do_not_specialize=(
        "tables", "device_slots", "host_slots", "tokens", "layers", "counts", "k_programs"
    )
)  # fmt: skip
def backup(tables: tl.int64, device_slots: tl.int64, host_slots: tl.int64, tokens: tl.int64,
           layers: tl.int64, counts: tl.int64, k_programs: tl.int64, k: tl.constexpr,
           v: tl.constexpr):  # fmt: skip
    """Encode the rows of all layers into records.

    `tables` points to four rows of `layers` addresses: K rows, K records, V rows, V records.
    `counts` points to an int64 that grows by the heads that hold a NaN or an infinity. The first
    `k_programs` programs do K, the others V.
    """
    table = tables.to(tl.pointer_type(tl.int64))
    device_slots = device_slots.to(tl.pointer_type(tl.int64))
    host_slots = host_slots.to(tl.pointer_type(tl.int64))
    counts = counts.to(tl.pointer_type(tl.int64))
    program = tl.program_id(0)
    if program < k_programs:
        backup_side(table, table + layers, device_slots, host_slots, tokens, layers, counts,
                    program, k_programs, k)  # fmt: skip
    else:
        backup_side(table + 2 * layers, table + 3 * layers, device_slots, host_slots, tokens,
                    layers, counts, program - k_programs, tl.num_programs(0) - k_programs,
                    v)  # fmt: skip


@triton.jit
def restore_side(row_table, record_table, device_slots, host_slots, tokens, first_layer, end,
                 finished, program, programs, s: tl.constexpr):  # fmt: skip
    tiles = (tokens + s.rows - 1) // s.rows
    done = 0
    for item in range(program, (end - first_layer) * tiles, programs):
        past = item // tiles
        layer = first_layer + past
        first = (item - past * tiles) * s.rows
        rows = tl.load(row_table + layer)
        records = tl.load(record_table + layer)
        decode_tile(rows, records, device_slots, host_slots, first, tokens, s)
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
            k_programs: tl.int64, k: tl.constexpr, v: tl.constexpr):  # fmt: skip
    """Decode the records of the layers from `first_layer` to `end` into rows, K and V together.

    `tables` and `k_programs` as for `backup`. `finished` is 0, or points to an int32 for each
    layer, which grows by the layer's tiles, K's and V's, as they are done.
    """
    table = tables.to(tl.pointer_type(tl.int64))
    device_slots = device_slots.to(tl.pointer_type(tl.int64))
    host_slots = host_slots.to(tl.pointer_type(tl.int64))
    program = tl.program_id(0)
    if program < k_programs:
        restore_side(table, table + layers, device_slots, host_slots, tokens, first_layer, end,
                     finished, program, k_programs, k)  # fmt: skip
    else:
        restore_side(table + 2 * layers, table + 3 * layers, device_slots, host_slots, tokens,
                     first_layer, end, finished, program - k_programs,
                     tl.num_programs(0) - k_programs, v)  # fmt: skip


@triton.jit(do_not_specialize=("address",))
def flip(address: tl.int64):
    """Invert the byte at an address: whether a kernel reads and writes what the CPU sees."""
    pointer = address.to(tl.pointer_type(tl.int8))
    tl.store(pointer, tl.load(pointer) ^ -1)
