"""INT8 records of rotated heads: the same bytes as `int8-compact`, and a smaller error.

    y = H x / n,  s = clamp(max |y|, 2^-112, 254 x 2^120) / 127,  q = clamp(round(y / s), -127, 127)
    x^ = H (q s)

with the rotation of `rotation.py`, all in float32: the quotient by IEEE division, ties to even, and
x^ rounded to the row's type, at most its largest value. A head that holds a NaN or an infinity is
marked as in `int8.py`.

The sum of n errors of at most (0.5 + 2^-8) s each bounds the error of a value, n (0.5 + 2^-8) s
+ 2^-8 |x^| in BF16; as squares it is n (0.5 + 2^-8)^2 s^2 a value at most. What it gains is in s,
which no longer follows the head's largest channel.

A decoded row encodes to nearly the same record, not to the same one: rounding x^ to BF16 changes
every y a little. Where a record is made again from a restored row, a value may move by a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.int8 import (
    ABSMAX_CEILING,
    ABSMAX_FLOOR,
    NAN_BITS,
    QMAX,
    Int8Codec,
    split_records,
)
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.rotation import rotate, run_length, unrotate
from hiqcache.codec.row import row_type


class RotatedCodec(Int8Codec):
    """Symmetric INT8 with a BF16 scale a head, of rotated heads; 1040 bytes for 8 heads x 128."""

    def run_length(self, head_dim: int) -> int:
        return run_length(head_dim)

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        payload, scales = split_records(out, layout)
        finite = rows.isfinite().all(-1, keepdim=True)
        y = rotate(rows.float().where(finite, 0.0))
        absmax = y.abs().amax(-1).clamp_(ABSMAX_FLOOR, ABSMAX_CEILING)
        # A tensor, not a number: on CUDA, PyTorch turns division by a number into multiplication.
        scale = absmax.div_(torch.full((), float(QMAX), device=rows.device)).to(torch.bfloat16)
        y = y.div_(scale.float().unsqueeze(-1)).round_().clamp_(-QMAX, QMAX)
        payload.copy_(y)
        bits = torch.where(finite.squeeze(-1), scale.view(torch.int16), NAN_BITS)
        scales.copy_(bits.view(torch.bfloat16))

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        payload, scales = split_records(records, layout)
        broken = scales.isnan().unsqueeze(-1)
        factor = scales.float().unsqueeze(-1).masked_fill(broken, 0.0)
        kind = row_type(out.dtype)
        x = unrotate(payload.float().mul_(factor)).clamp_(-kind.largest, kind.largest)
        out.copy_(x)
        out.view(torch.int16).bitwise_or_(torch.where(broken, kind.nan_bits, 0).to(torch.int16))
