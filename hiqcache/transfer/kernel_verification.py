"""Verification by a kernel that reads records over the link, beside the `fused` transfer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hiqcache.transfer.base import Side
from hiqcache.transfer.counter import DeviceCounter
from hiqcache.transfer.kernels.checksum import verify
from hiqcache.transfer.launch import INTERPRETED, slots_on
from hiqcache.transfer.verification import Verification

ROWS, WIDTH, WARPS, PROGRAMS = 8, 256, 8, 48
"""A program holds 256 words of 8 records: 8 KiB, as much as the row kernels' tile."""
NUMBERS = 9


class KernelVerification(Verification):
    """Works on the stream of the copy, without waiting for it."""

    def __init__(self, k: Side, v: Side, every: int, programs: int | None = None) -> None:
        super().__init__(k, v, every)
        self.device = k.device[0].device
        addresses = [[records.data_ptr() for records in side.host] for side in (k, v)]
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device=self.device)
        self._counter = DeviceCounter(self.device)
        strides = (
            size for side in (k, v) for size in (side.host[0].stride(0), side.layout.used_bytes)
        )
        self._constants = (every, *strides, ROWS, WIDTH)
        self._grid = (programs or PROGRAMS, 1, 1)
        self._kernel: Callable[..., None] | None = None

    @property
    def device_bytes(self) -> int:  # type: ignore[override]
        return self._addresses.nbytes + self._counter.count.nbytes

    def warm_up(self) -> None:
        if INTERPRETED:
            self._kernel = verify[self._grid]
            return
        arguments = (*(0,) * NUMBERS, *self._constants)
        with torch.cuda.device(self.device):
            compiled = verify.warmup(*arguments, grid=self._grid, num_warps=WARPS)
            self._kernel = compiled[self._grid]

    def mismatches(self) -> int:
        return super().mismatches() + self._counter.seen()

    def after_backup(self, host_slots: torch.Tensor) -> None:
        self._launch(host_slots, 0, self.layers, 0)

    def after_restore(self, host_slots: torch.Tensor, layer: int) -> None:
        self._launch(host_slots, layer, layer + 1, self._counter.count.data_ptr())
        # Layers come in order: one small copy per restore says what all of them found.
        if layer == self.layers - 1:
            self._counter.publish()

    def _launch(self, host_slots: torch.Tensor, first: int, end: int, mismatches: int) -> None:
        if self._kernel is None:
            self.warm_up()
        assert self._kernel is not None
        host_slots = slots_on(self.device, host_slots)
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
