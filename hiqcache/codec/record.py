"""Records as data: how many bytes one row takes in L2, and where each part lies.

A row is one K or one V of one token of one layer: `heads x head_dim` 16-bit values. A codec
turns a row into one record. This module is arithmetic only and needs no torch, so that the
sidecar and `hiqcache capacity` stay light.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiqcache.errors import UsageError

RECORD_VERSION = 1
"""Raised whenever the bytes of a record come to mean something else: L3 outlives a server."""

DIM_MULTIPLE = 8
"""head_dim must be a multiple of this, so that a head's row is a multiple of 16 bytes."""


@dataclass(frozen=True)
class RecordFormat:
    """What a codec spends on a row, independent of the model.

    Parameters
    ----------
    value_bytes
        Bytes for one value of the payload.
    scale_bytes
        Bytes of scale for one head; 0 for a codec without scales.
    alignment
        A record's size is rounded up to a multiple of this many bytes.
    """

    value_bytes: int
    scale_bytes: int
    alignment: int


RECORD_FORMATS: dict[str, RecordFormat] = {
    "bf16": RecordFormat(value_bytes=2, scale_bytes=0, alignment=16),
    # 128 bytes is what SGLang's HiCache byte mover takes; the padding exists for it alone.
    "int8": RecordFormat(value_bytes=1, scale_bytes=2, alignment=128),
    "int8-compact": RecordFormat(value_bytes=1, scale_bytes=2, alignment=16),
    "int8-rotated": RecordFormat(value_bytes=1, scale_bytes=2, alignment=16),
}
"""Every codec by name, the one list that the registry, the configuration and the CLI share."""

LOSSY = tuple(name for name in RECORD_FORMATS if name != "bf16")
"""Those whose restored rows are not the bits that were backed up."""


@dataclass(frozen=True)
class RecordLayout:
    """Where the parts of one record lie, in bytes.

    For 8 heads x 128 under `int8`: payload at 0 to 1023 (1024 bytes of INT8), scales at 1024
    to 1039 (8 BF16 values), padding at 1040 to 1151: 1024 + 16 + 112 = 1152 = 9 x 128. Under
    `int8-compact` and `int8-rotated` the same record ends at 1040 = 65 x 16.
    """

    heads: int
    head_dim: int
    payload_bytes: int
    scales_bytes: int
    record_bytes: int

    @property
    def used_bytes(self) -> int:
        """Payload and scales: what a transfer has to move."""
        return self.payload_bytes + self.scales_bytes

    @property
    def padding_bytes(self) -> int:
        """Zero from allocation on, never written, never sent."""
        return self.record_bytes - self.used_bytes

    def part_of(self, byte: int) -> str:
        """Which part of the record a byte belongs to, by its offset."""
        if byte < self.payload_bytes:
            return "payload"
        return "scales" if byte < self.used_bytes else "padding"


def record_layout(codec: str, heads: int, head_dim: int) -> RecordLayout:
    """The record of one row of `heads x head_dim` values under a codec.

    Raises
    ------
    UsageError
        An unknown codec, no heads, or a head_dim that is not a positive multiple of 8.
    """
    try:
        fmt = RECORD_FORMATS[codec]
    except KeyError:
        raise UsageError(
            f"unknown codec {codec!r}: expected one of {', '.join(RECORD_FORMATS)}"
        ) from None
    if heads < 1:
        raise UsageError(f"a record needs at least 1 KV head, got {heads}")
    if head_dim < 1 or head_dim % DIM_MULTIPLE:
        raise UsageError(
            f"head_dim must be a positive multiple of {DIM_MULTIPLE}, got {head_dim}; "
            f"HiQCache cannot encode this model"
        )
    payload = heads * head_dim * fmt.value_bytes
    scales = heads * fmt.scale_bytes
    record = -(-(payload + scales) // fmt.alignment) * fmt.alignment
    return RecordLayout(heads, head_dim, payload, scales, record)
