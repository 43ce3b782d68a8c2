"""Checks that L2 still holds what was put there; a pool keeps one beside its transfer.

`HIQCACHE_VERIFY` asks for it. `kernel_verification.py` has the one for GPUs.
"""

from __future__ import annotations

import torch

from hiqcache.errors import IntegrityError
from hiqcache.transfer.base import Side
from hiqcache.transfer.checksum import checksums


class Verification:
    """Makes a checksum of every record pair behind a backup and compares it behind a restore.

    The checksums lie beside L2, `[layers, host_slots]` int32: 4 bytes per token and layer. They
    are made of what host memory holds, not of what was sent there. A mismatch is counted; the
    caller asks for the count once it has waited for what a restore was for, and before anybody
    sees it. This one works on the CPU, where a copy is over when its call returns.

    Parameters
    ----------
    k, v
        The pool's sides.
    every
        Tokens whose host slot is a multiple of this are looked at.
    """

    device_bytes = 0
    """GPU memory that it holds."""

    def __init__(self, k: Side, v: Side, every: int) -> None:
        self.k, self.v = k, v
        self.every = every
        self.layers = len(k.host)
        pinned = k.device[0].device.type == "cuda"
        shape = (self.layers, len(k.host[0]))
        self.table = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self._found = 0

    @property
    def checksum_bytes(self) -> int:
        """Host memory that it holds beside L2."""
        return self.table.nbytes

    def warm_up(self) -> None:
        """Compile and load what a call can launch, before there is traffic."""

    def mismatches(self) -> int:
        """Records pairs found so far that differ from their checksum.

        Never waits: what a device has not finished yet is missing.
        """
        return self._found

    def after_backup(self, host_slots: torch.Tensor) -> None:
        """Make the checksums of records that the transfer has just written."""
        self.adopt(host_slots.cpu())

    def after_restore(self, host_slots: torch.Tensor, layer: int) -> None:
        """Compare one layer's records that the transfer has just read."""
        self._compare(host_slots.cpu(), layer)

    def adopt(self, host_slots: torch.Tensor) -> None:
        """Make the checksums of records that somebody else has written, on the CPU."""
        slots = self._chosen(host_slots)
        for layer in range(self.layers):
            self.table[layer, slots] = self._checksums(slots, layer)

    def require(self, host_slots: torch.Tensor) -> None:
        """Compare, on the CPU, records that somebody else is about to read.

        Raises
        ------
        IntegrityError
            They are not what was backed up, or others were not before.
        """
        for layer in range(self.layers):
            self._compare(host_slots, layer)
        if self.mismatches():
            raise IntegrityError("L2 is damaged: nothing goes to L3 any more")

    def _compare(self, host_slots: torch.Tensor, layer: int) -> None:
        slots = self._chosen(host_slots)
        now = self._checksums(slots, layer)
        self._found += int((now != self.table[layer, slots]).sum())

    def _chosen(self, host_slots: torch.Tensor) -> torch.Tensor:
        return host_slots[host_slots % self.every == 0]

    def _checksums(self, slots: torch.Tensor, layer: int) -> torch.Tensor:
        records = [side.host[layer].index_select(0, slots) for side in (self.k, self.v)]
        return checksums(records, (self.k.layout, self.v.layout), layer)
