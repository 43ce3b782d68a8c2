"""The identity codec: a record is the row's own bytes. The control for every other codec."""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import row_type
from hiqcache.errors import UsageError


class Bf16Codec(Codec):
    """Copies a row bit for bit, NaN payloads included; 2048 bytes for 8 heads x 128.

    Named after what most models keep; FP16 and fp8 rows are kept just so.
    """

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        bits = _bits(rows, layout)
        _values(out, layout, bits).copy_(rows.view(bits))

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        bits = _bits(out, layout)
        out.view(bits).copy_(_values(records, layout, bits))


def _bits(rows: Tensor, layout: RecordLayout) -> torch.dtype:
    """An integer as wide as a value, which the layout must have been made for."""
    kind = row_type(rows.dtype)
    if 8 * kind.value_bytes != layout.value_bits:
        raise UsageError(
            f"rows: expected values of {layout.value_bits} bits as in the layout, got {kind.name}; "
            f"pass layout(side, heads, head_dim, value_bytes={kind.value_bytes})"
        )
    return kind.bits_dtype


def _values(records: Tensor, layout: RecordLayout, bits: torch.dtype) -> Tensor:
    """The payload in place, as `[tokens, heads, head_dim]` integers as wide as a value."""
    payload = records[:, : layout.payload_bytes].view(bits)
    return payload.view(len(records), layout.heads, layout.head_dim)
