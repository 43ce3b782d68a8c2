"""How a pool's geometry becomes the constants of its two kernels; `launch.py` asks for a plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.bf16 import Bf16Codec
from hiqcache.codec.int8 import Int8Codec
from hiqcache.codec.row import FP16, RowType, row_type
from hiqcache.errors import UsageError
from hiqcache.transfer.base import Side

LINE = 128
UNIT = 16
SCRATCH_BYTES = 65536
"""Shared memory that a program may take. It is a power of two, and every GPU that the kernels
compile for gives a program 99 KiB or more."""


@dataclass(frozen=True)
class CodecKernels:
    """Which functions of `kernels/` a codec takes, and how they are best launched.

    Parameters
    ----------
    family
        Named in `kernels/entry.py`.
    tile
        Lines of 128 bytes that a program holds at once; 64 are 8 KiB, seven records of 1040 bytes.
    warps
        Of a program.
    """

    family: str
    tile: int = 64
    warps: int = 8


KERNELS: dict[type[Codec], CodecKernels] = {
    Bf16Codec: CodecKernels("copy"),
    Int8Codec: CodecKernels("int8"),
}
"""A row for each codec that has kernels."""


@dataclass(frozen=True)
class SidePlan:
    """One side's constants: the structure that the kernels take, `s` in their code.

    A record of 1040 bytes at a multiple of 16 touches at most 9 lines: `lines` is 9, and a tile
    of 64 lines holds `rows` = 7 records. A record of 1152 bytes starts on a line, and its
    1040 used bytes touch 9 lines too. What the kernels need in powers of two is in `*_pad`.

    Triton keeps compiled kernels under the text of this structure: whatever the kernels read has
    to be a field.
    """

    family: str
    half: bool
    run: int
    heads: int
    heads_pad: int
    dim: int
    dim_pad: int
    row_bytes: int
    stride: int
    used: int
    lines: int
    rows: int
    rows_pad: int
    tile: int

    @property
    def scratch_bytes(self) -> int:
        """Shared memory through which a program's threads exchange INT8 values and scales.

        Restore looks up scales in the tile; backup looks up values in rows padded to powers of
        two: for 64 heads of 256, 256 lines = 32,768 bytes and 64 x 256 = 16,384 bytes. Rotated
        values change threads as float32, up to compute capability 8.9.
        """
        if self.family == "copy":
            return 0
        values = self.rows_pad * self.heads_pad * self.dim_pad * (1 if self.run == 1 else 4)
        return max(self.tile * LINE, values)


@dataclass(frozen=True)
class Plan:
    """Both sides' constants, how the programs are divided between them, and their warps."""

    k_programs: int
    warps: int
    k: SidePlan
    v: SidePlan

    @property
    def scratch_bytes(self) -> int:
        return max(self.k.scratch_bytes, self.v.scratch_bytes)


def make_plan(codec: Codec, k: Side, v: Side, programs: int) -> Plan:
    """The constants for a pool.

    Raises
    ------
    UsageError
        A codec without kernels; rows of a type, heads of a size or buffers that the kernels do
        not take; or fewer than two programs.
    """
    if programs < 2:
        raise UsageError(f"programs: expected 2 or more, one for K and one for V, got {programs}")
    kernels = KERNELS.get(type(codec))
    if kernels is None:
        raise UsageError(f"codec {codec.name} has no kernels: set HIQCACHE_TRANSFER=torch")
    half = _row_type(k, v) is FP16
    lines = _lines(k), _lines(v)
    tile = max(kernels.tile, *map(next_power, lines))
    k_plan, v_plan = (
        _side_plan(name, side, codec, kernels.family, half, count, tile)
        for name, side, count in zip("kv", (k, v), lines, strict=True)
    )
    share = k_plan.used / (k_plan.used + v_plan.used)
    k_programs = min(max(1, round(programs * share)), programs - 1)
    plan = Plan(k_programs, kernels.warps, k_plan, v_plan)
    if plan.scratch_bytes > SCRATCH_BYTES:
        raise UsageError(
            f"{k_plan.heads} KV heads of {k_plan.dim} (K) and {v_plan.dim} (V) on one GPU need "
            f"{plan.scratch_bytes} bytes of a program's shared memory, and the kernels may take "
            f"{SCRATCH_BYTES}: raise --tp-size or set HIQCACHE_TRANSFER=torch"
        )
    return plan


def next_power(number: int) -> int:
    """The smallest power of two that is not under `number`."""
    return 1 << (number - 1).bit_length()


def _lines(side: Side) -> int:
    """The most lines of 128 bytes that a record touches, wherever it starts."""
    stride = side.host[0].stride(0)
    on_lines = stride % LINE == 0 and all(records.data_ptr() % LINE == 0 for records in side.host)
    most_ahead = 0 if on_lines else LINE - UNIT
    return -(-(side.layout.used_bytes + most_ahead) // LINE)


def _side_plan(
    name: str, side: Side, codec: Codec, family: str, half: bool, lines: int, tile: int
) -> SidePlan:
    layout = side.layout
    for rows in side.device:
        if rows.stride(2) != 1 or (layout.heads > 1 and rows.stride(1) != layout.head_dim):
            raise UsageError(
                f"{name} rows: expected heads and head_dim to be contiguous, got strides "
                f"{rows.stride()}; HIQCACHE_TRANSFER=torch takes them"
            )
    count = tile // lines
    return SidePlan(
        family=family,
        half=half,
        run=codec.run_length(layout.head_dim),
        heads=layout.heads,
        heads_pad=max(2, next_power(layout.heads)),
        dim=layout.head_dim,
        dim_pad=next_power(layout.head_dim),
        row_bytes=_one_stride(f"{name} rows", side.device),
        stride=_one_stride(f"{name} records", side.host),
        used=layout.used_bytes,
        lines=lines,
        rows=count,
        rows_pad=next_power(count),
        tile=tile,
    )


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
