"""The ladder: bytes by hand, arithmetic against rationals, bounds that hold and can fail."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.codec.bound_report import BoundViolation
from hiqcache.codec.catalog import CATALOG, EIGHT_BITS, LEVELS, RETIRED, RUNGS, codec_entry
from hiqcache.codec.hadamard import hadamard, rotate_wide, run_length
from hiqcache.codec.inputs import INPUTS, QWEN3_8B_SHAPE, named_input
from hiqcache.codec.ladder import split_records
from hiqcache.codec.ladder_bound import measure_ladder_error
from hiqcache.codec.planes import pack, unpack
from hiqcache.codec.record import SIDES, Levels, Side
from hiqcache.codec.registry import get_codec
from hiqcache.codec.row import BF16, E4M3, ROW_TYPES, RowType
from hiqcache.codec.verify import verified_error
from hiqcache.errors import UsageError
from hiqcache.lab.bench.codec import one_thread

KINDS = pytest.mark.parametrize("kind", ROW_TYPES.values(), ids=lambda kind: kind.label)
BOTH = pytest.mark.parametrize("side", SIDES)
PAIRS = pytest.mark.parametrize("name", ["k8v8", "k6v6", "k5v5", "k4v4"])
"""Every record of the ladder is in one of these."""


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


def bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int16 if rows.dtype.itemsize == 2 else torch.uint8)


def there_and_back(codec: Codec, side: Side, rows: Tensor) -> tuple[Tensor, Tensor]:
    layout = codec.layout(side, *rows.shape[1:])
    records = codec.encode(rows, layout)
    out = torch.full(rows.shape, torch.nan).to(rows.dtype)
    return records, codec.decode(records, layout, out=out)


def test_sixteen_pairs_and_six_of_them_listed() -> None:
    names = [f"k{k}v{v}" for k, v in product(LEVELS, LEVELS)]
    assert [name for name, entry in CATALOG.items() if isinstance(entry.k, Levels)] == names
    assert {name for name in names if CATALOG[name].listed} == set(RUNGS)


@pytest.mark.parametrize(
    ("name", "k", "v", "times"),
    [
        ("k8v8", 1024 + 16 + 96, 1040, 1.88),
        ("k8v4", 1024 + 16 + 96, 528, 2.45),
        ("k6v5", 768 + 16 + 96, 640 + 16, 2.6),
        ("k6v4", 768 + 16 + 96, 528, 2.9),
        ("k5v4", 640 + 16 + 96, 528, 3.2),
        ("k4v4", 512 + 32 + 96, 528, 3.5),
    ],
)
def test_bytes_of_eight_heads_of_128(name: str, k: int, v: int, times: float) -> None:
    entry = codec_entry(name)
    layouts = [entry.layout(side, 8, 128) for side in SIDES]
    assert [layout.record_bytes for layout in layouts] == [k, v]
    assert all(layout.padding_bytes == 0 for layout in layouts)
    assert 4096 / (k + v) >= times


@pytest.mark.parametrize(("head_dim", "aside"), [(16, 0), (64, 2), (80, 2), (128, 4), (256, 8)])
def test_one_value_of_k_in_32_is_set_aside(head_dim: int, aside: int) -> None:
    entry = codec_entry("k6v4")
    k, v = (entry.layout(side, 3, head_dim) for side in SIDES)
    assert (k.aside, k.aside_bytes) == (aside, 3 * 3 * aside)
    assert v.aside == v.aside_bytes == 0
    assert k.record_bytes % 16 == v.record_bytes % 16 == 0


@pytest.mark.parametrize(("head_dim", "groups"), [(64, 1), (96, 1), (128, 2), (192, 3), (256, 4)])
def test_k_of_4_bits_has_a_scale_for_64_values_where_that_divides(
    head_dim: int, groups: int
) -> None:
    layout = codec_entry("k4v4").layout("k", 5, head_dim)
    assert layout.scales_bytes == 5 * groups * 2
    assert codec_entry("k4v4").layout("v", 5, head_dim).scales_bytes == 10
    assert codec_entry("k5v4").layout("k", 5, head_dim).scales_bytes == 10


def test_scales_begin_at_an_even_byte() -> None:
    for name, side, heads in product(RUNGS, SIDES, range(1, 6)):
        layout = codec_entry(name).layout(side, heads, 8)
        assert layout.payload_bytes % 2 == 0


def test_heads_that_a_place_cannot_address_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 256 .* got 264; use exact or int8-compact"):
        codec_entry("k8v8").layout("k", 8, 264)


def test_the_name_that_it_replaces_is_refused_with_the_new_one() -> None:
    assert RETIRED == {"int8-rotated": "k8v8"}
    with pytest.raises(UsageError, match="'int8-rotated' is no more: k8v8 has taken its place"):
        get_codec("int8-rotated")


@pytest.mark.parametrize("width", [4, 5, 6, 8])
def test_planes_hold_every_value_at_every_place(width: int) -> None:
    values = torch.randint(0, 2**width, (3, 2**width * 8), dtype=torch.uint8)
    values[0] = torch.arange(2**width, dtype=torch.uint8).repeat_interleave(8)
    planes = pack(values, width)
    assert planes.shape == (3, values.shape[1] * width // 8)
    assert torch.equal(unpack(planes, width, values.shape[1]), values)
    one = torch.zeros(1, 16, dtype=torch.uint8)
    one[0, 9] = 2**width - 1
    nibble, rest = pack(one, width)[0, :8], pack(one, width)[0, 8:]
    if width < 8:
        assert nibble.tolist() == [0, 0, 0, 0, 0xF0, 0, 0, 0]
    assert rest.tolist() == {4: [], 5: [0, 2], 6: [0, 0, 12, 0], 8: [0, 255, *[0] * 6]}[width]


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_rotation_is_exact_whatever_products_may_be_rounded_to(precision: str) -> None:
    t = torch.randint(-16384, 16385, (300, 256), dtype=torch.int32)
    t[0], t[1] = 16384, -16384
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        for run in (8, 64, 128, 256):
            y = rotate_wide(t.float(), run)
            matrix = hadamard(run, t.device).to(torch.int64)
            expected = (t.view(-1, run).to(torch.int64) @ matrix).view(t.shape)
            assert torch.equal(y.to(torch.int64), expected)
    finally:
        torch.set_float32_matmul_precision(before)


def test_runs_are_the_largest_power_of_two_in_a_head() -> None:
    runs = {8: 8, 64: 64, 72: 8, 80: 16, 96: 32, 112: 16, 128: 128, 192: 64, 256: 256}
    assert {head_dim: run_length(head_dim) for head_dim in runs} == runs


def by_rationals(values: list[float], width: int) -> tuple[list[int], float, list[float]]:
    """q, the scale and H (q + 1/2) * scale of a head without anything set aside, one scale."""
    n = len(values)
    signs = hadamard(n, torch.device("cpu")).int().tolist()
    exponent = 0
    largest = max(abs(Fraction(value)) for value in values)
    while Fraction(2) ** exponent > largest:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= largest:
        exponent += 1
    t = [round(Fraction(value) / Fraction(2) ** (exponent - 13)) for value in values]
    y = [sum(sign * value for sign, value in zip(row, t, strict=True)) for row in signs]
    peak = Fraction(max(map(abs, y))) * Fraction(2) ** (exponent - 13) / n
    exact = torch.tensor(float(peak), dtype=torch.float32)
    scale = (exact / torch.tensor(2.0 ** (width - 1) - 0.5)).bfloat16().item()
    step = Fraction(scale) * n * Fraction(2) ** (13 - exponent)
    q = [value * step.denominator // step.numerator for value in y]
    levels = [2 * value + 1 for value in q]
    back = [
        sum(sign * level for sign, level in zip(row, levels, strict=True)) * Fraction(scale) / 2
        for row in signs
    ]
    return q, scale, [float(value) for value in back]


@PAIRS
def test_records_are_what_the_formulas_give(name: str) -> None:
    codec, width = get_codec(name), int(name[1])
    rows = named_input("random_unit", (6, 2, 16), 3)
    layout = codec.layout("v", 2, 16)
    records, decoded = there_and_back(codec, "v", rows)
    parts = split_records(records, layout)
    values = unpack(parts.payload, width, 32).reshape(6, 2, 16)
    q = values.view(torch.int8) if width == 8 else values.to(torch.int8) - 2 ** (width - 1)
    for token, head in product(range(6), range(2)):
        expected, scale, back = by_rationals(rows[token, head].double().tolist(), width)
        assert q[token, head].tolist() == expected
        assert parts.scales[token, head].item() == scale
        rounded = torch.tensor(back, dtype=torch.float64).bfloat16()
        assert torch.equal(decoded[token, head], rounded)


@KINDS
@PAIRS
@BOTH
@pytest.mark.parametrize("shape", [(24, 3, 64), (12, 2, 72), (6, 2, 256)], ids=str)
def test_both_bounds_hold_for_every_input(
    side: Side, name: str, shape: tuple[int, int, int], kind: RowType
) -> None:
    codec = get_codec(name)
    layout = codec.layout(side, *shape[1:])
    for source in INPUTS:
        rows = named_input(source, shape, 0, torch.bfloat16).to(kind.dtype)
        records, decoded = there_and_back(codec, side, rows)
        report = verified_error(codec, rows, records, layout, decoded)
        assert report is not None and report.elements == rows.numel()
        assert report.rms_utilization is not None and report.rms_utilization <= 1


@PAIRS
@BOTH
def test_another_tokens_row_breaks_both_bounds(side: Side, name: str) -> None:
    codec = get_codec(name)
    rows = named_input("random_unit", (8, 2, 128), 0)
    layout = codec.layout(side, 2, 128)
    records, decoded = there_and_back(codec, side, rows)
    report = measure_ladder_error(rows, records, layout, decoded.roll(1, 0))
    findings = " ".join(report.findings)
    assert "the error is over the bound" in findings
    assert "the head's error is over its bound: first at token 0, head 0, 16 in all" in findings
    with pytest.raises(BoundViolation, match="the rounding term is over its limit"):
        verified_error(codec, rows.roll(1, 0), records, layout, decoded.roll(1, 0))


@PAIRS
def test_a_step_more_in_one_value_breaks_the_bound(name: str) -> None:
    codec = get_codec(name)
    rows = named_input("random_unit", (4, 2, 64), 0)
    layout = codec.layout("v", 2, 64)
    records, decoded = there_and_back(codec, "v", rows)
    records[2, 33] ^= 4
    with pytest.raises(BoundViolation, match="the rounding term is over its limit: first at tok"):
        verified_error(codec, rows, records, layout, decoded)


@KINDS
def test_the_largest_values_of_k_come_back_bit_for_bit(kind: RowType) -> None:
    codec = get_codec("k4v4")
    rows = named_input("random_unit", (50, 4, 128), 0).to(kind.dtype)
    large = {3: 200.0, 64: -300.0, 65: 416.0, 127: -104.0}
    for place, value in large.items():
        rows[:, :, place] = torch.tensor(value).to(kind.dtype)
    _, decoded = there_and_back(codec, "k", rows)
    places = list(large)
    assert torch.equal(bits(decoded)[..., places], bits(rows)[..., places])
    others = [place for place in range(128) if place not in large]
    errors = (decoded.double() - rows.double())[..., others]
    assert errors.pow(2).mean().sqrt() < 0.12, "as if the large ones were not there"


def test_of_equal_magnitudes_the_lowest_places_are_set_aside() -> None:
    codec = get_codec("k8v8")
    rows = torch.ones(1, 1, 128, dtype=torch.bfloat16)
    rows[0, 0, ::2] = -1
    layout = codec.layout("k", 1, 128)
    parts = split_records(codec.encode(rows, layout), layout)
    assert parts.places.flatten().tolist() == [0, 1, 2, 3]
    assert parts.values.view(torch.bfloat16).flatten().tolist() == [-1, 1, -1, 1]


@KINDS
@PAIRS
@BOTH
def test_zeros_restore_zeros_and_a_broken_head_restores_nan_alone(
    side: Side, name: str, kind: RowType
) -> None:
    codec = get_codec(name)
    rows = torch.zeros(3, 3, 128).to(kind.dtype)
    rows[1] = named_input("random_unit", (1, 3, 128), 0)[0].to(kind.dtype)
    rows[1, 1, 7] = torch.nan
    if kind is not E4M3:
        rows[1, 1, 7] = torch.inf
    layout = codec.layout(side, 3, 128)
    records, decoded = there_and_back(codec, side, rows)
    assert bits(decoded)[[0, 2]].eq(0).all()
    assert bits(decoded)[1, 1].eq(kind.nan_bits).all()
    assert decoded[1, [0, 2]].float().isfinite().all()
    assert codec.broken_heads(records, layout).nonzero().tolist() == [[1, 1]]
    parts = split_records(records, layout)
    assert parts.values[1, 1].eq(0).all() and parts.places[1, 1].eq(0).all()


@PAIRS
@BOTH
def test_every_pattern_of_bf16_and_fp16_keeps_the_bounds(side: Side, name: str) -> None:
    codec = get_codec(name)
    for source, dtype in product(
        ("all_patterns", "scattered_patterns"), (torch.bfloat16, torch.float16)
    ):
        rows = named_input(source, (64, 8, 128), 0, dtype)
        layout = codec.layout(side, 8, 128)
        records, decoded = there_and_back(codec, side, rows)
        verified_error(codec, rows, records, layout, decoded)


def test_a_bit_less_costs_a_step_twice_as_large() -> None:
    rows = named_input("qwen3_8b_shaped", QWEN3_8B_SHAPE, 0)
    errors = []
    for name in ("k8v8", "k6v6", "k5v5", "k4v4"):
        _, decoded = there_and_back(get_codec(name), "v", rows)
        errors.append((decoded.double() - rows.double()).pow(2).mean().sqrt().item())
    assert errors[1] / errors[0] == pytest.approx(4, rel=0.15)
    assert errors[2] / errors[1] == pytest.approx(2, rel=0.1)
    assert errors[3] / errors[2] == pytest.approx(2, rel=0.1)


def test_one_large_channel_of_v_costs_the_others_less_than_int8() -> None:
    rows = named_input("random_unit", (256, 8, 128), 1).float()
    rows[:, :, 37] *= 40
    rows = rows.to(BF16.dtype)
    rotated, plain = (
        (there_and_back(get_codec(name), "v", rows)[1].double() - rows.double()).pow(2).mean()
        for name in ("k8v8", "int8-compact")
    )
    assert rotated < plain / 8


@pytest.mark.parametrize("name", ["int8", "int8-compact", "exact"])
def test_who_gains_nothing_from_fp8_rows_refuses_them(name: str) -> None:
    codec = get_codec(name)
    rows = torch.ones(2, 8, 128).to(torch.float8_e4m3fn)
    assert not set(EIGHT_BITS) & set(codec.entry.row_types)
    with pytest.raises(UsageError, match="rows: expected bfloat16.*got float8_e4m3fn"):
        codec.encode(rows, codec.layout("k", 8, 128))
