"""INT8 records: one symmetric scale for each head, chosen by the head's largest magnitude.

Rows are BF16 or FP16; payload and scales are the same for both, and a record does not say which
it came from. What follows is written for BF16 and holds for FP16 with the additions at its end.

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

FP16 has 11 significant bits, and its numbers end at 65504 and 2^-24:
- absmax / 127: an 11-bit integer over 127 is 2^-16 or more away from the middle of two BF16
  values too. The middle has 9 significant bits, the last of them set, and the only integers that
  127 divides are the multiples of 127 up to 16 x 127, whose quotients have 5.
- x / scale: an 11-bit over an 8-bit integer that is no tie is at least 2^-13 away from one, and
  2^-9 where the quotient is 8 or more; a quotient under 8 errs by 2^-22.
- 65504 / 127 = 515.8 is stored as 516, and 127 x 516 = 65532 is infinity in FP16. Decoding
  stops at 65504, which is nearer to any value that was encoded to 127 than 65532 is.
- Every subnormal is a normal number of float32, in which all arithmetic is done; conversion from
  and to FP16 keeps them on every device. The absmax floor is met by heads of zeros alone.
- Encoding a decoded row gives the same record in FP16 too. A normal number moves by 2^-11 of
  itself on the way, too little to change a scale or a q. A head of subnormals up to 127 steps of
  2^-24 comes back exactly. In larger ones a step is smaller than the scale, so that half a step
  changes no q, and the absmax still leads to its scale: a scale's own range is 0.992 steps wide
  up to 254, where the absmax comes back exactly, and at least 1.98 above.
- The NaN written is 0x7E00; a NaN head's scale stays 0x7FC0, since scales are BF16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import BF16, row_type

QMAX = 127
ABSMAX_FLOOR = 2.0**-112
ABSMAX_CEILING = 254 * 2.0**120
NAN_BITS = BF16.nan_bits
"""The scale of a head that is not finite."""
_MAGNITUDE_BITS = 0x7FFF


def choose_scale(rows: Tensor) -> Tensor:
    """The scale of each head: clamp(max |x|, 2^-112, 254 x 2^120) / 127.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` bf16 or fp16.

    Returns
    -------
    Tensor
        `[tokens, heads]` bf16: the float32 quotient rounded to nearest even; NaN (0x7FC0) for
        a head that holds a NaN or an infinity.
    """
    # Magnitudes of floats are ordered like their bits, infinity and NaN on top: one integer
    # maximum finds the absmax and the heads that are not finite.
    bits = (rows.view(torch.int16) & _MAGNITUDE_BITS).amax(-1)
    finite = bits < row_type(rows.dtype).infinity_bits
    return scale_of(bits.view(rows.dtype).float(), finite)


def scale_of(absmax: Tensor, finite: Tensor) -> Tensor:
    """The scale of heads of a largest magnitude; NaN (0x7FC0) where a head is not finite.

    Parameters
    ----------
    absmax
        `[tokens, heads]` float32, overwritten.
    finite
        `[tokens, heads]` bool.

    Returns
    -------
    Tensor
        `[tokens, heads]` bf16.
    """
    absmax = absmax.clamp_(ABSMAX_FLOOR, ABSMAX_CEILING)
    # A tensor, not a number: on CUDA, PyTorch turns division by a number into multiplication.
    divisor = torch.full((), float(QMAX), device=absmax.device)
    scale = absmax.div_(divisor).to(torch.bfloat16)
    return torch.where(finite, scale.view(torch.int16), NAN_BITS).view(torch.bfloat16)


def quantize(rows: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """q = clamp(round(x / scale), -127, 127), ties to even, in float32.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` bf16 or fp16; or float32, which is overwritten.
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


def dequantize(
    q: Tensor, scale: Tensor, out: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """x^ = q * scale, the product in float32, rounded to nearest even, at most 65504 in FP16.

    Parameters
    ----------
    q
        `[tokens, heads, head_dim]` int8.
    scale
        `[tokens, heads]` bf16.
    out
        `[tokens, heads, head_dim]` bf16 or fp16; allocated when None, of `dtype`.

    Returns
    -------
    Tensor
        `out`: NaN throughout a head whose scale is NaN.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=dtype, device=q.device)
    return write_rows(products(q, scale), scale, out, saturate=row_type(out.dtype).saturates)


def products(q: Tensor, scale: Tensor) -> Tensor:
    """q * scale in float32; 0 throughout a head whose scale is NaN."""
    return q.float().mul_(scale.float().masked_fill(scale.isnan(), 0.0).unsqueeze(-1))


def write_rows(values: Tensor, scale: Tensor, out: Tensor, *, saturate: bool) -> Tensor:
    """Values rounded to the type of `out`; NaN throughout a head whose scale is NaN.

    Parameters
    ----------
    values
        `[tokens, heads, head_dim]` float32, overwritten; 0 in a head whose scale is NaN, whose
        bits are set afterwards so that the pattern is ours and not the device's.
    saturate
        Stop at the type's largest value.
    """
    kind = row_type(out.dtype)
    if saturate:
        values.clamp_(-kind.largest, kind.largest)
    out.copy_(values)
    marks = torch.where(scale.isnan().unsqueeze(-1), kind.nan_bits, 0)
    out.view(torch.int16).bitwise_or_(marks.to(torch.int16))
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
    """Symmetric INT8 with a BF16 scale for each head; 1152 or 1040 bytes for 8 heads x 128."""

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
