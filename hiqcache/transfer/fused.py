"""The `fused` transfer: one kernel a direction between the GPU's rows and pinned records.

Backup reads BF16 rows and writes finished records straight into host memory; restore reads
records over the link and writes BF16 rows. Nothing is staged: the only GPU memory it holds is
a table of addresses and a count for each layer.
"""

from __future__ import annotations

import logging

import torch

from hiqcache.codec.base import Codec
from hiqcache.transfer.ahead import RestoreAhead
from hiqcache.transfer.base import Side, Transfer
from hiqcache.transfer.launch import RowKernels, slots_on

logger = logging.getLogger(__name__)


class FusedTransfer(Transfer):
    """Needs host memory that kernels reach under its CPU address: see `reach`.

    A restore that was announced by `begin_restore` is one launch; any other is one a layer.
    """

    name = "fused"

    def __init__(self, codec: Codec, k: Side, v: Side, programs: int | None = None) -> None:
        super().__init__(codec, k, v, programs)
        self._kernels = RowKernels(codec, k, v, programs)
        self._ahead = RestoreAhead(self._kernels)

    @property
    def staging_bytes(self) -> int:
        return self._kernels.device_bytes + self._ahead.device_bytes

    def broken_heads(self) -> int | None:
        return self._kernels.broken_heads.seen() if self.codec.marks_broken_heads else None

    def warm_up(self) -> None:
        self._kernels.compile()
        reason = self._ahead.prepare()
        if reason:
            logger.warning("HiQCache: a restore takes a launch a layer: %s", reason)

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self._kernels.encode(slots_on(self.device, device_slots), slots_on(self.device, host_slots))

    def begin_restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        self._ahead.begin(device_slots, host_slots)

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        if self._ahead.carries(device_slots, host_slots):
            self._ahead.wait(layer)
            return
        self._ahead.finish()
        self._kernels.decode(
            slots_on(self.device, device_slots),
            slots_on(self.device, host_slots),
            range(layer, layer + 1),
        )
