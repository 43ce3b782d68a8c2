"""The `fused` transfer: one kernel a direction between the GPU's rows and pinned records.

Backup reads rows and writes finished records straight into host memory; restore reads records
over the link and writes rows. The only GPU memory it holds is a table of addresses and a count
for each layer.
"""

from __future__ import annotations

import logging

import torch

from hiqcache.codec.base import Codec
from hiqcache.config import FUSED
from hiqcache.transfer.base import Side, Transfer
from hiqcache.transfer.launch import RowKernels, slots_on
from hiqcache.transfer.layerwise import LayerwiseRestore

logger = logging.getLogger(__name__)


class FusedTransfer(Transfer):
    """Needs host memory that kernels reach under its CPU address: see `host_access`.

    A restore that was announced by `begin_restore` is one launch; any other is one per layer.
    """

    name = FUSED

    def __init__(self, codec: Codec, k: Side, v: Side, programs: int | None = None) -> None:
        super().__init__(codec, k, v, programs)
        self._kernels = RowKernels(codec, k, v, programs)
        self._announced = LayerwiseRestore(self._kernels)

    @property
    def device_bytes(self) -> int:
        return self._kernels.device_bytes + self._announced.device_bytes

    def nonfinite_heads(self) -> int | None:
        return self._kernels.nonfinite_heads() if self.codec.marks_broken_heads else None

    def inexact_rows(self) -> int | None:
        return self._kernels.inexact_rows() if self.codec.entry.marks_inexact_rows else None

    def warm_up(self) -> None:
        self._kernels.compile()
        reason = self._announced.prepare()
        if reason:
            logger.warning("HiQCache: a restore takes a launch per layer: %s", reason)

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self._kernels.encode(slots_on(self.device, device_slots), slots_on(self.device, host_slots))

    def begin_restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self._announced.begin(device_slots, host_slots)

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        if self._announced.carries(device_slots, host_slots):
            self._announced.wait(layer)
            return
        self._announced.finish()
        self._kernels.decode(
            slots_on(self.device, device_slots),
            slots_on(self.device, host_slots),
            range(layer, layer + 1),
        )
