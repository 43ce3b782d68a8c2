"""Hold what a codec made of rows to what the codec promises, whichever codec it is."""

from __future__ import annotations

from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.bound import measure_error
from hiqcache.codec.bound_report import BoundReport, BoundViolation
from hiqcache.codec.int8 import Int8Codec
from hiqcache.codec.ladder import LadderCodec
from hiqcache.codec.ladder_bound import measure_ladder_error
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import row_type


def verified_error(
    codec: Codec, rows: Tensor, records: Tensor, layout: RecordLayout, decoded: Tensor
) -> BoundReport | None:
    """The bound's report; None for a codec that must be, and is, exact to the bit.

    Parameters
    ----------
    rows, decoded
        `[tokens, heads, head_dim]` of one type: what was encoded, and what came back.
    records
        `[tokens, record_bytes]` uint8.

    Raises
    ------
    BoundViolation
        Says which rules were broken, where first, and how often.
    """
    match codec:
        case Int8Codec():
            return measure_error(rows, records, layout, decoded).accept()
        case LadderCodec():
            return measure_ladder_error(rows, records, layout, decoded).accept()
    bits = row_type(rows.dtype).bits_dtype
    differs = (rows.view(bits) != decoded.view(bits)).flatten(1).any(1)
    if codec.entry.marks_inexact_rows:
        differs &= ~codec.inexact_rows(records, layout)
    if differs.any():
        raise BoundViolation(
            f"codec {codec.name} did not return {int(differs.sum())} of {len(rows)} rows bit for "
            f"bit, first of them row {int(differs.nonzero()[0])}"
        )
    return None
