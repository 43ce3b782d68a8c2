"""The identity codec: a record is the row's own bytes. The control for every other codec."""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout


class Bf16Codec(Codec):
    """Copies a row bit for bit, NaN payloads included; 2048 bytes for 8 heads x 128.

    Named after what most models keep; FP16 rows are 16 bits a value too.
    """

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        _values(out, layout).copy_(rows.view(torch.int16))

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        out.view(torch.int16).copy_(_values(records, layout))


def _values(records: Tensor, layout: RecordLayout) -> Tensor:
    """The payload in place, as `[tokens, heads, head_dim]` int16."""
    payload = records[:, : layout.payload_bytes].view(torch.int16)
    return payload.view(len(records), layout.heads, layout.head_dim)
