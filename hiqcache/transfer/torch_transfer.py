"""The `torch` transfer: PyTorch gather, encode, scatter on any device.

The reference that `fused` is held against, what CPUs use, and the fallback where `fused` cannot
work. On a GPU it waits for the device, since a CPU has to scatter into the host buffer.
"""

from __future__ import annotations

import torch

from hiqcache.codec.base import Codec
from hiqcache.config import TORCH
from hiqcache.transfer.base import Side, Transfer, as_bits
from hiqcache.transfer.counter import DeviceCounter


class TorchTransfer(Transfer):
    name = TORCH

    def __init__(self, codec: Codec, k: Side, v: Side, programs: int | None = None) -> None:
        super().__init__(codec, k, v, programs)
        self._counter = DeviceCounter(self.device, counts=2)

    def nonfinite_heads(self) -> int | None:
        return self._counter.seen(0) if self.codec.marks_broken_heads else None

    def inexact_rows(self) -> int | None:
        return self._counter.seen(1) if self.codec.entry.marks_inexact_rows else None

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        host_slots = host_slots.cpu()
        for side in (self.k, self.v):
            for rows, records in zip(side.device, side.host, strict=True):
                self._backup_layer(side, rows, records, device_slots, host_slots)
        self._counter.publish()

    def _backup_layer(
        self,
        side: Side,
        rows: torch.Tensor,
        records: torch.Tensor,
        device_slots: torch.Tensor,
        host_slots: torch.Tensor,
    ) -> None:
        used = side.layout.used_bytes
        gathered = as_bits(rows).index_select(0, device_slots.to(rows.device)).view(rows.dtype)
        encoded = self.codec.encode(gathered, side.layout)[:, :used]
        if self.codec.marks_broken_heads:
            self._counter.count[0] += self.codec.broken_heads(encoded, side.layout).sum()
        if self.codec.entry.marks_inexact_rows:
            self._counter.count[1] += self.codec.inexact_rows(encoded, side.layout).sum()
        records[:, :used].index_copy_(0, host_slots, encoded.to(records.device))

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        host_slots = host_slots.cpu()
        for side in (self.k, self.v):
            rows = side.device[layer]
            records = side.host[layer].index_select(0, host_slots).to(rows.device)
            decoded = self.codec.decode(records, side.layout, dtype=rows.dtype)
            as_bits(rows).index_copy_(0, device_slots.to(rows.device), as_bits(decoded))
