"""Every codec as data, the one list that everything else learns codecs from. Needs no torch.

Configuration, command line, capacity, doctor, sidecar, demo, experiments, simulator and quality
ask here; `registry.py` makes the codec itself. To add one, add its entry: nothing else lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiqcache.codec.record import (
    SGLANG_UNIT,
    SIDES,
    Levels,
    Lossless,
    RecordFormat,
    RecordLayout,
    Scaled,
    Side,
    Verbatim,
    check_geometry,
)
from hiqcache.errors import UsageError

SIXTEEN_BITS = ("bfloat16", "float16")
EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")
"""Of a device cache under `--kv-cache-dtype fp8_e4m3` and `fp8_e5m2`."""

LEVELS = (8, 6, 5, 4)
"""Bits for a value of K or V in the ladder."""

GROUP = 64
"""Values of K that share a scale at 4 bits: two or four groups in a head of 128 or 256."""

RUNGS = ("k8v8", "k8v4", "k6v5", "k6v4", "k5v4", "k4v4")
"""Those of the ladder that are listed: no other pair of widths is as small and closer."""


@dataclass(frozen=True, kw_only=True)
class CodecEntry:
    """What is known of a codec without running it.

    Parameters
    ----------
    name
        As in `HIQCACHE_CODEC`.
    implementation
        `module:class` of the `Codec`, imported when it is first asked for.
    label
        For people, in a table's or plot's few words.
    k, v
        The records of either side.
    record_version
        Raised whenever the bytes of this codec's records come to mean something else: L3
        outlives a server, and its tag carries it.
    lossy
        Whether restored rows may differ from the bits that were backed up.
    marks_broken_heads
        Whether a record shows which heads held a NaN or an infinity.
    marks_inexact_rows
        Whether a record shows that its row could not be kept bit for bit.
    row_types
        The device types that it encodes, as torch names them.
    listed
        Whether it appears where all codecs are compared. The others can be asked for by name.
    """

    name: str
    implementation: str
    label: str
    k: RecordFormat
    v: RecordFormat
    record_version: int = 1
    lossy: bool = True
    marks_broken_heads: bool = True
    marks_inexact_rows: bool = False
    row_types: tuple[str, ...] = SIXTEEN_BITS
    listed: bool = True

    def layout(self, side: Side, heads: int, head_dim: int, value_bytes: int = 2) -> RecordLayout:
        """The record of one row of `heads x head_dim` values on the K or the V side.

        Parameters
        ----------
        value_bytes
            Of one value on the device: 2, or 1 for an fp8 cache.

        Raises
        ------
        UsageError
            A side that is neither "k" nor "v", or a geometry that the codec cannot hold.
        """
        if side not in SIDES:
            raise UsageError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
        check_geometry(heads, head_dim)
        return (self.k if side == "k" else self.v).layout(heads, head_dim, value_bytes)


BASELINE = "bf16"
"""What every other codec is compared with: the rows as they are."""

RECOMMENDED = "int8-compact"
"""What a user who has not measured should take: the codec that is proven on every device. `k8v8` is
closer to BF16, but its kernels are not yet proven under the Triton that SGLang 0.5.23 brings."""

RETIRED = {"int8-rotated": "k8v8"}
"""Names that were never released, each with what took its place."""


def _rung(k: int, v: int) -> CodecEntry:
    """K needs more than V: its largest values stand apart, and at 4 bits it has more scales."""
    name = f"k{k}v{v}"
    return CodecEntry(
        name=name,
        implementation="hiqcache.codec.ladder:LadderCodec",
        label=f"{k} bits of K, {v} of V",
        k=Levels(k, sets_aside=True, group=GROUP if k == 4 else None),
        v=Levels(v),
        row_types=SIXTEEN_BITS + EIGHT_BITS,
        listed=name in RUNGS,
    )


CATALOG: dict[str, CodecEntry] = {
    entry.name: entry
    for entry in (
        CodecEntry(
            name=BASELINE,
            implementation="hiqcache.codec.bf16:Bf16Codec",
            label="BF16",
            k=Verbatim(),
            v=Verbatim(),
            lossy=False,
            marks_broken_heads=False,
            row_types=SIXTEEN_BITS + EIGHT_BITS,
        ),
        CodecEntry(
            name="int8",
            implementation="hiqcache.codec.int8:Int8Codec",
            label="INT8, padded for SGLang's byte mover",
            k=Scaled(SGLANG_UNIT),
            v=Scaled(SGLANG_UNIT),
        ),
        CodecEntry(
            name="int8-compact",
            implementation="hiqcache.codec.int8:Int8Codec",
            label="INT8",
            k=Scaled(),
            v=Scaled(),
        ),
        CodecEntry(
            name="exact",
            implementation="hiqcache.codec.exact:ExactCodec",
            label="every bit of BF16",
            k=Lossless(),
            v=Lossless(),
            lossy=False,
            marks_broken_heads=False,
            marks_inexact_rows=True,
            row_types=("bfloat16",),
        ),
        *(_rung(k, v) for k in LEVELS for v in LEVELS),
    )
}


def codec_names() -> tuple[str, ...]:
    """Every codec that can be asked for."""
    return tuple(CATALOG)


def listed_codecs() -> tuple[str, ...]:
    """Those that stand where codecs are compared, the baseline first."""
    return tuple(name for name, entry in CATALOG.items() if entry.listed)


def lossy_codecs() -> tuple[str, ...]:
    """Those whose restored rows may not be the bits that were backed up."""
    return tuple(name for name, entry in CATALOG.items() if entry.lossy)


def codec_entry(name: str) -> CodecEntry:
    """The entry of that name.

    Raises
    ------
    UsageError
        An unknown name; the message lists the supported ones.
    """
    if name in CATALOG:
        return CATALOG[name]
    if name in RETIRED:
        raise UsageError(
            f"codec {name!r} is no more: {RETIRED[name]} has taken its place and is closer to BF16"
        )
    raise UsageError(f"unknown codec {name!r}: expected one of {', '.join(codec_names())}")
