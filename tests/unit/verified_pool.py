"""A small pool with a verification beside its transfer, and the checksum in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hiqcache.codec.record import RecordLayout
from hiqcache.codec.registry import get_codec
from hiqcache.config import VERIFY_EVERY
from hiqcache.transfer.base import Side, Transfer
from hiqcache.transfer.torch_transfer import TorchTransfer
from hiqcache.transfer.verification import Verification
from tests.unit.kernel_pool import Shape, fill, make_sides, some_slots

INPUTS = ("random_unit", "random_large", "scattered_patterns")


@dataclass(frozen=True)
class VerifiedPool:
    transfer: Transfer
    checks: Verification
    k: Side
    v: Side
    slots: torch.Tensor

    def backup(self) -> None:
        self.transfer.backup(self.slots, self.slots)
        self.checks.after_backup(self.slots)

    def restore(self) -> None:
        """All layers, into other rows."""
        for layer in range(len(self.k.host)):
            self.transfer.restore(self.slots.flip(0), self.slots, layer)
            self.checks.after_restore(self.slots, layer)


def verified_pool(
    codec: str,
    shape: Shape,
    *,
    tokens: int = 23,
    mode: str = "full",
    kind: type[Verification] = Verification,
    moves: type[Transfer] = TorchTransfer,
    device: str = "cpu",
) -> VerifiedPool:
    """Backed up once, at slots in any order."""
    made = get_codec(codec)
    k, v = make_sides(made, shape, device)
    slots = some_slots(shape, tokens, 3)
    for seed, side in enumerate((k, v)):
        fill(side, slots, INPUTS, seed)
    pool = VerifiedPool(moves(made, k, v, 2), kind(k, v, VERIFY_EVERY[mode]), k, v, slots)
    pool.transfer.warm_up()
    pool.checks.warm_up()
    pool.backup()
    return pool


def reference_checksum(
    records: Sequence[torch.Tensor], layouts: Sequence[RecordLayout], layer: int
) -> int:
    total = 0
    for side, (record, layout) in enumerate(zip(records, layouts, strict=True)):
        used = bytes(record[: layout.used_bytes].tolist()) + bytes(-layout.used_bytes % 4)
        for place in range(len(used) // 4):
            x = int.from_bytes(used[4 * place : 4 * place + 4], "little")
            x ^= ((2 * layer + side) * 65536 + place) * 0x9E3779B9 & 0xFFFFFFFF
            x ^= x >> 16
            x = x * 0x85EBCA6B & 0xFFFFFFFF
            x ^= x >> 13
            x = x * 0xC2B2AE35 & 0xFFFFFFFF
            total += x ^ x >> 16
    return total & 0xFFFFFFFF
