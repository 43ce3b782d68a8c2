"""A transfer that looks at L2: what is restored must be what was backed up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hiqcache.errors import IntegrityError
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.checksum import Verify, checksums


class VerifiedTransfer(Transfer):
    """Makes a checksum of every record pair behind a backup and compares it behind a restore.

    The checksums lie beside L2, `[layers, host_slots]` int32: 4 bytes a token and layer. They
    are made of what host memory holds, not of what was sent there, and compared with what it
    holds when it is restored. A mismatch is counted; the caller asks for the count once it has
    waited for what a restore was for, and before anybody sees it.

    Parameters
    ----------
    inner
        What moves the records.
    verify
        Which tokens are looked at.
    """

    def __init__(self, inner: Transfer, verify: Verify) -> None:
        super().__init__(inner.codec, inner.k, inner.v, inner.programs)
        self.name = inner.name
        self.inner = inner
        self.verify = verify
        self.layers = len(self.k.host)
        shape = (self.layers, len(self.k.host[0]))
        pinned = self.device.type == "cuda"
        self.table = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self._found = 0

    @property
    def staging_bytes(self) -> int:
        return self.inner.staging_bytes

    @property
    def checksum_bytes(self) -> int:
        return self.table.nbytes

    def broken_heads(self) -> int | None:
        return self.inner.broken_heads()

    def warm_up(self) -> None:
        self.inner.warm_up()

    def mismatches(self) -> int:
        return self._found

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self.inner.backup(device_slots, host_slots)
        self.adopt(host_slots)

    def begin_restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self.inner.begin_restore(device_slots, host_slots)

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        self.inner.restore(device_slots, host_slots, layer)
        self._compare(host_slots.cpu(), layer)

    def adopt(self, host_slots: torch.Tensor) -> None:
        """Take the records at `host_slots` as they are now; for those that L3 brought, too."""
        slots = self._chosen(host_slots.cpu())
        for layer, now in self._now(slots):
            self.table[layer, slots] = now

    def require(self, host_slots: torch.Tensor) -> None:
        """Look at records that are to leave L2 another way.

        Raises
        ------
        IntegrityError
            They are not what was backed up, or others have not been before.
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
        return host_slots[self.verify.chosen(host_slots)]

    def _now(self, slots: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        for layer in range(self.layers):
            yield layer, self._checksums(slots, layer)

    def _checksums(self, slots: torch.Tensor, layer: int) -> torch.Tensor:
        records = [side.host[layer].index_select(0, slots) for side in (self.k, self.v)]
        return checksums(records, (self.k.layout, self.v.layout), layer)
