"""The error bound: proved over all cases that scale, held on hard input, and able to fail."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hiqcache.codec.bound import (
    exact_scale,
    measure_error,
    round_to_bf16,
    round_to_fp16,
    verified_error_bound,
)
from hiqcache.codec.bound_report import BoundReport, BoundViolation
from hiqcache.codec.inputs import INPUTS, QWEN3_8B_SHAPE, named_input
from hiqcache.codec.int8 import split_records
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.registry import get_codec
from hiqcache.codec.row import BF16, SIXTEEN_BIT_ROWS, RowType
from hiqcache.errors import UsageError
from hiqcache.lab.bench.codec import one_thread

CODEC = get_codec("int8-compact")
KINDS = pytest.mark.parametrize("kind", SIXTEEN_BIT_ROWS.values(), ids=lambda kind: kind.label)


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    # On a busy machine PyTorch's threads wait for each other far longer than they work.
    with one_thread():
        yield


def layout_of(rows: Tensor) -> RecordLayout:
    return CODEC.layout("k", rows.shape[1], rows.shape[2])


def report_of(rows: Tensor) -> BoundReport:
    layout = layout_of(rows)
    return verified_error_bound(rows, CODEC.encode(rows, layout), layout)


def from_bits(patterns: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """int64 patterns 0 to 65535 as rows."""
    return patterns.where(patterns < 2**15, patterns - 2**16).to(torch.int16).view(dtype)


def bf16_by_fractions(value: Fraction) -> Fraction:
    """`value` rounded to 8 significant bits, nearest even: the definition, in rationals."""
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value)))
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    step = Fraction(2) ** (exponent - 7)
    return round(value / step) * step


@given(st.floats(min_value=2.0**-119, max_value=2.0**120), st.booleans())
def test_reference_rounding_is_the_definition(value: float, negative: bool) -> None:
    value = -value if negative else value
    rounded = round_to_bf16(torch.tensor([value], dtype=torch.float64)).item()
    assert Fraction(rounded) == bf16_by_fractions(Fraction(value))


def test_reference_rounding_sends_ties_to_even() -> None:
    # 1 + 2^-8 and 1 + 3 x 2^-8 lie in the middle of two BF16 values each.
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 0.0], dtype=torch.float64)
    assert round_to_bf16(ties).tolist() == [1.0, 1 + 2.0**-6, -1.0, 0.0]


@given(st.floats(min_value=2.0**-28, max_value=2.0**17), st.booleans())
def test_reference_rounding_to_fp16_is_the_definition(value: float, negative: bool) -> None:
    rounded = round_to_fp16(torch.tensor([-value if negative else value], dtype=torch.float64))
    exponent = max(math.frexp(value)[1] - 1, -14)
    step = Fraction(2) ** (exponent - 10)
    expected = min(round(Fraction(value) / step) * step, Fraction(65504))
    assert Fraction(abs(rounded.item())) == expected
    assert math.copysign(1, rounded.item()) == (-1 if negative else 1)


def test_reference_rounding_to_fp16_is_torchs_within_the_range() -> None:
    patterns = from_bits(torch.arange(0x7C00), torch.float16).double()
    assert torch.equal(round_to_fp16(patterns), patterns)
    between = (patterns[1:] + patterns[:-1]) / 2
    assert torch.equal(round_to_fp16(between), between.half().double())


@KINDS
def test_scale_of_every_absmax_is_the_exact_quotient_rounded_once(kind: RowType) -> None:
    # All positive finite patterns, a head each, against rationals.
    rows = torch.zeros(1, kind.infinity_bits, 8, dtype=kind.dtype)
    rows[0, :, 0] = from_bits(torch.arange(kind.infinity_bits), kind.dtype)
    layout = layout_of(rows)
    _, scale = split_records(CODEC.encode(rows, layout), layout)
    low, high = Fraction(2) ** -112, 254 * Fraction(2) ** 120
    for absmax, stored in zip(rows[0, :, 0].tolist()[::61], scale[0].tolist()[::61], strict=True):
        exact = min(max(Fraction(absmax), low), high) / 127
        assert Fraction(stored) == bf16_by_fractions(exact), absmax
    assert torch.equal(scale[0].double(), round_to_bf16(exact_scale(rows.double()))[0])


def test_bound_holds_for_every_pair_of_absmax_and_value() -> None:
    # Away from both ends of the exponent range only the two significands and the difference of
    # the exponents matter: these heads are all there are, up to a power of two and the sign.
    # A difference over 9 leaves under half a step, which 9 shows to round to zero.
    significands = torch.arange(128, 256).double()
    below = torch.cat([significands * 2.0**-shift for shift in range(11)])
    rows = below.expand(128, 1, -1).clone()
    rows = rows.minimum(significands.view(128, 1, 1))
    rows[..., 0] = significands.view(128, 1)
    exact_rows = rows.bfloat16()
    assert torch.equal(exact_rows.double(), rows)

    report = report_of(exact_rows)
    assert report.elements == 128 * 11 * 128
    assert report.rounding_utilization == 1.0, "some value must lie half a step away"
    assert 0.98 < report.scale_utilization < 256 / 257
    assert 0.98 < report.output_utilization <= 1.0
    assert 0.99 < report.bound_utilization <= 1.0

    # The sharper form that the derivation gives: (0.5 + 2^-9) s + 2^-8 |x^|.
    layout = layout_of(exact_rows)
    decoded = CODEC.decode(CODEC.encode(exact_rows, layout), layout).double()
    s = exact_scale(rows).unsqueeze(-1)
    sharp = (0.5 + 2.0**-9) * s + 2.0**-8 * decoded.abs()
    assert ((decoded - rows).abs() <= sharp).all()


def test_fp16_quotients_keep_away_from_ties_as_the_kernels_need_it() -> None:
    # An 11-bit over an 8-bit integer, times a power of two, up to 128: all there are.
    values = torch.arange(1024, 2048).double().view(-1, 1)
    scales = torch.arange(128, 256).double()
    nearest = {}
    for power in range(-5, 6):
        quotient = values / scales * 2.0**power
        apart = (quotient - quotient.floor() - 0.5).abs()
        for small in (True, False):
            kept = apart[(apart > 0) & (quotient < 128) & ((quotient < 8) == small)]
            if len(kept):
                nearest[small] = min(nearest.get(small, 1.0), kept.min().item())
    assert nearest[True] >= 2.0**-13
    assert nearest[False] >= 2.0**-9


def test_bound_holds_for_every_pair_of_fp16_absmax_and_value() -> None:
    # As for BF16 below; a sample of the absmax significands, all of them for the values.
    significands = torch.arange(1024, 2048).double()
    below = torch.cat([significands * 2.0**-shift for shift in range(11)])
    leads = significands[::7].view(-1, 1, 1)
    rows = below.expand(len(leads), 1, -1).clone().minimum(leads)
    rows[..., 0] = leads[..., 0]
    fp16 = rows.half()
    fp16 = torch.where(fp16.double() == rows, fp16, 0)
    report = report_of(fp16)
    assert report.elements == len(leads) * 11 * 1024
    assert report.rounding_utilization == 1.0, "some value must lie half a step away"
    assert 0.85 < report.scale_utilization < 256 / 257
    assert 0.95 < report.output_utilization <= 1.0
    assert 0.98 < report.bound_utilization <= 1.0


@KINDS
def test_bound_holds_for_every_absmax_over_values_of_all_sizes(kind: RowType) -> None:
    # Each of the finite magnitudes leads a head once, both range ends included.
    leads = torch.arange(kind.infinity_bits).view(-1, 1, 1)
    shares = torch.tensor([1.0, 0.996, 0.75, 0.5, 0.126, 0.0118, 0.0039, 0.0], dtype=torch.float64)
    rows = from_bits(leads.expand(-1, 1, 16).clone(), kind.dtype)
    scaled = (rows.double() * torch.cat([shares, -shares])).to(kind.dtype)
    report = report_of(scaled)
    assert report.nonfinite_heads == 0
    assert report.elements == kind.infinity_bits * 16


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("shape", [(64, 8, 128), (7, 3, 64), (5, 1, 80)], ids=str)
@KINDS
def test_bound_holds_on_named_input(kind: RowType, name: str, shape: tuple[int, int, int]) -> None:
    report = report_of(named_input(name, shape, dtype=kind.dtype))
    assert report.violations == 0
    assert report.findings == ()
    broken = {"nan": 1, "infinity": 1, "all_patterns": shape == (64, 8, 128)}
    if name != "scattered_patterns":
        assert (report.nonfinite_heads > 0) == bool(broken.get(name, 0))


@KINDS
def test_every_pattern_is_covered(kind: RowType) -> None:
    for name in ("all_patterns", "scattered_patterns"):
        rows = named_input(name, (64, 8, 128), dtype=kind.dtype)
        assert rows.view(torch.int16).unique().numel() == 2**16
    # 2 x 128 patterns of BF16 are infinity or NaN, and 2 x 1024 of FP16; a head holds 128.
    rows = named_input("all_patterns", (64, 8, 128), dtype=kind.dtype)
    assert report_of(rows).nonfinite_heads == {"BF16": 2, "FP16": 16}[kind.label]


@pytest.mark.parametrize(
    ("name", "largest", "mean", "p99"),
    [
        ("random_unit", 0.934, 0.0054, 0.0156),
        ("qwen3_8b_shaped", 0.934, 0.0054, 0.0156),
        ("random_large", 0.934, 5.36, 16.0),
        ("all_zeros", 0.0, 0.0, 0.0),
        ("exact_grid", 0.0, 0.0, 0.0),
    ],
)
def test_published_table(name: str, largest: float, mean: float, p99: float) -> None:
    report = report_of(named_input(name, QWEN3_8B_SHAPE))
    assert report.elements == 512 * 8 * 128
    assert report.max_normalized_error == pytest.approx(largest, abs=0.008)
    assert report.mean_absolute_error == pytest.approx(mean, rel=0.02)
    assert report.p99_absolute_error == pytest.approx(p99, rel=0.005)


@KINDS
def test_inputs_are_reproducible_and_seeded(kind: RowType) -> None:
    for name in INPUTS:
        first, again, other = (named_input(name, (2, 2, 8), seed, kind.dtype) for seed in (0, 0, 1))
        assert torch.equal(first.view(torch.int16), again.view(torch.int16)), name
        if name in ("random_unit", "exact_ties", "subnormal"):
            assert not torch.equal(first.view(torch.int16), other.view(torch.int16)), name
    with pytest.raises(UsageError, match="unknown input 'noise': expected one of random_unit"):
        named_input("noise", (1, 1, 8))


@KINDS
def test_inputs_are_what_their_names_say(kind: RowType) -> None:
    shape = (8, 4, 64)
    rows = {name: named_input(name, shape, dtype=kind.dtype) for name in INPUTS}
    info = torch.finfo(kind.dtype)
    subnormal = rows["subnormal"].double().abs()
    assert 0 < subnormal.max() < info.smallest_normal
    low = 2.0**-112 if kind is BF16 else info.smallest_normal
    assert (rows["near_floor"].double().abs().amax(-1) < low).any()
    assert (rows["near_floor"].double().abs().amax(-1) > low).any()
    assert rows["largest_finite"].double().abs().amax(-1).eq(kind.largest).all()
    assert (info.max, info.eps / 2) == (kind.largest, kind.unit_roundoff)
    assert from_bits(torch.tensor([1]), kind.dtype).item() == kind.subnormal_step
    assert from_bits(torch.tensor([kind.infinity_bits]), kind.dtype).isinf()
    assert rows["huge_value"].isfinite().all() and rows["random_large"].isfinite().all()
    ties = rows["exact_ties"].double()
    quotient = ties / round_to_bf16(exact_scale(ties)).unsqueeze(-1)
    assert (quotient[..., 1:] % 1).eq(0.5).all()
    negative = rows["negative_zero"][::2]
    assert negative.eq(0).all() and negative.signbit().all()
    assert rows["nan"].isnan().any() and not rows["nan"].isnan().all(-1).any()
    assert rows["infinity"].isposinf().any() and rows["infinity"].isneginf().any()


BITS = st.integers(0, 0xFFFF)


@settings(max_examples=300, deadline=None)
@given(st.lists(BITS, min_size=16, max_size=16), st.sampled_from([*SIXTEEN_BIT_ROWS]))
def test_bound_holds_on_arbitrary_patterns(patterns: list[int], dtype: torch.dtype) -> None:
    rows = from_bits(torch.tensor(patterns), dtype).view(1, 2, 8)
    report = report_of(rows)
    assert report.nonfinite_heads == int((~rows.isfinite()).any(-1).sum())


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 0xFE),
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 10), st.integers(0, 127)),
        min_size=8,
        max_size=8,
    ),
)
def test_bound_holds_on_heads_of_similar_values(
    exponent: int, values: list[tuple[bool, int, int]]
) -> None:
    # Arbitrary patterns hardly ever have quotients between 1 and 127; these all do.
    patterns = [
        sign << 15 | max(0, exponent - below) << 7 | fraction for sign, below, fraction in values
    ]
    rows = from_bits(torch.tensor(patterns)).view(1, 1, 8)
    report = report_of(rows)
    assert report.nonfinite_heads == 0
    assert report.max_normalized_error < 1.0

    # And the definition once more in rationals, which share nothing with the code.
    layout = layout_of(rows)
    records = CODEC.encode(rows, layout)
    q, scale = split_records(records, layout)
    s = Fraction(scale.item())
    for x, stored, restored in zip(
        rows.flatten().tolist(),
        q.flatten().tolist(),
        CODEC.decode(records, layout).flatten().tolist(),
        strict=True,
    ):
        assert stored == max(-127, min(127, round(Fraction(x) / s)))
        assert Fraction(restored) == bf16_by_fractions(stored * s)


def tampered() -> Iterator[tuple[str, str]]:
    yield "q one up", "the rounding term"
    yield "q one up", "q is not the exact quotient"
    yield "scale one bit up", "stored scale is not the exact one"
    yield "scale three bits up", "the scale term"
    yield "decoded one bit up", "x^ is not the exact product"
    yield "decoded two bits up", "the output term"
    yield "decoded far off", "over the bound"
    yield "decoded NaN", "over the bound"
    yield "NaN scale finite", "scale of a non-finite head"
    yield "NaN scale of other bits", "scale of a non-finite head"
    yield "NaN payload", "payload of a non-finite head"
    yield "NaN head finite", "did not decode to NaN"


@pytest.mark.parametrize(("damage", "rule"), list(tampered()))
def test_each_rule_is_found_broken_on_its_own(damage: str, rule: str) -> None:
    rows = named_input("nan", (4, 2, 64))
    layout = layout_of(rows)
    records = CODEC.encode(rows, layout)
    decoded = CODEC.decode(records, layout)
    assert verified_error_bound(rows, records, layout, decoded).nonfinite_heads == 2
    q, scale = split_records(records, layout)
    scale_bits, decoded_bits = scale.view(torch.int16), decoded.view(torch.int16)
    # Token 1 is finite; head 0 of token 2 holds a NaN. A value near 100 steps, never clamped.
    element = int((q[1, 1].int() - 100).abs().argmin())
    if damage == "q one up":
        q[1, 1, element] += 1
    elif damage.startswith("scale"):
        scale_bits[1, 1] += 1 if "one" in damage else 3
    elif damage == "decoded far off":
        decoded[1, 1, element] *= 1.5
    elif damage == "decoded NaN":
        decoded[1, 1, element] = torch.nan
    elif damage.startswith("decoded"):
        decoded_bits[1, 1, element] += 1 if "one" in damage else 2
    elif damage == "NaN scale finite":
        scale[2, 0] = 1.0
    elif damage == "NaN scale of other bits":
        scale_bits[2, 0] = 0x7FFF
    elif damage == "NaN payload":
        q[2, 0, 5] = 1
    elif damage == "NaN head finite":
        decoded[2, 0, 5] = 1.0

    report = measure_error(rows, records, layout, decoded)
    assert report.violations > 0
    found = [finding for finding in report.findings if rule in finding]
    place = "token 2, head 0" if damage.startswith("NaN") else "token 1, head 1"
    assert len(found) == 1, report.findings
    assert place in found[0]
    with pytest.raises(BoundViolation, match=r"first at token \d, head \d.*in all"):
        verified_error_bound(rows, records, layout, decoded)


def test_wrong_quantisers_are_found() -> None:
    rows = named_input("exact_ties", (4, 2, 64))
    layout = layout_of(rows)
    records = CODEC.encode(rows, layout)
    q, scale = split_records(records, layout)
    quotient = rows.double() / scale.double().unsqueeze(-1)
    half_away = quotient.sign() * (quotient.abs() + 0.5).floor()
    for wrong in (half_away, quotient.floor(), quotient.trunc(), quotient.ceil()):
        q.copy_(wrong)
        with pytest.raises(BoundViolation, match="q is not the exact quotient rounded"):
            verified_error_bound(rows, records, layout)


def test_report_is_frozen_and_empty_input_has_no_error() -> None:
    report = report_of(torch.empty(0, 2, 8, dtype=torch.bfloat16))
    assert (report.elements, report.violations, report.max_normalized_error) == (0, 0, 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.violations = 1  # type: ignore[misc]


def test_unfit_arguments_are_refused() -> None:
    rows = named_input("random_unit", (4, 2, 64))
    layout = layout_of(rows)
    records = CODEC.encode(rows, layout)
    with pytest.raises(UsageError, match="this layout has no scales"):
        verified_error_bound(rows, records, get_codec("bf16").layout("k", 2, 64))
    with pytest.raises(UsageError, match=r"records: expected uint8 \[4, .*got uint8 \[3, "):
        verified_error_bound(rows, records[:3], layout)
    with pytest.raises(UsageError, match="decoded: expected bfloat16 or float16"):
        verified_error_bound(rows, records, layout, rows.float())
    with pytest.raises(UsageError, match=r"decoded: expected torch.bfloat16 .*got torch.float16"):
        verified_error_bound(rows, records, layout, rows.half())
