"""The INT8 codec's error bound, checked element by element against an exact quantiser.

    |x^ - x| <= (0.5 + 2^-8) s + 2^-8 |x^|

`s` is the exact scale of the head, clamp(max |x|, 2^-112, 254 x 2^120) / 127 in real
arithmetic. `s'` is the stored scale, s rounded to BF16. u = 2^-8 is the unit roundoff of BF16
(8 significant bits, round to nearest). Three terms, each checked on its own:

rounding, |x - q s'| <= 0.5 s'
    q is x / s' rounded to the nearest integer. The clamp to 127 does not spoil this. Where the
    scale was rounded up, |x| / s' <= 127 and nothing is clamped. Where it was rounded down,
    s' >= s / (1 + 2^-8), so that |x| / s' <= 127 (1 + 2^-8) = 127.496 < 127.5, which rounds to
    127 by itself. Only the largest BF16, over the absmax ceiling, reaches the clamp: at
    exactly 127.5, half a scale.
scale, |s' - s| <= 2^-8 s
    One rounding to BF16: at most 2^-8 of the power of two below s, so relative to s largest at
    the middle of the first two BF16 values above it: |s' - s| <= s 2^-8 / (1 + 2^-8).
output, |x^ - q s'| <= 2^-8 |x^|
    q s' is exact in float32 and is rounded once more, to BF16, never into the subnormals.

The triangle inequality over the first and the last gives

    |x^ - x| <= 0.5 s' + 2^-8 |x^| <= 0.5 (1 + 2^-8) s + 2^-8 |x^| = (0.5 + 2^-9) s + 2^-8 |x^|

so the published bound holds for s with twice the room for the scale's rounding that it needs,
and, as 0.5 s' alone would do, for s' in the place of s too. (Had q been rounded with the exact
scale and restored with the stored one, the scale term would grow with q to 127 x 2^-8 s.)

FP16 rows: the first two terms are the same, since scales are BF16. The output is rounded to 11
significant bits, or to a multiple of 2^-24 where x^ is subnormal, so that the third term is
|x^ - q s'| <= 2^-11 |x^| + 2^-25, and the bound

    |x^ - x| <= (0.5 + 2^-8) s + 2^-11 |x^| + 2^-25

The one product past FP16's range, 127 x 516 = 65532, is restored as 65504: 28 away, less than
2^-11 x 65504 = 31.98.

Every quantity compared here is exact in float64 except s and what is summed with it, whose
relative error of 2^-53 is far inside that room: the comparisons need no tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec.bound_report import BoundReport, Terms, over, summarize
from hiqcache.codec.check import check_records, check_rows
from hiqcache.codec.int8 import (
    ABSMAX_CEILING,
    ABSMAX_FLOOR,
    NAN_BITS,
    QMAX,
    dequantize,
    split_records,
)
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import BF16, FP16, RowType, row_type
from hiqcache.errors import UsageError

SCALE_ROUNDOFF = BF16.unit_roundoff
BF16_FRACTION, FP16_FRACTION = 7, 10
FP16_NORMAL = 2.0**-14
"""The smallest normal FP16."""


def verified_error_bound(
    rows: Tensor,
    records: Tensor,
    layout: RecordLayout,
    decoded: Tensor | None = None,
) -> BoundReport:
    """Check INT8 records of `rows` against the bound and the exact quantiser, or raise.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` bf16 or fp16: what was encoded.
    records
        `[tokens, record_bytes]` uint8: what it was encoded to.
    layout
        The records' layout, of an INT8 codec.
    decoded
        `[tokens, heads, head_dim]`, of the same type: what came back. None for what this
        package's decoder makes of the records.

    Returns
    -------
    BoundReport
        With `violations == 0`.

    Raises
    ------
    BoundViolation
        Says which rules were broken, where first, and how often.
    UsageError
        Tensors that do not fit the layout, or a layout without scales.
    """
    return measure_error(rows, records, layout, decoded).accept()


def measure_error(
    rows: Tensor,
    records: Tensor,
    layout: RecordLayout,
    decoded: Tensor | None = None,
) -> BoundReport:
    """As `verified_error_bound`, but count violations instead of raising."""
    if layout.scales_bytes == 0:
        raise UsageError("the error bound is that of INT8 records, and this layout has no scales")
    check_rows("rows", rows, layout)
    check_records("records", records, layout, tokens=rows.shape[0])
    kind = row_type(rows.dtype)
    q, scale = (part.cpu() for part in split_records(records, layout))
    if decoded is None:
        decoded = dequantize(q, scale, dtype=rows.dtype)
    check_rows("decoded", decoded, layout, tokens=rows.shape[0])
    if decoded.dtype != rows.dtype:
        raise UsageError(f"decoded: expected {rows.dtype} as rows are, got {decoded.dtype}")
    decoded, rows = decoded.cpu(), rows.cpu()

    finite = rows.isfinite().all(-1)
    live = finite.unsqueeze(-1)
    # Heads that are not finite are checked by policy alone; ones keep their arithmetic quiet.
    x = rows.double().where(live, 1.0)
    exact = exact_scale(x).unsqueeze(-1)
    stored = scale.double().unsqueeze(-1).where(live, round_to_bf16(exact))
    restored = decoded.double().where(live, 1.0)
    product = q.double() * stored
    in_output = output_limit(restored, kind)
    error = (restored - x).abs()
    quotient = (x / stored).round().clamp(-QMAX, QMAX)
    rounded = round_output(product, kind)

    rounding = (x - product).abs(), 0.5 * stored
    scaling = (stored - exact).abs(), SCALE_ROUNDOFF * exact
    output = (restored - product).abs(), in_output
    bound = error, (0.5 + SCALE_ROUNDOFF) * exact + in_output
    broken = {
        "the rounding term is over its limit": live & over(*rounding),
        "the scale term is over its limit": live & over(*scaling),
        "the output term is over its limit": live & over(*output),
        "the error is over the bound": live & over(*bound),
        "the scale of a non-finite head is not the one NaN": (
            ~live & (scale.view(torch.int16).unsqueeze(-1) != NAN_BITS)
        ),
        "the payload of a non-finite head is not zero": ~live & (q != 0),
        "a non-finite head did not decode to NaN": ~live & ~decoded.isnan(),
        "the stored scale is not the exact one rounded": live & (stored != round_to_bf16(exact)),
        "q is not the exact quotient rounded": live & (q != quotient),
        "x^ is not the exact product rounded": live & (restored != rounded),
    }
    return summarize(
        error=error,
        scale=exact,
        live=live,
        terms=Terms(rounding, scaling, output, bound),
        broken=broken,
    )


def exact_scale(x: Tensor) -> Tensor:
    """s of each head in float64: clamp(max |x|, 2^-112, 254 x 2^120) / 127.

    Parameters
    ----------
    x
        `[tokens, heads, head_dim]` float64, finite.

    Returns
    -------
    Tensor
        `[tokens, heads]` float64.
    """
    return x.abs().amax(-1).clamp(ABSMAX_FLOOR, ABSMAX_CEILING) / QMAX


def round_to_bf16(x: Tensor) -> Tensor:
    """Round float64 to BF16 precision, nearest even, in one step and by integers alone.

    Independent of the device's and of PyTorch's own conversion, which goes through float32.
    Only for zero and the normal range of BF16: it keeps the exponent of float64.

    Parameters
    ----------
    x
        float64, any shape.

    Returns
    -------
    Tensor
        float64 of the same shape, holding BF16 values.
    """
    return _round_to_bits(x, BF16_FRACTION)


def round_to_fp16(x: Tensor) -> Tensor:
    """Round float64 to FP16, nearest even, in one step; past the range, to the largest finite.

    Parameters
    ----------
    x
        float64, any shape, no NaN.

    Returns
    -------
    Tensor
        float64 of the same shape, holding FP16 values.
    """
    subnormal = x.abs() < FP16_NORMAL
    # A product with a power of two is exact, and so is the integer that it is rounded to.
    steps = (x / FP16.subnormal_step).round() * FP16.subnormal_step
    rounded = torch.where(subnormal, steps, _round_to_bits(x, FP16_FRACTION))
    return rounded.clamp(-FP16.largest, FP16.largest)


def round_output(product: Tensor, kind: RowType) -> Tensor:
    """What decoding must make of `q * scale`, float64."""
    return round_to_fp16(product) if kind is FP16 else round_to_bf16(product)


def output_limit(restored: Tensor, kind: RowType) -> Tensor:
    """The third term: how far rounding the output may move it."""
    # A BF16 output is never subnormal: the smallest scale is far above.
    half_step = kind.subnormal_step / 2 if kind is FP16 else 0.0
    return kind.unit_roundoff * restored.abs() + half_step


def _round_to_bits(x: Tensor, fraction_bits: int) -> Tensor:
    """Keep so many bits of the fraction, nearest even; the exponent stays float64's."""
    dropped = 52 - fraction_bits
    bits = x.contiguous().view(torch.int64)
    odd = (bits >> dropped) & 1
    bits = (bits + (1 << (dropped - 1)) - 1 + odd) & -(1 << dropped)
    return bits.view(torch.float64)
