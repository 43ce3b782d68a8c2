"""How a pool's geometry becomes the constants of its two kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.row import FP16, RowType, row_type
from hiqcache.errors import UsageError
from hiqcache.transfer.base import Side

LINE = 128
UNIT = 16
TILE = 64
"""Lines of 128 bytes that a program holds at once: 8 KiB, seven records of 1040 bytes."""
SCRATCH_BYTES = 65536
"""Shared memory that a program may take. It is a power of two, and every GPU that the kernels
compile for gives a program 99 KiB or more."""


@dataclass(frozen=True)
class SidePlan:
    """One side's constants.

    A record of 1040 bytes at a multiple of 16 touches at most 9 lines: `lines` is 9, and a tile
    of 64 lines holds `rows` = 7 records. A record of 1152 bytes starts on a line, and its
    1040 used bytes touch 9 lines too.
    """

    run: int
    dim: int
    row_bytes: int
    stride: int
    used: int
    lines: int
    rows: int = 0

    def constants(self, prefix: str, *, encode: bool) -> dict[str, int]:
        """The kernels' parameters of this side; the encoder has a few more."""
        values = {
            "RUN": self.run,
            "DIM": self.dim,
            "ROW_BYTES": self.row_bytes,
            "STRIDE": self.stride,
            "USED": self.used,
            "LINES": self.lines,
            "ROWS": self.rows,
        }
        if encode:
            values |= {"DIM_PAD": next_power(self.dim), "ROWS_PAD": next_power(self.rows)}
        return {f"{prefix}_{name}": value for name, value in values.items()}


@dataclass(frozen=True)
class Plan:
    """Both sides' constants and how the programs are divided between them."""

    int8: bool
    half: bool
    heads: int
    tile: int
    k_programs: int
    k: SidePlan
    v: SidePlan

    @property
    def scratch_bytes(self) -> int:
        """Shared memory through which a program's threads exchange INT8 values and scales.

        Restore looks up scales in the tile; backup looks up values in rows padded to powers of
        two: for 64 heads of 256, 256 lines = 32,768 bytes and 64 x 256 = 16,384 bytes. Rotated
        values change threads as float32, up to compute capability 8.9.
        """
        if not self.int8:
            return 0
        values = (
            next_power(side.rows) * next_power(side.dim) * (1 if side.run == 1 else 4)
            for side in (self.k, self.v)
        )
        return max(self.tile * LINE, self.heads_pad * max(values))

    @property
    def heads_pad(self) -> int:
        return max(2, next_power(self.heads))

    def constants(self, *, encode: bool) -> dict[str, int | bool]:
        values: dict[str, int | bool] = {
            "INT8": self.int8,
            "HALF": self.half,
            "HEADS": self.heads,
            "TILE": self.tile,
        }
        if encode:
            values["HEADS_PAD"] = self.heads_pad
        return values | self.k.constants("K", encode=encode) | self.v.constants("V", encode=encode)


def make_plan(codec: Codec, k: Side, v: Side, programs: int, tile: int = TILE) -> Plan:
    """The constants for a pool.

    Raises
    ------
    UsageError
        Rows of a type, heads of a size or buffers that the kernels do not take, or fewer than
        two programs.
    """
    if programs < 2:
        raise UsageError(f"programs: expected 2 or more, one for K and one for V, got {programs}")
    sides = _side_plan("k", k, codec), _side_plan("v", v, codec)
    tile = max(tile, *(next_power(side.lines) for side in sides))
    k_plan, v_plan = (replace(side, rows=tile // side.lines) for side in sides)
    share = k_plan.used / (k_plan.used + v_plan.used)
    k_programs = min(max(1, round(programs * share)), programs - 1)
    int8 = codec.lossy
    half = _row_type(k, v) is FP16
    plan = Plan(int8, half, k.layout.heads, tile, k_programs, k_plan, v_plan)
    if plan.scratch_bytes > SCRATCH_BYTES:
        raise UsageError(
            f"{plan.heads} KV heads of {k_plan.dim} (K) and {v_plan.dim} (V) on one GPU need "
            f"{plan.scratch_bytes} bytes of a program's shared memory, and the kernels may take "
            f"{SCRATCH_BYTES}: raise --tp-size or set HIQCACHE_TRANSFER=torch"
        )
    return plan


def next_power(number: int) -> int:
    """The smallest power of two that is not under `number`."""
    return 1 << (number - 1).bit_length()


def _side_plan(name: str, side: Side, codec: Codec) -> SidePlan:
    layout = side.layout
    row_bytes = _one_stride(f"{name} rows", side.device)
    stride = _one_stride(f"{name} records", side.host)
    for rows in side.device:
        if rows.stride(2) != 1 or (layout.heads > 1 and rows.stride(1) != layout.head_dim):
            raise UsageError(
                f"{name} rows: expected heads and head_dim to be contiguous, got strides "
                f"{rows.stride()}; HIQCACHE_TRANSFER=torch takes them"
            )
    on_lines = stride % LINE == 0 and all(records.data_ptr() % LINE == 0 for records in side.host)
    most_ahead = 0 if on_lines else LINE - UNIT
    lines = -(-(layout.used_bytes + most_ahead) // LINE)
    run = codec.run_length(layout.head_dim)
    return SidePlan(run, layout.head_dim, row_bytes, stride, layout.used_bytes, lines)


def _row_type(k: Side, v: Side) -> RowType:
    types = {rows.dtype for side in (k, v) for rows in side.device}
    if len(types) != 1:
        raise UsageError(f"rows: expected one type in K and V of all layers, got {types}")
    return row_type(types.pop())


def _one_stride(name: str, layers: tuple[torch.Tensor, ...]) -> int:
    """Bytes from one slot to the next: the same in each layer, and 16-byte steps."""
    strides = {layer.stride(0) * layer.element_size() for layer in layers}
    stride = strides.pop()
    if strides:
        raise UsageError(f"{name}: expected layers of one stride; use HIQCACHE_TRANSFER=torch")
    if stride % UNIT or any(layer.data_ptr() % UNIT for layer in layers):
        raise UsageError(
            f"{name}: expected every slot on a multiple of {UNIT} bytes, got a stride of "
            f"{stride} bytes; HIQCACHE_TRANSFER=torch takes it"
        )
    return stride
