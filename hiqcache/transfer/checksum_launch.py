"""A pool's checksum kernel, compiled once, and the transfer that launches it on the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hiqcache.transfer import checksum_kernels
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.checksum import Verify
from hiqcache.transfer.count import DeviceCount
from hiqcache.transfer.launch import INTERPRETED, PROGRAMS, WARPS, slots_on
from hiqcache.transfer.verified import VerifiedTransfer

ROWS, WIDTH = 8, 256
"""A program holds 256 words of 8 records: 8 KiB, as much as the row kernels' tile."""
NUMBERS = 9


class KernelVerifiedTransfer(VerifiedTransfer):
    """Reads records from the GPU, on the stream of the copy, without waiting for it."""

    def __init__(self, inner: Transfer, verify: Verify) -> None:
        super().__init__(inner, verify)
        addresses = [[records.data_ptr() for records in side.host] for side in (self.k, self.v)]
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device=self.device)
        self._count = DeviceCount(self.device)
        k, v = ((s.host[0].stride(0), s.layout.used_bytes) for s in (self.k, self.v))
        self._constants = (verify.every, *k, *v, ROWS, WIDTH)
        self._grid = (inner.programs or PROGRAMS, 1, 1)
        self._kernel: Callable[..., None] | None = None

    @property
    def staging_bytes(self) -> int:
        return self.inner.staging_bytes + self._addresses.nbytes + self._count.count.nbytes

    def warm_up(self) -> None:
        super().warm_up()
        if INTERPRETED:
            self._kernel = checksum_kernels.verify[self._grid]
            return
        arguments = (*(0,) * NUMBERS, *self._constants)
        with torch.cuda.device(self.device):
            compiled = checksum_kernels.verify.warmup(*arguments, grid=self._grid, num_warps=WARPS)
            self._kernel = compiled[self._grid]

    def mismatches(self) -> int:
        return super().mismatches() + self._count.seen()

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        host_slots = slots_on(self.device, host_slots)
        self.inner.backup(device_slots, host_slots)
        self._launch(host_slots, 0, self.layers, 0)

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        # As they came: the inner transfer knows an announced restore by its tensors.
        self.inner.restore(device_slots, host_slots, layer)
        host_slots = slots_on(self.device, host_slots)
        self._launch(host_slots, layer, layer + 1, self._count.count.data_ptr())
        # Layers come in order: one small copy a restore says what all of them found.
        if layer == self.layers - 1:
            self._count.publish()

    def _launch(self, host_slots: torch.Tensor, first: int, end: int, mismatches: int) -> None:
        if self._kernel is None:
            self.warm_up()
        assert self._kernel is not None
        if host_slots.numel():
            self._kernel(
                self._addresses.data_ptr(),
                self.table.data_ptr(),
                host_slots.data_ptr(),
                host_slots.numel(),
                self.table.shape[1],
                self.layers,
                first,
                end,
                mismatches,
                *self._constants,
            )
