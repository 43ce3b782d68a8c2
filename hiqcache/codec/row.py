"""The types that a device KV cache may have, and what a codec must know of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hiqcache.errors import UsageError


@dataclass(frozen=True)
class RowType:
    """A float of 16 or 8 bits: one sign bit, then exponent and fraction, ordered like integers.

    Parameters
    ----------
    label
        As written for people: BF16, FP16, E4M3, E5M2.
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

    @property
    def name(self) -> str:
        """As torch and config.json write it: bfloat16, float16, float8_e4m3fn, float8_e5m2."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def value_bytes(self) -> int:
        return self.dtype.itemsize

    @property
    def bits_dtype(self) -> torch.dtype:
        """An integer of the same width, of the few that torch calculates with."""
        return torch.int16 if self.value_bytes == 2 else torch.uint8

    def magnitudes(self, rows: Tensor) -> Tensor:
        """The bits of |x| as int32: ordered as the magnitudes are, infinity and NaN on top."""
        mask = (1 << (8 * self.value_bytes - 1)) - 1
        return (rows.view(self.bits_dtype) & mask).to(torch.int32)


BF16 = RowType(
    torch.bfloat16, "BF16", 0x7F80, 0x7FC0, 255 * 2.0**120, 2.0**-8, 2.0**-133, saturates=False
)
FP16 = RowType(torch.float16, "FP16", 0x7C00, 0x7E00, 65504.0, 2.0**-11, 2.0**-24, saturates=True)
E4M3 = RowType(torch.float8_e4m3fn, "E4M3", 0x7F, 0x7F, 448.0, 2.0**-4, 2.0**-9, saturates=True)
E5M2 = RowType(torch.float8_e5m2, "E5M2", 0x7C, 0x7F, 57344.0, 2.0**-3, 2.0**-16, saturates=True)
ROW_TYPES: dict[torch.dtype, RowType] = {kind.dtype: kind for kind in (BF16, FP16, E4M3, E5M2)}
"""Every type of row that some codec encodes, by its torch type."""

SIXTEEN_BIT_ROWS: dict[torch.dtype, RowType] = {kind.dtype: kind for kind in (BF16, FP16)}
"""Those that every codec but `exact` encodes."""


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
        names = ", ".join(kind.name for kind in ROW_TYPES.values())
        raise UsageError(f"rows of {dtype} cannot be encoded: expected one of {names}") from None
