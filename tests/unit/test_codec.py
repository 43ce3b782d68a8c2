"""The codecs: numbers worked by hand, the bytes they may write, and what they refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from hiqcache.codec.catalog import codec_entry
from hiqcache.codec.inputs import named_input
from hiqcache.codec.int8 import choose_scale, dequantize, quantize, split_records
from hiqcache.codec.record import SIDES
from hiqcache.codec.registry import get_codec
from hiqcache.codec.row import BF16, FP16, ROW_TYPES, SIXTEEN_BIT_ROWS, RowType
from hiqcache.codec.verify import verified_error
from hiqcache.errors import UsageError
from hiqcache.lab.bench.codec import one_thread

NAMES = ("bf16", "int8", "int8-compact", "exact", "k8v8", "k6v6", "k5v5", "k4v4")
"""Every record that there is: the other pairs of the ladder are made of these."""
INT8_NAMES = ("int8", "int8-compact")
NAN_BITS = 0x7FC0
CASES = pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name}-{kind.label}")
        for name in NAMES
        for kind in ROW_TYPES.values()
        if kind.name in codec_entry(name).row_types
    ],
)
"""Each codec with each type of row that it encodes."""
KINDS = pytest.mark.parametrize("kind", SIXTEEN_BIT_ROWS.values(), ids=lambda kind: kind.label)
DEVICES = [
    name
    for name, present in (
        ("cpu", True),
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    )
    if present
]


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    # On a busy machine PyTorch's threads wait for each other far longer than they work.
    with one_thread():
        yield


def bits(tensor: Tensor) -> Tensor:
    whole = tensor.cpu().contiguous()
    return whole.view(torch.int16 if whole.dtype.itemsize == 2 else torch.uint8)


@lru_cache(maxsize=2)
def random_rows(
    tokens: int, heads: int, head_dim: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((tokens, heads, head_dim), generator=generator).to(dtype)


def head(*values: float, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """One token of one head of 8 values, zeros behind those given."""
    return torch.tensor([*values, *[0.0] * (8 - len(values))]).to(dtype).view(1, 1, 8)


def test_every_entry_of_the_catalog_makes_its_codec() -> None:
    assert all(get_codec(name).name == name for name in NAMES)


def test_unknown_codec_is_refused_with_the_supported_names() -> None:
    with pytest.raises(UsageError, match="'int4'.*bf16, int8, int8-compact"):
        get_codec("int4")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", SIDES)
def test_layout_is_asked_for_by_side(name: str, side: str) -> None:
    assert get_codec(name).layout(side, 8, 128).record_bytes > 0  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="side: expected one of k, v, got 'K'"):
        get_codec(name).layout("K", 8, 128)  # type: ignore[arg-type]


@KINDS
def test_record_bytes_worked_by_hand(kind: RowType) -> None:
    codec = get_codec("int8-compact")
    layout = codec.layout("k", 1, 8)
    rows = head(127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 0.49, dtype=kind.dtype)
    record = codec.encode(rows, layout)
    # Scale 1.0 is 0x3F80, little endian. Ties go to the even neighbour.
    expected = [127, 0, 2, 2, 0, 256 - 2, 256 - 126, 0, 0x80, 0x3F, 0, 0, 0, 0, 0, 0]
    assert record.tolist() == [expected]
    decoded = codec.decode(record, layout, dtype=kind.dtype)
    assert decoded.dtype == kind.dtype
    assert decoded.tolist() == [[[127, 0, 2, 2, 0, -2, -126, 0]]]


def test_quotient_uses_the_stored_scale_not_the_exact_one() -> None:
    # 1.5 / 127 = 0.0118110 is stored as 0x3C42 = 0.0118408, far enough apart for large values to
    # round differently.
    rows = torch.arange(0, 193, dtype=torch.float64).div(128).bfloat16()
    rows = torch.cat([rows, torch.zeros(7).bfloat16()]).view(1, 1, 200)
    scale = choose_scale(rows)
    assert bits(scale).item() == 0x3C42
    stored, exact = scale.double().item(), 1.5 / 127
    by_stored = (rows.double() / stored).round().clamp(-127, 127)
    by_exact = (rows.double() / exact).round().clamp(-127, 127)
    assert not torch.equal(by_stored, by_exact), "the input cannot tell the two apart"
    assert torch.equal(quantize(rows, scale).double(), by_stored)


def test_scale_is_rounded_to_nearest_even() -> None:
    # absmax 254 gives exactly 2; 255 gives 2.00787, which is past the middle of 2 and 2.015625.
    assert choose_scale(head(254)).item() == 2.0
    assert choose_scale(head(255)).item() == 2.015625
    assert choose_scale(head(-255)).item() == 2.015625


def test_absmax_is_found_per_head_and_per_token() -> None:
    rows = torch.zeros(2, 3, 8).bfloat16()
    rows[0, 1, 7], rows[1, 2, 0] = -254.0, 127.0
    floor = bits(choose_scale(head(0))).item()
    assert bits(choose_scale(rows)).tolist() == [
        [floor, 0x4000, floor],
        [floor, floor, 0x3F80],
    ]


@pytest.mark.parametrize("name", INT8_NAMES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
@KINDS
def test_zero_head_decodes_to_positive_zero(kind: RowType, name: str, zero: float) -> None:
    codec = get_codec(name)
    layout = codec.layout("v", 2, 8)
    rows = torch.full((3, 2, 8), zero).to(kind.dtype)
    rows[:, 1, 0] = 1.0
    records = codec.encode(rows, layout)
    decoded = codec.decode(records, layout, out=torch.full_like(rows, torch.nan))
    assert bits(decoded[:, 0]).eq(0).all()
    assert bits(decoded[:, 1, 1:]).eq(0).all()
    assert decoded[:, 1, 0].eq(1.0).all()


def test_head_under_the_floor_gets_the_floor_scale_and_rounds_to_zero() -> None:
    floor_scale = torch.tensor(2.0**-112 / 127).bfloat16()
    for value in (2.0**-133, 2.0**-126, 2.0**-120, 0.49 * 2.0**-119):
        rows = head(value, -value)
        scale = choose_scale(rows)
        assert bits(scale).item() == bits(floor_scale).item()
        assert scale.item() >= 2.0**-126, "the smallest scale must not be subnormal"
        assert quantize(rows, scale).eq(0).all()
    # Under the floor, but more than half a step: kept.
    assert quantize(head(2.0**-113), choose_scale(head(2.0**-113))).flatten()[0] == 64


@pytest.mark.parametrize("sign", [1, -1])
def test_largest_finite_value_stays_finite(sign: int) -> None:
    # Its scale would round up to 2.015625 x 2^120, and 127 of that is infinity in BF16.
    rows = head(sign * BF16.largest, 2.0**120)
    scale = choose_scale(rows)
    assert scale.item() == 2.0**121
    assert dequantize(quantize(rows, scale), scale).flatten().tolist()[:2] == [
        sign * 254 * 2.0**120,
        0.0,
    ]


@pytest.mark.parametrize("sign", [1, -1])
def test_largest_fp16_value_comes_back_though_its_product_is_infinity(sign: int) -> None:
    # 65504 / 127 = 515.8 is stored as 516, and 127 x 516 = 65532 rounds to infinity in FP16.
    rows = head(sign * FP16.largest, 258.0, 257.0, dtype=torch.float16)
    scale = choose_scale(rows)
    assert scale.item() == 516.0
    assert torch.tensor(127 * 516.0).half().isinf()
    decoded = dequantize(quantize(rows, scale), scale, dtype=torch.float16)
    assert decoded.flatten().tolist()[:3] == [sign * FP16.largest, 0.0, 0.0]


def test_small_fp16_heads_come_back_exactly() -> None:
    """Subnormal heads of up to 127 steps: every value in every such head."""
    steps = torch.arange(1, 128)
    every = torch.arange(-127, 128)
    rows = (every * (every.abs() <= steps[:, None])).double() * 2.0**-24
    rows[:, 0] = steps * 2.0**-24  # the absmax, where the cut left a zero
    fp16 = rows[:, None].half()
    assert torch.equal(fp16.double(), rows[:, None])
    scale = choose_scale(fp16)
    assert torch.equal(dequantize(quantize(fp16, scale), scale, dtype=torch.float16), fp16)


@pytest.mark.parametrize("name", INT8_NAMES)
@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        *((BF16, bits) for bits in (0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0x7FFF, 0xFFC1, 0xFFFF)),
        *((FP16, bits) for bits in (0x7C00, 0xFC00, 0x7C01, 0x7E00, 0x7FFF, 0xFE01, 0xFFFF)),
    ],
    ids=lambda value: hex(value) if isinstance(value, int) else value.label,
)
def test_non_finite_head_decodes_to_nan_and_its_neighbours_do_not(
    name: str, kind: RowType, pattern: int
) -> None:
    codec = get_codec(name)
    layout = codec.layout("k", 3, 64)
    rows = random_rows(5, 3, 64, dtype=kind.dtype).clone()
    clean = codec.decode(codec.encode(rows, layout), layout, dtype=kind.dtype)
    rows.view(torch.int16)[2, 1, 40] = pattern - (0x10000 if pattern > 0x7FFF else 0)
    records = codec.encode(rows, layout)
    payload, scales = split_records(records, layout)
    assert bits(scales)[2, 1] == NAN_BITS
    assert payload[2, 1].eq(0).all()
    decoded = codec.decode(records, layout, dtype=kind.dtype)
    assert bits(decoded[2, 1]).eq(kind.nan_bits).all()
    others = torch.ones(5, 3, dtype=torch.bool)
    others[2, 1] = False
    assert torch.equal(bits(decoded[others]), bits(clean[others]))


@KINDS
def test_results_do_not_depend_on_flushing_subnormals(kind: RowType) -> None:
    shape = (64, 8, 128)
    names = ("subnormal", "near_floor", "all_patterns", "scattered_patterns")
    inputs = [named_input(name, shape, dtype=kind.dtype) for name in names]
    codec = get_codec("int8")
    layout = codec.layout("k", 8, 128)

    def both() -> list[Tensor]:
        out = []
        for rows in inputs:
            records = codec.encode(rows, layout)
            out += [records, codec.decode(records, layout, dtype=kind.dtype).view(torch.int16)]
        return out

    kept = both()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert torch.tensor([2.0**-127]).mul(1.0).item() == 0.0, "flushing is not on"
        flushed = both()
    finally:
        torch.set_flush_denormal(False)
    assert all(torch.equal(a, b) for a, b in zip(kept, flushed, strict=True))


GEOMETRIES = [
    (tokens, heads, head_dim)
    for tokens in (1, 63, 512, 1000)
    for heads in (1, 3, 8)
    for head_dim in (8, 64, 72, 80, 96, 128, 256)
]


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        pytest.param(name, kind, shape, id=f"{name}-{kind.label}-{'x'.join(map(str, shape))}")
        for name in NAMES
        for kind in ROW_TYPES.values()
        for shape in GEOMETRIES
        if kind.name in codec_entry(name).row_types
        # Many tokens matter where a kernel's tiles do; here once for each way of scaling.
        and (shape[0] == 63 or (kind is BF16 and (shape[0] == 1 or name in INT8_NAMES)))
    ],
)
def test_writes_exactly_its_own_bytes(
    name: str, kind: RowType, shape: tuple[int, int, int]
) -> None:
    tokens, heads, head_dim = shape
    codec = get_codec(name)
    layout = codec.layout("k", heads, head_dim, kind.value_bytes)
    rows = random_rows(*shape, dtype=kind.dtype)
    fresh = codec.encode(rows, layout)

    # Records in every second slot of a wider buffer. `fresh` was zero where this is poison, so
    # a byte that neither call wrote differs as well.
    buffer = torch.full((2 * tokens, layout.record_bytes + 6), 0xA5, dtype=torch.uint8)
    expected = buffer.clone()
    expected[::2, 4 : 4 + layout.used_bytes] = fresh[:, : layout.used_bytes]
    records = buffer[::2, 4 : 4 + layout.record_bytes]
    assert codec.encode(rows, layout, out=records) is records
    assert torch.equal(buffer, expected)
    assert fresh[:, layout.used_bytes :].eq(0).all()

    # Poisoned padding and strided records must not change what comes back.
    decoded = codec.decode(fresh, layout, out=torch.full(shape, torch.nan).to(kind.dtype))
    space = torch.full((3 * tokens, heads, head_dim), torch.nan).to(kind.dtype)
    out = space[1::3]
    assert codec.decode(records, layout, out=out) is out
    assert torch.equal(bits(out), bits(decoded))
    assert space[::3].float().isnan().all() and space[2::3].float().isnan().all()
    # In float64 and so slow; a sample of the tokens is enough for what depends on the shape.
    some = slice(None, None, 1 + tokens // 64)
    report = verified_error(codec, rows[some], fresh[some], layout, decoded[some])
    assert (report is None) == (not codec.lossy)


@CASES
def test_strided_and_permuted_rows_encode_like_contiguous_ones(name: str, kind: RowType) -> None:
    codec = get_codec(name)
    layout = codec.layout("v", 3, 72, kind.value_bytes)
    wide = random_rows(63 * 2, 3, 72, dtype=kind.dtype)
    before = wide.clone()
    every_second = wide[1::2]
    assert torch.equal(
        codec.encode(every_second, layout), codec.encode(every_second.contiguous(), layout)
    )
    by_head = every_second.permute(1, 0, 2).contiguous().permute(1, 0, 2)
    assert not by_head.is_contiguous()
    assert torch.equal(codec.encode(by_head, layout), codec.encode(every_second, layout))
    assert torch.equal(bits(wide), bits(before)), "encode changed its input"


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_is_no_work(name: str) -> None:
    codec = get_codec(name)
    layout = codec.layout("k", 3, 64)
    records = codec.encode(torch.empty(0, 3, 64, dtype=torch.bfloat16), layout)
    assert records.shape == (0, layout.record_bytes)
    assert codec.decode(records, layout).shape == (0, 3, 64)


@KINDS
def test_bf16_keeps_every_pattern(kind: RowType) -> None:
    rows = named_input("all_patterns", (64, 8, 128), dtype=kind.dtype)
    codec = get_codec("bf16")
    layout = codec.layout("k", 8, 128)
    assert bits(rows).unique().numel() == 2**16
    decoded = codec.decode(codec.encode(rows, layout), layout, dtype=kind.dtype)
    assert torch.equal(bits(decoded), bits(rows))


def test_int8_and_compact_share_their_used_bytes() -> None:
    rows = named_input("scattered_patterns", (64, 8, 128))
    used = []
    for name in INT8_NAMES:
        codec = get_codec(name)
        layout = codec.layout("k", 8, 128)
        used.append(codec.encode(rows, layout)[:, : layout.used_bytes])
    assert torch.equal(*used)


@KINDS
def test_codec_is_the_three_functions(kind: RowType) -> None:
    rows = named_input("scattered_patterns", (64, 8, 128), dtype=kind.dtype)
    codec = get_codec("int8")
    layout = codec.layout("k", 8, 128)
    records = codec.encode(rows, layout)
    q, scale = split_records(records, layout)
    assert torch.equal(bits(scale), bits(choose_scale(rows)))
    assert torch.equal(q, quantize(rows, scale.contiguous()))
    decoded = codec.decode(records, layout, dtype=kind.dtype)
    assert torch.equal(bits(decoded), bits(dequantize(q, scale, dtype=kind.dtype)))


@CASES
def test_encode_and_decode_never_look_at_values(name: str, kind: RowType) -> None:
    # Tensors of the meta device have no values: `.item()`, `.cpu()` and control flow on
    # values fail on them.
    codec = get_codec(name)
    layout = codec.layout("k", 8, 128, kind.value_bytes)
    rows = torch.empty(16, 8, 128, dtype=kind.dtype, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        rows.cpu().sum().item()
    records = codec.encode(rows, layout)
    assert (records.device.type, records.shape) == ("meta", (16, layout.record_bytes))
    decoded = codec.decode(records, layout, dtype=kind.dtype)
    assert (decoded.shape, decoded.dtype) == (rows.shape, kind.dtype)


@pytest.mark.parametrize("device", [name for name in DEVICES if name != "cpu"] or ["none"])
@CASES
def test_other_devices_give_the_cpu_bits(name: str, kind: RowType, device: str) -> None:
    if device == "none":
        pytest.skip("this machine has no device but the CPU")
    codec = get_codec(name)
    layout = codec.layout("k", 8, 128, kind.value_bytes)
    for source in ("random_unit", "near_floor", "all_patterns", "scattered_patterns"):
        rows = named_input(source, (64, 8, 128), dtype=kind.dtype)
        records = codec.encode(rows, layout)
        there = codec.encode(rows.to(device), layout)
        assert torch.equal(there.cpu(), records)
        here, back = (codec.decode(held, layout, dtype=kind.dtype) for held in (records, there))
        assert torch.equal(bits(back), bits(here))


def bad_calls() -> Iterator[tuple[str, str, dict[str, Tensor], tuple[str, ...]]]:
    rows = torch.zeros(4, 8, 128, dtype=torch.bfloat16)
    records = torch.zeros(4, 1152, dtype=torch.uint8)
    other = torch.zeros(4, 1152 + 1, dtype=torch.uint8)
    yield (
        "dtype",
        "encode",
        {"rows": rows.float()},
        ("rows", "bfloat16 or float16", "float32", "pass rows of the geometry"),
    )
    yield "heads", "encode", {"rows": rows[:, :4]}, ("rows", "[tokens, 8, 128]", "[4, 4, 128]")
    yield "flat", "encode", {"rows": rows.flatten(1)}, ("rows", "[tokens, 8, 128]", "[4, 1024]")
    yield "out tokens", "encode", {"rows": rows, "out": records[:3]}, ("out", "[4, 1152]", "[3, ")
    yield "out bytes", "encode", {"rows": rows, "out": records[:, :1040]}, ("[4, 1040]", "allocate")
    yield "out dtype", "encode", {"rows": rows, "out": records.view(torch.int8)}, ("uint8", "int8")
    yield "out device", "encode", {"rows": rows, "out": records.to("meta")}, ("on cpu", "on meta")
    yield "odd stride", "encode", {"rows": rows, "out": other[:, :1152]}, ("even", "(1153, 1)")
    yield (
        "odd offset",
        "decode",
        {"records": records.new_zeros(9, 1152).flatten()[1:][: 4 * 1152].view(4, 1152)},
        ("records", "even", "offset 1"),
    )
    yield "gaps", "decode", {"records": records.new_zeros(4, 2304)[:, ::2]}, ("contiguous",)
    yield "records dtype", "decode", {"records": records.int()}, ("records", "uint8", "int32")
    yield "rows tokens", "decode", {"records": records, "out": rows[:2]}, ("[4, 8, 128]", "[2, ")


@pytest.mark.parametrize(
    ("call", "tensors", "words"),
    [pytest.param(*rest, id=label) for label, *rest in bad_calls()],
)
def test_unfit_tensors_are_refused_in_full_sentences(
    call: str, tensors: dict[str, Tensor], words: tuple[str, ...]
) -> None:
    codec = get_codec("int8")
    with pytest.raises(UsageError) as refusal:
        getattr(codec, call)(layout=codec.layout("k", 8, 128), **tensors)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_layout_of_another_codec_is_refused() -> None:
    rows = torch.zeros(4, 8, 128, dtype=torch.bfloat16)
    codec = get_codec("int8")
    own = codec.layout("k", 8, 128)
    for layout in (
        get_codec("int8-compact").layout("k", 8, 128),
        dataclasses.replace(own, scales_bytes=0),
    ):
        with pytest.raises(UsageError, match="layout: expected one of codec int8"):
            codec.encode(rows, layout)
        with pytest.raises(UsageError, match="layout: expected one of codec int8"):
            codec.decode(torch.zeros(4, 1152, dtype=torch.uint8), layout)


@KINDS
@pytest.mark.parametrize("name", ["bf16", *INT8_NAMES])
def test_encoding_a_decoded_row_gives_the_same_record(name: str, kind: RowType) -> None:
    """A cache that re-encodes what it restored must not drift; every finite absmax, any q."""
    codec = get_codec(name)
    layout = codec.layout("k", 1, 128)
    absmax = torch.arange(kind.infinity_bits, dtype=torch.int32).to(torch.int16).view(kind.dtype)
    share = torch.linspace(-1, 1, 127)
    rows = torch.empty(len(absmax), 1, 128, dtype=kind.dtype)
    rows[:, 0, 0] = absmax
    rows[:, 0, 1:] = absmax.float()[:, None] * share
    records = codec.encode(rows, layout)
    decoded = codec.decode(records, layout, dtype=kind.dtype)
    assert decoded.isfinite().all()
    assert torch.equal(codec.encode(decoded, layout), records)


def test_subnormal_fp16_heads_do_not_drift() -> None:
    """Every subnormal absmax with every value up to it, where FP16's steps are coarsest."""
    codec = get_codec("int8-compact")
    steps = torch.arange(1, 1024)
    rows = torch.arange(-1023, 1025).clamp(-steps[:, None], steps[:, None]).double() * 2.0**-24
    fp16 = rows[:, None].half()
    layout = codec.layout("k", 1, fp16.shape[-1])
    records = codec.encode(fp16, layout)
    decoded = codec.decode(records, layout, dtype=torch.float16)
    assert torch.equal(codec.encode(decoded, layout), records)
