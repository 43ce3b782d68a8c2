"""`exact`: BF16 rows restored bit for bit, in 12 bits for each value and a little.

A BF16 has 8 bits of exponent, and the exponents of a row carry under 3 bits of information.
Signs and fractions are kept as they are. Of 32 values the largest finite exponent is their base,
and each has its distance to it in 4 bits: 0 to 14. 15 is an escape, whose exponent stands in a
list behind: the k-th escape of the row, in the order of its values, has the k-th place. NaN and
infinity are escapes (exponent 255), so bases come from finite values.

A row with more escapes than places is not kept bit for bit. A value without a place is restored
as a zero of its sign, which it was nearer to than 2^(base - 14), and zeros are kept exactly so.
A NaN or an infinity without a place makes NaN of its 32 values, whose base is then 255. The
record's last byte is 1 if any value of its row changed: counted, shown, never silent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hiqcache.codec import planes
from hiqcache.codec.base import Codec
from hiqcache.codec.record import EXPONENT_GROUP, RecordLayout
from hiqcache.codec.row import BF16

ESCAPE = 15
BEYOND = 255
"""The exponent of NaN and infinity; as a base, the mark of 32 values that are NaN."""
FRACTION_BITS = 7
FRACTION = (1 << FRACTION_BITS) - 1


@dataclass(frozen=True)
class Parts:
    """The parts of lossless records in place, each `[tokens, bytes]` uint8; `flag` one byte."""

    raw: Tensor
    codes: Tensor
    bases: Tensor
    escapes: Tensor
    flag: Tensor


def split_records(records: Tensor, layout: RecordLayout) -> Parts:
    """The parts of `[tokens, record_bytes]` uint8, without a copy."""
    values = layout.heads * layout.head_dim
    bases = layout.payload_bytes + layout.scales_bytes
    return Parts(
        raw=records[:, :values],
        codes=records[:, values : layout.payload_bytes],
        bases=records[:, layout.payload_bytes : bases],
        escapes=records[:, bases : bases + layout.aside],
        flag=records[:, bases + layout.aside],
    )


class ExactCodec(Codec):
    """BF16 in 12 bits a value; 1600 bytes for 8 heads x 128."""

    def inexact_rows(self, records: Tensor, layout: RecordLayout) -> Tensor:
        return split_records(records, layout).flag != 0

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        parts = split_records(out, layout)
        bits = rows.contiguous().flatten(1).view(torch.int16).to(torch.int32) & 0xFFFF
        exponent, fraction = (bits >> FRACTION_BITS) & 0xFF, bits & FRACTION
        parts.raw.copy_(((bits >> 8) & 0x80) | fraction)

        finite = exponent.masked_fill(exponent == BEYOND, 0)
        base = _groups(finite).amax(-1)
        distance = _spread(base, layout) - exponent
        # An infinity is above its base.
        escapes = (distance >= ESCAPE) | (distance < 0)
        codes = distance.masked_fill(escapes, ESCAPE).to(torch.uint8)
        parts.codes.copy_(planes.pack(codes, planes.NIBBLE))

        rank = escapes.cumsum(-1, dtype=torch.int32).long() - 1
        placed = escapes & (rank < layout.aside)
        # One place more, for what has none.
        listed = torch.zeros(len(rows), layout.aside + 1, dtype=torch.int32, device=rows.device)
        listed.scatter_(-1, rank.masked_fill(~placed, layout.aside), exponent)
        parts.escapes.copy_(listed[:, : layout.aside])

        lost = escapes & ~placed
        broken = _groups(lost & (exponent == BEYOND)).any(-1)
        parts.bases.copy_(base.masked_fill(broken, BEYOND))
        zero = (exponent == 0) & (fraction == 0)
        parts.flag.copy_((lost & ~zero).any(-1))

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        parts = split_records(records, layout)
        count = layout.heads * layout.head_dim
        raw, base = parts.raw.to(torch.int32), _spread(parts.bases.to(torch.int32), layout)
        codes = planes.unpack(parts.codes, planes.NIBBLE, count).to(torch.int32)
        escapes = codes == ESCAPE
        rank = (escapes.cumsum(-1, dtype=torch.int32).long() - 1).clamp_(min=0)
        placed = rank < layout.aside
        listed = parts.escapes.to(torch.int32).gather(-1, rank.clamp_(max=layout.aside - 1))
        exponent = torch.where(escapes, listed, base - codes)
        bits = ((raw & 0x80) << 8) | (exponent << FRACTION_BITS) | (raw & FRACTION)
        bits = torch.where(escapes & ~placed, (raw & 0x80) << 8, bits)
        bits = bits.masked_fill(base == BEYOND, BF16.nan_bits)
        bits = torch.where(bits >= 0x8000, bits - 0x10000, bits).to(torch.int16)
        out.view(torch.int16).copy_(bits.view(out.shape))


def _groups(values: Tensor) -> Tensor:
    """`[tokens, groups, 32]`; the last group is filled up with zeros."""
    missing = -values.shape[1] % EXPONENT_GROUP
    padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
    return padded.view(len(values), padded.shape[1] // EXPONENT_GROUP, EXPONENT_GROUP)


def _spread(bases: Tensor, layout: RecordLayout) -> Tensor:
    """Each group's base for each of its values, `[tokens, values]`."""
    spread = bases.unsqueeze(-1).expand(-1, -1, EXPONENT_GROUP).flatten(1)
    return spread[:, : layout.heads * layout.head_dim]
