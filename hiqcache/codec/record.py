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

VALUES_PER_ASIDE = 32
"""Of so many values of a head the largest is set aside."""

ASIDE_BYTES = 3
"""A value of 16 bits and its place in the head."""

MOST_PLACES = 256
"""A place is one byte."""

EXPONENT_GROUP = 32
"""Values that share a base exponent in a lossless record."""

LEAST_ESCAPES = 4


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
        Values that share a scale or base exponent; 0 in a record without.
    aside
        Values of each head that are kept as they are, behind the scales; in a lossless record,
        exponents of the whole row.
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


@dataclass(frozen=True)
class Levels(RecordFormat):
    """Rotated heads in levels of a few bits: planes, scales, and the largest values set aside.

    For 8 heads x 128 with 6 bits and values set aside (K of `k6v4`): a plane of 4 bits for each
    value at 0 to 511, one of 2 bits at 512 to 767, scales at 768 to 783, 8 x 4 values of 16 bits
    at 784 to 847 and their 8 x 4 places at 848 to 879 = 55 x 16.

    Parameters
    ----------
    bits
        8, 6, 5 or 4 for each value.
    sets_aside
        Whether one value in 32 of a head, the largest, is kept as it is.
    group
        Values that share a scale, where heads are a multiple of it; None for the whole head.
    """

    bits: int
    sets_aside: bool = False
    group: int | None = None

    def layout(self, heads: int, head_dim: int, value_bytes: int) -> RecordLayout:
        if head_dim > MOST_PLACES:
            raise UsageError(
                f"head_dim must be at most {MOST_PLACES} for a rotated record, got {head_dim}; "
                f"use exact or int8-compact"
            )
        group = self.group if self.group and head_dim % self.group == 0 else head_dim
        aside = head_dim // VALUES_PER_ASIDE if self.sets_aside else 0
        # Scales are read as 16-bit values, so they begin at an even byte.
        payload = round_up(heads * head_dim * self.bits // 8, 2)
        scales = heads * (head_dim // group) * 2
        kept = heads * aside * ASIDE_BYTES
        return RecordLayout(
            heads=heads,
            head_dim=head_dim,
            payload_bytes=payload,
            scales_bytes=scales,
            record_bytes=round_up(payload + scales + kept, UNIT),
            aside_bytes=kept,
            value_bits=self.bits,
            group=group,
            aside=aside,
        )


@dataclass(frozen=True)
class Lossless(RecordFormat):
    """Sign and fraction as they are, the exponent in 4 bits below the largest of 32 values.

    For 8 heads x 128: signs and fractions at 0 to 1023, 4-bit codes at 1024 to 1535, a base
    exponent for each 32 values at 1536 to 1567, the exponents of up to 31 values that are too far
    below theirs at 1568 to 1598, and at 1599 a flag for a row that had more of those.
    """

    def layout(self, heads: int, head_dim: int, value_bytes: int) -> RecordLayout:
        values = heads * head_dim
        payload, bases = values + values // 2, -(-values // EXPONENT_GROUP)
        least = max(LEAST_ESCAPES, 3 * values // 128) + 1
        record = round_up(payload + bases + least, UNIT)
        kept = record - payload - bases
        return RecordLayout(
            heads=heads,
            head_dim=head_dim,
            payload_bytes=payload,
            scales_bytes=bases,
            record_bytes=record,
            aside_bytes=kept,
            value_bits=12,
            group=EXPONENT_GROUP,
            aside=kept - 1,
        )


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
