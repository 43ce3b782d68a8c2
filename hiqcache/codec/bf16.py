"""The identity codec: a record is the row's own bytes. The control for every other codec."""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout


class Bf16Codec(Codec):
    """Copies a row bit for bit, NaN payloads included; 2048 bytes for 8 heads x 128."""

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        _values(out, layout).copy_(rows)

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        out.copy_(_values(records, layout))


def _values(records: Tensor, layout: RecordLayout) -> Tensor:
    """The payload in place, as `[tokens, heads, head_dim]` bf16."""
    payload = records[:, : layout.payload_bytes].view(torch.bfloat16)
    return payload.view(len(records), layout.heads, layout.head_dim)
