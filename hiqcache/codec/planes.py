"""Values of 4, 5 and 6 bits as planes of whole bytes, so that every load is one.

A plane of the low 4 bits of each value, two in a byte; for 6 bits a plane of the high 2 bits
behind it, four in a byte; for 5 bits a plane of the high bit, eight in a byte. Values of 8 bits
are one plane. The first value of a byte has its lowest bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

NIBBLE = 4


def pack(values: Tensor, bits: int) -> Tensor:
    """Planes of values below 2^bits.

    Parameters
    ----------
    values
        `[tokens, n]` uint8, n a multiple of 8.

    Returns
    -------
    Tensor
        `[tokens, n * bits / 8]` uint8.
    """
    if bits == 8:
        return values
    low = _squeeze(values & 15, NIBBLE)
    return low if bits == NIBBLE else torch.cat((low, _squeeze(values >> 4, bits - NIBBLE)), 1)


def unpack(planes: Tensor, bits: int, count: int) -> Tensor:
    """The values of `pack`, `[tokens, count]` uint8."""
    if bits == 8:
        return planes[:, :count]
    low = _spread(planes[:, : count // 2], NIBBLE)
    if bits == NIBBLE:
        return low
    high = planes[:, count // 2 : count // 2 + count * (bits - NIBBLE) // 8]
    return low | (_spread(high, bits - NIBBLE) << 4)


def _squeeze(values: Tensor, bits: int) -> Tensor:
    parts = values.view(len(values), values.shape[1] * bits // 8, 8 // bits)
    packed = parts[:, :, 0].clone()
    for place in range(1, 8 // bits):
        packed |= parts[:, :, place] << (bits * place)
    return packed


def _spread(plane: Tensor, bits: int) -> Tensor:
    parts = [(plane >> (bits * place)) & ((1 << bits) - 1) for place in range(8 // bits)]
    return torch.stack(parts, -1).view(len(plane), plane.shape[1] * 8 // bits)
