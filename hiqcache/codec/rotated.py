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

from torch import Tensor

from hiqcache.codec.int8 import (
    Int8Codec,
    products,
    quantize,
    scale_of,
    split_records,
    write_rows,
)
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.rotation import rotate, run_length, unrotate


class RotatedCodec(Int8Codec):
    """Symmetric INT8 with a BF16 scale a head, of rotated heads; 1040 bytes for 8 heads x 128."""

    def run_length(self, head_dim: int) -> int:
        return run_length(head_dim)

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        payload, scales = split_records(out, layout)
        finite = rows.isfinite().all(-1)
        y = rotate(rows.float().where(finite.unsqueeze(-1), 0.0))
        scale = scale_of(y.abs().amax(-1), finite)
        scales.copy_(scale)
        quantize(y, scale, out=payload)

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        payload, scales = split_records(records, layout)
        write_rows(unrotate(products(payload, scales)), scales, out, saturate=True)
