"""INT8 records: one symmetric scale a head, chosen by the head's largest magnitude.

Three pure functions, in the order of use: `choose_scale`, `quantize`, `dequantize`. The codecs
`int8` and `int8-compact` are these three over two record sizes.

The same bits on every device
-----------------------------
- The absmax has a floor of 2^-112. Without it a head of tiny values would get a subnormal
  scale, which some devices flush to zero. With it the smallest scale is 2^-112 / 127, about
  2^-119, far above the smallest normal number of BF16 and float32 (2^-126), and so is every
  non-zero product `q * scale`. A subnormal value divided by such a scale is under 2^-7 and
  rounds to 0, whether or not the device flushed it to zero first.
- The absmax has a ceiling of 254 x 2^120, so that 127 * scale is finite: the largest BF16,
  255 x 2^120, would otherwise round its scale up and decode to infinity. It lands on the
  clamp instead and decodes to 254 x 2^120, half a scale away. No other head is affected.
- `scale = absmax / 127` has room for error: an 8-bit integer over 127 is never nearer than
  2^-16, relatively, to the middle of two BF16 values, so float32 then BF16 equals one exact
  rounding.
- `x / scale` needs a division that is exact where the quotient is representable, which IEEE
  division is and multiplying by a reciprocal is not: else a tie `k + 1/2` falls on a side that
  depends on the device. Any other quotient of two 8-bit integers is at least 2^-10 away from
  a tie, where float32 errs by 2^-18 at most, so rounding it equals rounding the exact quotient.
- `q * scale` is a 7-bit times an 8-bit integer: exact in float32.
- NaN has many bit patterns and devices prefer different ones; only 0x7FC0 is ever written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout

QMAX = 127
ABSMAX_FLOOR = 2.0**-112
ABSMAX_CEILING = 254 * 2.0**120
NAN_BITS = 0x7FC0
_INFINITY_BITS = 0x7F80
_MAGNITUDE_BITS = 0x7FFF


def choose_scale(rows: Tensor) -> Tensor:
    """The scale of each head: clamp(max |x|, 2^-112, 254 x 2^120) / 127.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` bf16.

    Returns
    -------
    Tensor
        `[tokens, heads]` bf16: the float32 quotient rounded to nearest even; NaN (0x7FC0) for
        a head that holds a NaN or an infinity.
    """
    # Magnitudes of floats are ordered like their bits, infinity and NaN on top: one integer
    # maximum finds the absmax and the heads that are not finite.
    bits = (rows.view(torch.int16) & _MAGNITUDE_BITS).amax(-1)
    absmax = bits.view(torch.bfloat16).float().clamp_(ABSMAX_FLOOR, ABSMAX_CEILING)
    # A tensor, not a number: on CUDA, PyTorch turns division by a number into multiplication.
    divisor = torch.full((), float(QMAX), device=rows.device)
    scale = absmax.div_(divisor).to(torch.bfloat16)
    finite = bits < _INFINITY_BITS
    return torch.where(finite, scale.view(torch.int16), NAN_BITS).view(torch.bfloat16)


def quantize(rows: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """q = clamp(round(x / scale), -127, 127), ties to even, in float32.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` bf16.
    scale
        `[tokens, heads]` bf16, as it is stored: the quotient uses the rounded scale, so the
        scale's own rounding costs no accuracy in q.
    out
        `[tokens, heads, head_dim]` int8; allocated when None.

    Returns
    -------
    Tensor
        `out`: 0 throughout a head whose scale is NaN.
    """
    if out is None:
        out = torch.empty(rows.shape, dtype=torch.int8, device=rows.device)
    quotient = rows.float().div_(scale.float().unsqueeze(-1))
    # NaN has no integer: what a conversion makes of it differs between devices.
    quotient.nan_to_num_(nan=0.0)
    return out.copy_(quotient.round_().clamp_(-QMAX, QMAX))


def dequantize(q: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """x^ = bf16(q * scale), the product in float32, rounded to nearest even.

    Parameters
    ----------
    q
        `[tokens, heads, head_dim]` int8.
    scale
        `[tokens, heads]` bf16.
    out
        `[tokens, heads, head_dim]` bf16; allocated when None.

    Returns
    -------
    Tensor
        `out`: NaN throughout a head whose scale is NaN.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    # NaN heads are multiplied as zeros and their bits set afterwards, so that the pattern is
    # ours and not the device's.
    broken = scale.isnan().unsqueeze(-1)
    factor = scale.float().unsqueeze(-1).masked_fill(broken, 0.0)
    out.copy_(q.float().mul_(factor))
    out.view(torch.int16).bitwise_or_(torch.where(broken, NAN_BITS, 0).to(torch.int16))
    return out


def split_records(records: Tensor, layout: RecordLayout) -> tuple[Tensor, Tensor]:
    """The two parts of INT8 records in place, without a copy.

    Parameters
    ----------
    records
        `[tokens, record_bytes]` uint8, contiguous in the last dimension.

    Returns
    -------
    tuple[Tensor, Tensor]
        The payload, `[tokens, heads, head_dim]` int8 from byte 0 on, and the scales,
        `[tokens, heads]` bf16 (little endian) from byte `payload_bytes` on.
    """
    payload = records[:, : layout.payload_bytes].view(torch.int8)
    scales = records[:, layout.payload_bytes : layout.used_bytes].view(torch.bfloat16)
    return payload.view(len(records), layout.heads, layout.head_dim), scales


class Int8Codec(Codec):
    """Symmetric INT8 with a BF16 scale a head; 1152 or 1040 bytes for 8 heads x 128."""

    marks_broken_heads = True

    def broken_heads(self, records: Tensor, layout: RecordLayout) -> Tensor:
        return split_records(records, layout)[1].isnan()

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        payload, scales = split_records(out, layout)
        scale = choose_scale(rows)
        scales.copy_(scale)
        quantize(rows, scale, out=payload)

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        payload, scales = split_records(records, layout)
        dequantize(payload, scales, out=out)
