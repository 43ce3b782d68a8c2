"""A checksum of a token's K and V record in one layer, for `verification.py`.

    h = sum over sides and words w at place p of  mix(w xor p * 0x9E3779B9)   mod 2^32

A place is the layer, the side and the word's position in the record. `mix` is MurmurHash3's
finaliser (Austin Appleby, public domain), a bijection of 32-bit words: damage inside one word
always changes the sum, and so does any single flipped bit. Damage in several words, and a
record of another slot or layer, goes unseen once in 2^32. Padding is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hiqcache.codec.record import RecordLayout

PLACE = 0x9E3779B9 - 2**32
FIRST = 0x85EBCA6B - 2**32
SECOND = 0xC2B2AE35 - 2**32
"""As signed numbers: int32 arithmetic wraps to the same bits and is what every device has."""

MOST_WORDS = 1 << 16
"""Words of one record that a place can tell apart: 256 KiB."""


def words_of(layout: RecordLayout) -> int:
    """32-bit words that hold a record's payload and scales; the last may hold half."""
    return -(-layout.used_bytes // 4)


def checksums(
    records: Sequence[torch.Tensor], layouts: Sequence[RecordLayout], layer: int
) -> torch.Tensor:
    """The checksums of one layer's tokens.

    Parameters
    ----------
    records
        K's and V's, `[tokens, record_bytes]` uint8 each, on one device.
    layouts
        K's and V's.

    Returns
    -------
    Tensor
        `[tokens]` int32.
    """
    total = torch.zeros(len(records[0]), dtype=torch.int64, device=records[0].device)
    for side, (rows, layout) in enumerate(zip(records, layouts, strict=True)):
        words = words_of(layout)
        value = rows[:, : 4 * words].contiguous().view(torch.int32)
        if layout.used_bytes % 4:
            value[:, -1] &= 0xFFFF
        place = (2 * layer + side) * MOST_WORDS + torch.arange(words, device=rows.device)
        total += _mix(value ^ place.to(torch.int32) * PLACE).sum(1, dtype=torch.int64)
    return total.to(torch.int32)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x ^= (x >> 16) & 0xFFFF
    x *= FIRST
    x ^= (x >> 13) & 0x7FFFF
    x *= SECOND
    x ^= (x >> 16) & 0xFFFF
    return x
