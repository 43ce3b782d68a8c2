"""The `staged` transfer: encode on the GPU, then let SGLang's byte mover carry the records.

The path that HiQCache's forerunner took. It is what to fall back on where the `fused` kernels
cannot address host memory, and what they are measured against.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hiqcache.codec.base import Codec
from hiqcache.transfer.base import Side, Transfer
from hiqcache.transfer.launch import RowKernels, slots_on
from hiqcache.transfer.mover import Mover, Pair, Route, sglang_mover

STAGING_BYTES = 64 * 2**20
"""Records that a direction holds on the GPU at once; longer transfers go in chunks."""


class StagedTransfer(Transfer):
    """Two stagings of at most `staging_limit` bytes, one a direction, fixed from the start.

    Backup stages all layers of a chunk of tokens, restore one layer: a mover's launch each.
    Whole records travel, the padding with them: it is zero in the staging and stays zero in
    the host buffer. That is what movers that take multiples of 128 bytes were padded for.

    Parameters
    ----------
    mover
        Builds what copies records between staging and host; SGLang's when None.
    """

    name = "staged"

    def __init__(
        self,
        codec: Codec,
        k: Side,
        v: Side,
        programs: int | None = None,
        *,
        mover: Callable[[Route], Mover] | None = None,
        staging_limit: int = STAGING_BYTES,
    ) -> None:
        super().__init__(codec, k, v, programs)
        layers, most = len(k.device), len(k.host[0])
        record = k.layout.record_bytes + v.layout.record_bytes
        self.backup_chunk = min(most, max(1, staging_limit // (layers * record)))
        self.restore_chunk = min(most, max(1, staging_limit // record))
        outgoing = self._stage(layers, self.backup_chunk)
        incoming = self._stage(1, self.restore_chunk)
        self._staging = (*outgoing, *incoming)
        self._order = torch.arange(
            max(self.backup_chunk, self.restore_chunk), device=self.device, dtype=torch.int64
        )
        self.encoder = self._kernels([stage.unbind(0) for stage in outgoing])
        self.decoder = self._kernels([(stage[0],) * layers for stage in incoming])
        route = Route(
            host=(k.host, v.host),
            outgoing=(tuple(outgoing[0].unbind(0)), tuple(outgoing[1].unbind(0))),
            incoming=(incoming[0][0], incoming[1][0]),
        )
        self.mover = (mover or sglang_mover)(route)

    @property
    def staging_bytes(self) -> int:
        kernels = self.encoder.device_bytes + self.decoder.device_bytes
        return kernels + sum(tensor.nbytes for tensor in (*self._staging, self._order))

    def broken_heads(self) -> int | None:
        return self.encoder.broken_heads.seen() if self.codec.marks_broken_heads else None

    def warm_up(self) -> None:
        self.encoder.compile()
        self.decoder.compile()

    def backup(self, device_slots: torch.Tensor, host_slots: torch.Tensor) -> None:
        device_slots = slots_on(self.device, device_slots)
        host_slots = slots_on(self.device, host_slots)
        for first in range(0, len(host_slots), self.backup_chunk):
            chunk = host_slots[first : first + self.backup_chunk]
            order = self._order[: len(chunk)]
            self.encoder.encode(device_slots[first : first + len(chunk)], order)
            self.mover.to_host(chunk, order)

    def restore(self, device_slots: torch.Tensor, host_slots: torch.Tensor, layer: int) -> None:
        device_slots = slots_on(self.device, device_slots)
        host_slots = slots_on(self.device, host_slots)
        for first in range(0, len(host_slots), self.restore_chunk):
            chunk = host_slots[first : first + self.restore_chunk]
            order = self._order[: len(chunk)]
            self.mover.to_staging(chunk, order, layer)
            rows = device_slots[first : first + len(chunk)]
            self.decoder.decode(rows, order, range(layer, layer + 1))

    def _stage(self, layers: int, tokens: int) -> Pair:
        """Zeros, so that the padding that travels is zero."""
        k, v = (
            torch.zeros(
                (layers, tokens, side.layout.record_bytes), dtype=torch.uint8, device=self.device
            )
            for side in (self.k, self.v)
        )
        return k, v

    def _kernels(self, records: list[tuple[torch.Tensor, ...]]) -> RowKernels:
        k, v = (
            Side(side.layout, side.device, tuple(staged))
            for side, staged in zip((self.k, self.v), records, strict=True)
        )
        return RowKernels(self.codec, k, v, self.programs)
