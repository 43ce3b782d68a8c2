"""The 16-bit types that a device KV cache may have, and what a codec must know of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hiqcache.errors import UsageError


@dataclass(frozen=True)
class RowType:
    """A 16-bit float: one sign bit, then exponent and fraction, ordered like integers.

    Parameters
    ----------
    label
        As written for people: BF16, FP16.
    infinity_bits
        Magnitudes from here on are infinity and NaN.
    nan_bits
        The one NaN that a decoder writes, of the many that there are.
    largest
        The largest finite value.
    unit_roundoff
        The largest relative error of rounding to a normal number, to nearest.
    subnormal_step
        The distance between two subnormal numbers.
    saturates
        Whether `127 * scale` can pass `largest`, so that decoding has to stop there. BF16's
        absmax ceiling keeps it below; FP16 has its largest value in reach of every model.
    """

    dtype: torch.dtype
    label: str
    infinity_bits: int
    nan_bits: int
    largest: float
    unit_roundoff: float
    subnormal_step: float
    saturates: bool


BF16 = RowType(
    torch.bfloat16, "BF16", 0x7F80, 0x7FC0, 255 * 2.0**120, 2.0**-8, 2.0**-133, saturates=False
)
FP16 = RowType(torch.float16, "FP16", 0x7C00, 0x7E00, 65504.0, 2.0**-11, 2.0**-24, saturates=True)
ROW_TYPES: dict[torch.dtype, RowType] = {kind.dtype: kind for kind in (BF16, FP16)}
"""Every type of row that can be encoded, by its torch type."""


def row_type(dtype: torch.dtype) -> RowType:
    """What a codec must know of rows of a torch type.

    Raises
    ------
    UsageError
        A type that is not encoded; the message lists those that are.
    """
    try:
        return ROW_TYPES[dtype]
    except KeyError:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in ROW_TYPES)
        raise UsageError(f"rows of {dtype} cannot be encoded: expected one of {names}") from None
