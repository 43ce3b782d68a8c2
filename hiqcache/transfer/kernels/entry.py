# mypy: ignore-errors
"""The two kernels that are launched, one a direction; they share the work out and hand on tiles.

Their runtime arguments are 64-bit integers, addresses among them, and they are not specialised on
their values: numbers of tokens and places of slots come in all alignments, and one variant must
serve them all. `k` and `v` are the constants, a `SidePlan` each.
"""

import triton
import triton.language as tl

from hiqcache.transfer.kernels import exact, int8, ladder
from hiqcache.transfer.kernels.window import copy_tile


@triton.jit
def tables(s: tl.constexpr):
    """What a codec's functions are given for all tiles: two tensors, or numbers in their place."""
    if s.family == "ladder":
        return ladder.hadamard(s.dot, s), ladder.hadamard(s.group, s)
    else:
        return 0, 0


@triton.jit
def encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, table,
                s: tl.constexpr):  # fmt: skip
    """The rows of one tile of one layer into records: where a codec's encoder is named."""
    if s.family == "ladder":
        ladder.encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, table, s)
    elif s.family == "exact":
        exact.encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, s)
    elif s.family == "int8":
        int8.encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, s)
    else:
        copy_tile(rows, records, device_slots, host_slots, first, tokens, s, True)


@triton.jit
def decode_tile(rows, records, device_slots, host_slots, first, tokens, data, table, other_table,
                s: tl.constexpr):  # fmt: skip
    """The records of one tile of one layer into rows: where a codec's decoder is named."""
    if s.family == "ladder":
        ladder.decode_tile(rows, records, device_slots, host_slots, first, tokens, data, table,
                           other_table, s)  # fmt: skip
    elif s.family == "exact":
        exact.decode_tile(rows, records, device_slots, host_slots, first, tokens, s)
    elif s.family == "int8":
        int8.decode_tile(rows, records, device_slots, host_slots, first, tokens, s)
    else:
        copy_tile(rows, records, device_slots, host_slots, first, tokens, s, False)


@triton.jit
def backup_side(row_table, record_table, device_slots, host_slots, tokens, layers, counts, program,
                programs, s: tl.constexpr):  # fmt: skip
    tiles = (tokens + s.rows - 1) // s.rows
    table, _ = tables(s)
    for item in range(program, layers * tiles, programs):
        layer = item // tiles
        first = (item - layer * tiles) * s.rows
        rows = tl.load(row_table + layer)
        records = tl.load(record_table + layer)
        encode_tile(rows, records, device_slots, host_slots, first, tokens, counts, table, s)


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
    `counts` points to two int64 that grow by the heads that hold a NaN or an infinity, and by the
    rows that a lossless record could not hold. The first `k_programs` programs do K, the others V.
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
def loaded_ahead(record_table, host_slots, item, items, tiles, first_layer, tokens,
                 s: tl.constexpr):  # fmt: skip
    """A tile's records, read while another is decoded; nothing past the last. For the ladder."""
    if s.family == "ladder":
        past = item // tiles
        records = tl.load(record_table + first_layer + past, mask=item < items, other=0)
        first = (item - past * tiles) * s.rows
        return ladder.load_tile(records, host_slots, first, tl.where(item < items, tokens, 0), s)
    else:
        return 0


@triton.jit
def restore_side(row_table, record_table, device_slots, host_slots, tokens, first_layer, end,
                 finished, program, programs, s: tl.constexpr):  # fmt: skip
    tiles = (tokens + s.rows - 1) // s.rows
    table, other_table = tables(s)
    items = (end - first_layer) * tiles
    data = loaded_ahead(record_table, host_slots, program + items * 0, items, tiles, first_layer,
                        tokens, s)  # fmt: skip
    done = 0
    for item in range(program, items, programs):
        past = item // tiles
        layer = first_layer + past
        first = (item - past * tiles) * s.rows
        rows = tl.load(row_table + layer)
        records = tl.load(record_table + layer)
        following = loaded_ahead(record_table, host_slots, item + programs, items, tiles,
                                 first_layer, tokens, s)  # fmt: skip
        decode_tile(rows, records, device_slots, host_slots, first, tokens, data, table,
                    other_table, s)  # fmt: skip
        data = following
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
