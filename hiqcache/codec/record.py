"""Records as data: how many bytes one row takes in L2, and where each part lies.

A row is one K or one V of one token of one layer: `heads x head_dim` values. A codec turns a
row into one record; K and V have a format each. This module is arithmetic only and needs no
torch, so that the sidecar and `hiqcache capacity` stay light. `catalog.py` says which codec has
which formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from hiqcache.errors import UsageError

Side = Literal["k", "v"]
SIDES: tuple[Side, ...] = ("k", "v")

DIM_MULTIPLE = 8
"""head_dim must be a multiple of this, so that a head's row is a multiple of 16 bytes."""

UNIT = 16
"""Records end on a multiple of this: what one thread of a kernel moves at once."""

SGLANG_UNIT = 128
"""What SGLang's HiCache byte mover takes."""


@dataclass(frozen=True)
class RecordLayout:
    """Where the parts of one record lie, in bytes: payload, scales, what is set aside, padding.

    For 8 heads x 128 under `int8`: payload at 0 to 1023 (1024 bytes of INT8), scales at 1024
    to 1039 (8 BF16 values), padding at 1040 to 1151: 1024 + 16 + 112 = 1152 = 9 x 128. Under
    `int8-compact` the same record ends at 1040 = 65 x 16.

    Parameters
    ----------
    value_bits
        Bits of the payload for one value.
    group
        Values that share a scale; 0 in a record without scales.
    aside
        Values of each head that are kept as they are, behind the scales.
    """

    heads: int
    head_dim: int
    payload_bytes: int
    scales_bytes: int
    record_bytes: int
    aside_bytes: int = 0
    value_bits: int = 8
    group: int = 0
    aside: int = 0

    @property
    def used_bytes(self) -> int:
        """All parts but the padding: what a transfer has to move."""
        return self.payload_bytes + self.scales_bytes + self.aside_bytes

    @property
    def padding_bytes(self) -> int:
        """Zero from allocation on, never written, never sent."""
        return self.record_bytes - self.used_bytes

    def part_of(self, byte: int) -> str:
        """Which part of the record a byte belongs to, by its offset."""
        if byte < self.payload_bytes:
            return "payload"
        if byte < self.payload_bytes + self.scales_bytes:
            return "scales"
        return "set aside" if byte < self.used_bytes else "padding"


class RecordFormat(ABC):
    """What a codec spends on a row of one side, independent of the model."""

    @abstractmethod
    def layout(self, heads: int, head_dim: int, value_bytes: int) -> RecordLayout:
        """The record of `heads x head_dim` values of `value_bytes` each; both checked before.

        Raises
        ------
        UsageError
            Heads that this format does not hold.
        """


@dataclass(frozen=True)
class Verbatim(RecordFormat):
    """The row's own bytes."""

    def layout(self, heads: int, head_dim: int, value_bytes: int) -> RecordLayout:
        payload = heads * head_dim * value_bytes
        record = round_up(payload, UNIT)
        return RecordLayout(heads, head_dim, payload, 0, record, value_bits=8 * value_bytes)


@dataclass(frozen=True)
class Scaled(RecordFormat):
    """Integers of 8 bits and a BF16 scale for each head.

    Parameters
    ----------
    alignment
        A record's size is rounded up to a multiple of this many bytes.
    """

    alignment: int = UNIT

    def layout(self, heads: int, head_dim: int, value_bytes: int) -> RecordLayout:
        payload, scales = heads * head_dim, 2 * heads
        record = round_up(payload + scales, self.alignment)
        return RecordLayout(heads, head_dim, payload, scales, record, group=head_dim)


def round_up(size: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not under `size`."""
    return -(-size // unit) * unit


def check_geometry(heads: int, head_dim: int) -> None:
    """Refuse what no codec can hold.

    Raises
    ------
    UsageError
        No heads, or a head_dim that is not a positive multiple of 8.
    """
    if heads < 1:
        raise UsageError(f"a record needs at least 1 KV head, got {heads}")
    if head_dim < 1 or head_dim % DIM_MULTIPLE:
        raise UsageError(
            f"head_dim must be a positive multiple of {DIM_MULTIPLE}, got {head_dim}; "
            f"HiQCache cannot encode this model"
        )
