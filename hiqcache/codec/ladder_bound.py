"""The ladder's error bounds, for a value and for a head, checked against exact arithmetic.

x is what is left of a head of n values when the largest are set aside (those come back bit for
bit), r the run of the rotation, s_j the stored scale of rotated value j, b its bits, e the
exponent of max |x|, u the unit roundoff of the row's type (2^-8 in BF16).

    |x^ - x|     <= d sum s_j + h + u |x^| + c                       the s_j of its run
    ||x^ - x||_2 <= d sqrt(r sum s_j^2) + sqrt(n) h + ||u |x^| + c||_2   the s_j of the head

with d = 1/2 + 2^-15, h = 2^(e-14), and c = half a subnormal step of the row's type and, where a
run has several scales, 2^-22 of the largest sum: the float32 additions. With one scale for a head
the root mean square of the error is at most sqrt(r) s / 2 and the small terms: a sum of r errors
of half a step each could be sqrt(r) times as large in one value, never in all.

fixed point, |t 2^(e-13) - x| <= h
    t is x 2^(13-e) rounded to the nearest integer. y = H t is exact.
levels, |w_j - (q_j + 1/2) s_j| <= d s_j, for w = y 2^(e-13) / r
    q_j is the floor of w_j / s_j, computed as a product with a rounded reciprocal: two relative
    errors of 2^-24 on a quotient of at most 2^(b-1), so at most 2^(b-24), 2^-16 for b = 8. The
    clamp to b bits never acts: s_j is at least max |w| / (2^(b-1) - 1/2) / (1 + 2^-8), so that
    |w_j| / s_j <= (2^(b-1) - 1/2)(1 + 2^-8) < 2^(b-1) for b up to 8.
scale, |s_j - max |w| / (2^(b-1) - 1/2)| <= 2^-8 of it
    One division in float32 and one rounding to BF16.
back, x^ = H ((q + 1/2) s)
    H H = r, so H w = t 2^(e-13), and x^ differs from it by H applied to errors of d s_j each: by
    their sum at most, and by sqrt(r) times their Euclidean norm over a run exactly that much.
output
    H (q + 1/2) is below 2^16 and s has 8 bits: the product is exact in float32, and rounded once,
    by u |x^| or half a subnormal step; stopping at the largest value only brings it nearer.

The triangle inequality gives both bounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hiqcache.codec import planes
from hiqcache.codec.bound_report import BoundReport, Terms, over, summarize
from hiqcache.codec.check import check_records, check_rows
from hiqcache.codec.hadamard import hadamard, run_length
from hiqcache.codec.ladder import FIXED_BITS, LEAST_EXPONENT, split_records
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.row import BF16, ROW_TYPES, row_type
from hiqcache.errors import UsageError

HALF_STEP = 0.5 + 2.0**-15
SUMS = 2.0**-22


def measure_ladder_error(
    rows: Tensor, records: Tensor, layout: RecordLayout, decoded: Tensor
) -> BoundReport:
    """Check records of the ladder against both bounds, step by step.

    Parameters
    ----------
    rows
        `[tokens, heads, head_dim]` of any type that the ladder encodes: what was encoded.
    records
        `[tokens, record_bytes]` uint8: what it was encoded to.
    decoded
        As `rows`: what came back.

    Raises
    ------
    UsageError
        Tensors that do not fit the layout.
    """
    types = [kind.name for kind in ROW_TYPES.values()]
    check_rows("rows", rows, layout, types=types)
    check_rows("decoded", decoded, layout, types=types, tokens=rows.shape[0])
    check_records("records", records, layout, tokens=rows.shape[0])
    if decoded.dtype != rows.dtype:
        raise UsageError(f"decoded: expected {rows.dtype} as rows are, got {decoded.dtype}")
    kind = row_type(rows.dtype)
    rows, records, decoded = rows.cpu(), records.cpu(), decoded.cpu()
    parts, run = split_records(records, layout), run_length(layout.head_dim)
    q = _levels(parts.payload, layout)
    places = parts.places.long()
    live = rows.float().isfinite().all(-1, keepdim=True)

    kept = torch.zeros(rows.shape, dtype=torch.bool).scatter_(-1, places, True) & live
    # Heads that are not finite are checked by policy alone; zeros keep their arithmetic quiet.
    whole = rows.double().where(live, 0.0)
    x = whole.masked_fill(kept, 0.0)
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True))[1].clamp(min=LEAST_EXPONENT + 1) - 1
    unit = torch.ldexp(torch.ones_like(whole[..., :1]), exponent - FIXED_BITS)
    w = _rotated((x / unit).round(), run) * unit / run
    scales = parts.scales.double().where(live, 0.0)
    s = scales.repeat_interleave(layout.group, -1)
    peak = w.view(*w.shape[:2], -1, layout.group).abs().amax(-1)
    exact = (peak / (2.0 ** (layout.value_bits - 1) - 0.5)).repeat_interleave(layout.group, -1)
    encoded = (q.double() + 0.5) * s
    product = _rotated(encoded, run).clamp(-kind.largest, kind.largest)
    restored = decoded.double().where(live, 0.0).masked_fill(kept, 0.0)
    error = (restored - x).abs()

    in_output = kind.unit_roundoff * restored.abs() + kind.subnormal_step / 2
    if layout.group < run:
        in_output = in_output + SUMS * _of_runs(encoded.abs(), run)
    fixed = unit / 2
    bound = HALF_STEP * _of_runs(s, run) + fixed + in_output
    rms = HALF_STEP * (run * s.pow(2).sum(-1, keepdim=True)).sqrt()
    rms = rms + layout.head_dim**0.5 * fixed + _norm(in_output)
    terms = Terms(
        rounding=((w - encoded).abs(), HALF_STEP * s),
        scaling=((s - exact).abs(), BF16.unit_roundoff * exact),
        output=((restored - product).abs().masked_fill(kept, 0.0), in_output),
        bound=(error, bound),
        rms=(_norm(error), rms),
    )
    bits = rows.view(kind.bits_dtype)
    values = parts.values.to(kind.bits_dtype)
    smallest = torch.where(kept, whole.abs(), torch.inf).amin(-1, keepdim=True)
    broken = {
        "the rounding term is over its limit": live & over(*terms.rounding),
        "the scale term is over its limit": live & over(*terms.scaling),
        "the output term is over its limit": live & ~kept & over(*terms.output),
        "the error is over the bound": live & over(*terms.bound),
        "the head's error is over its bound": live & over(_norm(error), rms),
        "a larger value was not set aside": live & (x.abs() > smallest),
        "places are not distinct": live & (kept.sum(-1, keepdim=True) != layout.aside),
        "a value set aside is not the row's": live & (values != bits.gather(-1, places)),
        "a value set aside did not come back": kept & (decoded.view(kind.bits_dtype) != bits),
        "the scale of a non-finite head is not the one NaN": (
            ~live & (parts.scales.view(torch.int16) != BF16.nan_bits)
        ),
        "the payload of a non-finite head is not zero": (
            ~live & (q != (0 if layout.value_bits == 8 else -(2 ** (layout.value_bits - 1))))
        ),
        "a non-finite head did not decode to NaN": (
            ~live & (decoded.view(kind.bits_dtype) != kind.nan_bits)
        ),
    }
    return summarize(error=error, scale=exact, live=live, terms=terms, broken=broken)


def _levels(payload: Tensor, layout: RecordLayout) -> Tensor:
    bits, count = layout.value_bits, layout.heads * layout.head_dim
    values = planes.unpack(payload, bits, count).reshape(-1, layout.heads, layout.head_dim)
    return values.view(torch.int8) if bits == 8 else values.to(torch.int8) - 2 ** (bits - 1)


def _rotated(x: Tensor, run: int) -> Tensor:
    """H x in float64."""
    matrix = hadamard(run, x.device).double()
    return (x.reshape(-1, run) @ matrix).view(x.shape)


def _of_runs(x: Tensor, run: int) -> Tensor:
    """The sum of each run, for each of its values."""
    sums = x.reshape(-1, run).sum(-1, keepdim=True)
    return sums.expand(-1, run).reshape(x.shape)


def _norm(x: Tensor) -> Tensor:
    return x.pow(2).sum(-1, keepdim=True).sqrt()
