"""Every codec as data, the one list that everything else learns codecs from. Needs no torch.

Configuration, command line, capacity, doctor, sidecar, demo, experiments, simulator and quality
ask here; `registry.py` makes the codec itself. To add one, add its entry: nothing else lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiqcache.codec.record import (
    SGLANG_UNIT,
    SIDES,
    RecordFormat,
    RecordLayout,
    Scaled,
    Side,
    Verbatim,
    check_geometry,
)
from hiqcache.errors import UsageError

SIXTEEN_BITS = ("bfloat16", "float16")


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
"""What a user who has not measured should take."""

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
            name="int8-rotated",
            implementation="hiqcache.codec.rotated:RotatedCodec",
            label="INT8 of rotated heads",
            k=Scaled(),
            v=Scaled(),
        ),
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
    try:
        return CATALOG[name]
    except KeyError:
        raise UsageError(
            f"unknown codec {name!r}: expected one of {', '.join(codec_names())}"
        ) from None
