"""The `torch` transfer: PyTorch gather, encode, scatter on any device.

The reference that the other transfers are held against, and the one that CPUs use. On a GPU
it is correct but waits for the device, since a CPU has to scatter into the host buffer.
"""

from __future__ import annotations

import torch

from hiqcache.transfer.base import Side, Transfer


class TorchTransfer(Transfer):
    name = "torch"

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        host_slots = host_slots.cpu()
        for side in (self.k, self.v):
            for rows, records in zip(side.device, side.host, strict=True):
                self._backup_layer(side, rows, records, device_slots, host_slots)

    def _backup_layer(
        self,
        side: Side,
        rows: torch.Tensor,
        records: torch.Tensor,
        device_slots: torch.Tensor,
        host_slots: torch.Tensor,
    ) -> None:
        used = side.layout.used_bytes
        gathered = rows.index_select(0, device_slots.to(rows.device))
        encoded = self.codec.encode(gathered, side.layout)[:, :used]
        records[:, :used].index_copy_(0, host_slots, encoded.to(records.device))

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        host_slots = host_slots.cpu()
        for side in (self.k, self.v):
            rows = side.device[layer]
            records = side.host[layer].index_select(0, host_slots).to(rows.device)
            decoded = self.codec.decode(records, side.layout)
            rows.index_copy_(0, device_slots.to(rows.device), decoded)
