"""How a pool's geometry becomes the constants of its two kernels; `launch.py` asks for a plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.bf16 import Bf16Codec
from hiqcache.codec.exact import ExactCodec
from hiqcache.codec.int8 import Int8Codec
from hiqcache.codec.ladder import LadderCodec
from hiqcache.codec.record import EXPONENT_GROUP, RecordLayout
from hiqcache.codec.row import RowType, row_type
from hiqcache.errors import UsageError
from hiqcache.transfer.base import Side

LINE = 128
UNIT = 16
LEAST_BLOCKS = 16
MOST_ROWS = 32
"""The least blocks of a matrix product, and the most records of a tile, which small ones reach."""
SCRATCH_BYTES = 96 * 1024
"""Shared memory that a program may take: every GPU that the kernels compile for gives 99 KiB or
more."""


@dataclass(frozen=True)
class CodecKernels:
    """Which functions of `kernels/` a codec takes, and how they are best launched.

    Parameters
    ----------
    family
        Named in `kernels/entry.py`.
    tile
        Lines of 128 bytes that a program holds at once; 64 are 8 KiB, seven records of 1040 bytes.
    values
        Padded values that a program holds at once, of codecs that rotate whole heads.
    warps
        Of a program.
    programs
        Thread blocks of a launch, unless `HIQCACHE_PROGRAMS` says how many.
    """

    family: str
    tile: int = 64
    values: int = 8192
    warps: int = 8
    programs: int = 48


KERNELS: dict[type[Codec], CodecKernels] = {
    Bf16Codec: CodecKernels("copy"),
    Int8Codec: CodecKernels("int8"),
    LadderCodec: CodecKernels("ladder", programs=64),
    ExactCodec: CodecKernels("exact"),
}
"""A row for each codec that has kernels.

48 programs of 8 warps fill a PCIe 5 x16 link both ways under INT8; 24 come within 3 % of them, 16
to three quarters. A program takes half a multiprocessor's registers, so a decode kernel finds room
beside it. `docs/transfer.md` has the measurement.
"""


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
    row: str
    value_bytes: int
    infinity: int
    nan: int
    largest: float
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
    def encode_cost(self) -> float:
        """Of a record beside the other side's: bytes, where the link is what takes the time."""
        return self.used

    @property
    def decode_cost(self) -> float:
        return self.used

    @property
    def scratch_bytes(self) -> int:
        """Shared memory through which a program's threads exchange INT8 values and scales.

        Restore looks up scales in the tile; backup looks up values in rows padded to powers of
        two: for 64 heads of 256, 256 lines = 32,768 bytes and 64 x 256 = 16,384 bytes.
        """
        if self.family == "copy":
            return 0
        return max(self.tile * LINE, self.rows_pad * self.heads_pad * self.dim_pad)


@dataclass(frozen=True)
class LadderPlan(SidePlan):
    """What the ladder's kernels need besides.

    Rotations are matrix products over blocks of `dot` values: `head_blocks` in a padded head,
    `blocks_per_tile` in a tile. `inner` is as much of a run as lies in a block.
    """

    bits: int
    run_log: int
    dot: int
    inner: int
    head_blocks: int
    blocks_per_tile: int
    payload: int
    """Bytes in front of the scales."""
    scales: int
    """Bytes of scales."""
    group: int
    group_pad: int
    groups: int
    """Scales of a head, the values that share one, and those that do in a padded head."""
    aside: int
    aside_pad: int
    tail_words: int
    """What lies behind the payload, in words, as a power of two."""
    joined: int
    """Groups of eight values whose parts of the second plane are joined within a padded head."""
    magnitude: int
    """A value's bits without the sign."""

    @property
    def encode_cost(self) -> float:
        # Instructions for a value count as much as two bytes; each pass that sets one aside, some.
        return self.heads * self.dim * (1 + 0.15 * self.aside) + self.used / 2

    @property
    def decode_cost(self) -> float:
        return self.heads * self.dim + self.used / 2

    @property
    def scratch_bytes(self) -> int:
        # Values as integers of 32 bits, two matrices, the tile, and what is small.
        values = self.rows * self.heads_pad * self.dim_pad
        return 4 * values + 2 * self.dot * self.dot + self.tile * LINE + 2048


@dataclass(frozen=True)
class ExactPlan(SidePlan):
    """What the kernels of `exact` need besides: a row as one run of `values`."""

    values: int
    values_pad: int
    payload: int
    """Bytes in front of the bases."""
    scales: int
    """Bytes of bases."""
    listed: int
    listed_pad: int
    """Escapes that a record has room for."""
    tail_words: int
    """What lies behind the payload, in words, as a power of two."""


@dataclass(frozen=True)
class Plan:
    """Both sides' constants, and a launch's programs, as many of which are K's, and their warps."""

    programs: int
    k_backup: int
    k_restore: int
    warps: int
    k: SidePlan
    v: SidePlan

    @property
    def scratch_bytes(self) -> int:
        return max(self.k.scratch_bytes, self.v.scratch_bytes)


def make_plan(codec: Codec, k: Side, v: Side, programs: int | None = None) -> Plan:
    """The constants for a pool; `programs` is the codec's own number when None.

    Raises
    ------
    UsageError
        A codec without kernels; rows of a type, heads of a size or buffers that the kernels do
        not take; or fewer than two programs.
    """
    kernels = KERNELS.get(type(codec))
    if kernels is None:
        raise UsageError(f"codec {codec.name} has no kernels: set HIQCACHE_TRANSFER=torch")
    programs = kernels.programs if programs is None else programs
    if programs < 2:
        raise UsageError(f"programs: expected 2 or more, one for K and one for V, got {programs}")
    kind = _row_type(k, v)
    k_plan, v_plan = (
        _side_plan(name, side, codec, kernels, kind)
        for name, side in zip("kv", (k, v), strict=True)
    )
    plan = Plan(
        programs=programs,
        k_backup=_share(programs, k_plan.encode_cost, v_plan.encode_cost),
        k_restore=_share(programs, k_plan.decode_cost, v_plan.decode_cost),
        warps=kernels.warps,
        k=k_plan,
        v=v_plan,
    )
    if plan.scratch_bytes > SCRATCH_BYTES:
        raise UsageError(
            f"{k_plan.heads} KV heads of {k_plan.dim} (K) and {v_plan.dim} (V) on one GPU need "
            f"{plan.scratch_bytes} bytes of a program's shared memory, and the kernels may take "
            f"{SCRATCH_BYTES}: raise --tp-size or set HIQCACHE_TRANSFER=torch"
        )
    return plan


def _share(programs: int, k_cost: float, v_cost: float) -> int:
    return min(max(1, round(programs * k_cost / (k_cost + v_cost))), programs - 1)


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
    name: str, side: Side, codec: Codec, kernels: CodecKernels, kind: RowType
) -> SidePlan:
    layout = side.layout
    for rows in side.device:
        if rows.stride(2) != 1 or (layout.heads > 1 and rows.stride(1) != layout.head_dim):
            raise UsageError(
                f"{name} rows: expected heads and head_dim to be contiguous, got strides "
                f"{rows.stride()}; HIQCACHE_TRANSFER=torch takes them"
            )
    lines = _lines(side)
    tile = max(kernels.tile, next_power(lines))
    count = tile // lines
    plan = SidePlan(
        family=kernels.family,
        row=kind.name,
        value_bytes=kind.value_bytes,
        infinity=kind.infinity_bits,
        nan=kind.nan_bits,
        largest=kind.largest,
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
    if kernels.family == "ladder":
        return _ladder_plan(plan, layout, kernels.values)
    return _exact_plan(plan, layout, kernels.values) if kernels.family == "exact" else plan


def _exact_plan(plan: SidePlan, layout: RecordLayout, values: int) -> ExactPlan:
    count = plan.heads * plan.dim
    values_pad = max(next_power(count), EXPONENT_GROUP)
    rows = max(min(values // values_pad, MOST_ROWS), 1)
    fields = asdict(plan) | {
        "rows": rows,
        "rows_pad": rows,
        "tile": next_power(rows * plan.lines),
    }
    behind = layout.used_bytes - layout.payload_bytes
    return ExactPlan(
        **fields,
        values=count,
        values_pad=values_pad,
        payload=layout.payload_bytes,
        scales=layout.scales_bytes,
        listed=layout.aside,
        listed_pad=next_power(layout.aside),
        tail_words=next_power(-(-behind // 4)),
    )


def _ladder_plan(plan: SidePlan, layout: RecordLayout, values: int) -> LadderPlan:
    run, dim = plan.run, plan.dim
    # int8 products need 32 values in a row and 16 rows.
    dot = min(max(run, 32), 128)
    heads_pad, dim_pad = next_power(plan.heads), max(next_power(dim), dot)
    width = heads_pad * dim_pad
    rows = max(min(values // width, MOST_ROWS), LEAST_BLOCKS * dot // width, 1)
    groups = dim // layout.group
    behind = layout.scales_bytes + layout.aside_bytes
    each = {6: 2, 5: 4}.get(layout.value_bits, 1)
    fields = asdict(plan) | {
        "heads_pad": heads_pad,
        "dim_pad": dim_pad,
        "rows": rows,
        "rows_pad": rows,
        "tile": next_power(rows * plan.lines),
    }
    return LadderPlan(
        **fields,
        bits=layout.value_bits,
        run_log=run.bit_length() - 1,
        dot=dot,
        inner=min(run, dot),
        head_blocks=dim_pad // dot,
        blocks_per_tile=rows * width // dot,
        payload=layout.payload_bytes,
        scales=layout.scales_bytes,
        group=layout.group,
        group_pad=layout.group if groups > 1 else dim_pad,
        groups=groups,
        aside=layout.aside,
        aside_pad=next_power(max(layout.aside, 1)),
        tail_words=next_power((layout.payload_bytes % 4 + behind + 3) // 4),
        joined=each if dim // 8 % each == 0 else 1,
        magnitude=(1 << (8 * plan.value_bytes - 1)) - 1,
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
