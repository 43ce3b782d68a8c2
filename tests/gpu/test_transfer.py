"""The transfers on a GPU: the same bits as the reference, on any stream, without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import triton

from hiqcache.codec.inputs import INPUTS
from hiqcache.codec.registry import get_codec
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.registry import choose_transfer
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import (
    POISON,
    Shape,
    bits,
    fill,
    make_sides,
    poison_rows,
    some_slots,
)

pytestmark = pytest.mark.gpu
HARD = tuple(name for name in INPUTS if name != "qwen3_8b_shaped")
TOKENS = 100
QWEN3 = Shape(layers=3, slots=300)
SHAPES = (
    QWEN3,
    Shape(layers=3, slots=300, layout="page_first"),
    Shape(heads=1, k_dim=8, v_dim=8, slots=300),
    Shape(heads=3, k_dim=64, v_dim=64, slots=300, layout="page_first"),
    Shape(heads=3, k_dim=72, v_dim=72, slots=300, strided=True),
    Shape(heads=5, k_dim=80, v_dim=96, slots=300, layout="page_first", strided=True),
    Shape(heads=2, k_dim=576, v_dim=512, slots=300),
    Shape(heads=64, k_dim=256, v_dim=256, slots=120),
    Shape(layers=3, slots=300, dtype=torch.float16),
    Shape(heads=3, k_dim=72, v_dim=72, slots=300, strided=True, dtype=torch.float16),
    Shape(heads=5, k_dim=80, v_dim=96, slots=300, layout="page_first", dtype=torch.float16),
)


# Compiling a case takes half a minute, so that there are no more of the ladder than it takes to
# see each width on each side, each row type, both layouts and odd heads.
E4M3, E5M2, FP16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16
FIRST = ("bf16", "int8", "int8-compact")
LADDER = ("exact", "k8v8", "k6v5", "k5v4", "k4v4")
CASES = (
    *((codec_name, shape) for codec_name in FIRST for shape in SHAPES),
    *((codec_name, QWEN3) for codec_name in LADDER),
    ("exact", Shape(heads=3, k_dim=72, v_dim=72, slots=300, strided=True)),
    ("k6v5", SHAPES[1]),
    ("k4v4", SHAPES[1]),
    ("k6v4", Shape(heads=3, k_dim=64, v_dim=64, slots=300, layout="page_first")),
    ("k4v8", Shape(heads=1, k_dim=256, v_dim=256, slots=300)),
    ("k5v6", Shape(heads=5, k_dim=80, v_dim=96, slots=300, strided=True, dtype=FP16)),
    ("k8v5", Shape(heads=5, k_dim=192, v_dim=72, slots=300, layout="page_first")),
    ("k6v5", Shape(heads=1, k_dim=8, v_dim=8, slots=300)),
    ("k6v5", Shape(layers=3, slots=300, dtype=E4M3)),
    ("k4v5", Shape(heads=3, k_dim=64, v_dim=128, slots=300, dtype=E5M2)),
    ("bf16", Shape(heads=3, k_dim=64, v_dim=64, slots=300, dtype=E4M3)),
)


@pytest.mark.parametrize(("codec_name", "shape"), CASES, ids=str)
def test_fused_equals_the_reference(codec_name: str, shape: Shape) -> None:
    slots = _slots(shape, TOKENS)
    for announced in (True, False):
        _assert_equal(*_both(codec_name, shape, *slots, announced=announced))


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("codec_name", [*FIRST, "k6v5", "k4v4"])
@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_pages(codec_name: str, layout: str, page_size: int) -> None:
    shape = Shape(layers=3, slots=1024, layout=layout)
    slots = []
    for seed in range(3):
        pages = some_slots(Shape(slots=1024 // page_size), 4, seed)
        slots.append((pages[:, None] * page_size + torch.arange(page_size)).flatten())
    _assert_equal(*_both(codec_name, shape, slots[0], slots[1], slots[2]))


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize(
    ("codecs", "dtype"),
    [((*FIRST, *LADDER), torch.bfloat16), (FIRST, FP16), (("k6v5",), E4M3)],
    ids=["bf16", "fp16", "e4m3"],
)
def test_hard_rows(name: str, codecs: tuple[str, ...], dtype: torch.dtype) -> None:
    shape = replace(QWEN3, dtype=dtype)
    slots = _slots(shape, 64)
    for codec_name in codecs:
        _assert_equal(*_both(codec_name, shape, *slots, inputs=(name,)))


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 63, 300])
def test_any_number_of_tokens(tokens: int) -> None:
    slots = _slots(QWEN3, tokens)
    for codec_name in ("int8-compact", "k6v5", "exact"):
        _assert_equal(*_both(codec_name, QWEN3, *slots))


def test_slots_at_any_address() -> None:
    """A slice of slots starts on 8 bytes, not on 16."""
    device_slots, host_slots, targets = (slots[1:] for slots in _slots(QWEN3, 38))
    _assert_equal(*_both("int8-compact", QWEN3, device_slots, host_slots, targets, cut=1))


def test_slots_on_the_cpu() -> None:
    """As SGLang's `direct` backend passes them."""
    device_slots, host_slots, targets = _slots(QWEN3, TOKENS)
    expected, got = _both("int8", QWEN3, device_slots, host_slots, targets, slots_on="cpu")
    _assert_equal(expected, got)


def test_addresses_beyond_two_gigabytes() -> None:
    codec, shape = get_codec("int8-compact"), Shape(layers=1, slots=2_200_000)
    k, v = make_sides(codec, shape, "cuda")
    assert k.host[0].numel() > 2**31 and k.device[0].numel() > 2**31
    slots = torch.tensor([2_199_999, 5, 2_100_000, 1_048_576], device="cuda")
    fill(k, slots, ("random_unit",), 0)
    fill(v, slots, ("random_unit",), 1)
    transfer = FusedTransfer(codec, k, v)
    transfer.backup(slots, slots.flip(0))
    kept = [side.device[0][slots].clone() for side in (k, v)]
    for side in (k, v):
        side.device[0][slots] = torch.nan
    transfer.restore(slots, slots.flip(0), 0)
    for side, before in zip((k, v), kept, strict=True):
        expected = codec.decode(codec.encode(before, side.layout), side.layout)
        assert torch.equal(side.device[0][slots], expected)


def test_the_callers_stream_orders_the_work() -> None:
    codec = get_codec("int8-compact")
    k, v = make_sides(codec, QWEN3, "cuda")
    transfer = FusedTransfer(codec, k, v)
    transfer.warm_up()
    device_slots, host_slots, _ = (slots.cuda() for slots in _slots(QWEN3, TOKENS))
    fresh = torch.randn(TOKENS, 8, 128, device="cuda").bfloat16()
    stream = torch.cuda.Stream()

    def produce() -> None:
        for side in (k, v):
            for rows in side.device:
                rows.index_copy_(0, device_slots, fresh)

    # CUDA waits for the device where it loads a kernel for the first time.
    produce()
    for side in (k, v):
        poison_rows(side)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(4_000_000_000)
        produce()
        transfer.backup(device_slots, host_slots)
        # Nothing waited for the sleeping GPU, so the records are as they were.
        assert bool((k.host[0] == POISON).all())
        transfer.restore_all(device_slots, host_slots)
    stream.synchronize()
    for side in (k, v):
        got = side.host[0][host_slots.cpu()]
        decoded = codec.decode(got, side.layout)
        assert torch.equal(side.device[0][device_slots].cpu(), decoded)
        assert not bool(decoded.isnan().any())


@pytest.mark.parametrize("tokens", [1, 40, 3000])
def test_a_stream_sees_a_layer_whole_once_it_has_waited_for_it(tokens: int) -> None:
    """What attention does: read a layer's rows while the kernel still carries later ones."""
    transfer, shape = _long_pool()
    codec, k, v = transfer.codec, transfer.k, transfer.v
    everything = torch.arange(shape.slots, device="cuda")
    rows = [torch.randn(shape.slots, 8, 128, device="cuda").bfloat16() for _ in k.device]
    for side in (k, v):
        for layer, fresh in zip(side.device, rows, strict=True):
            layer.copy_(fresh)
    transfer.backup(everything, everything)
    stream = torch.cuda.Stream()
    looked_behind = False
    for round_ in range(20):
        slots = torch.randperm(shape.slots, device="cuda")[:tokens]
        for side in (k, v):
            poison_rows(side)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            transfer.begin_restore(slots, slots)
            # Behind the restore's back: mostly it is still under way.
            early = k.device[-1][slots].clone()
            seen = []
            for layer in range(shape.layers):
                transfer.restore(slots, slots, layer)
                seen.append([side.device[layer].index_select(0, slots) for side in (k, v)])
        torch.cuda.synchronize()
        looked_behind |= bool(early.isnan().any())
        for layer, (fresh, found) in enumerate(zip(rows, seen, strict=True)):
            for side, got in zip((k, v), found, strict=True):
                expected = codec.decode(codec.encode(fresh[slots], side.layout), side.layout)
                assert torch.equal(got, expected), f"round {round_}, layer {layer}"
    assert looked_behind or tokens < shape.slots


def test_a_restore_that_is_left_off_is_waited_for() -> None:
    transfer, shape = _long_pool()
    k, v = transfer.k, transfer.v
    slots = torch.arange(shape.slots, device="cuda")
    for side in (k, v):
        for layer in side.device:
            layer.zero_()
    transfer.backup(slots, slots)
    torch.cuda.synchronize()
    transfer.begin_restore(slots, slots)
    transfer.restore(slots, slots, 0)
    transfer.restore(slots.clone(), slots, 0)
    for side in (k, v):
        poison_rows(side)
    torch.cuda.synchronize()
    # Nothing came behind the poison.
    assert all(bool(rows.isnan().all()) for side in (k, v) for rows in side.device)


def test_backup_and_restore_at_once() -> None:
    """On two streams, as SGLang runs them, on slots of their own."""
    codec, shape = get_codec("int8-compact"), Shape(layers=4, slots=4000)
    k, v = make_sides(codec, shape, "cuda")
    transfer = FusedTransfer(codec, k, v)
    transfer.warm_up()
    everything = torch.arange(shape.slots, device="cuda")
    rows = torch.randn(shape.slots, 8, 128, device="cuda").bfloat16()
    for side in (k, v):
        for layer in side.device:
            layer.copy_(rows)
    transfer.backup(everything, everything)
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    order = torch.randperm(shape.slots, device="cuda")
    out, back = order[:2000], order[2000:]
    fresh = torch.randn(2000, 8, 128, device="cuda").bfloat16()
    for side in (k, v):
        for layer in side.device:
            layer[out] = fresh
            layer[back] = torch.nan
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(first):
            transfer.backup(out, out)
        with torch.cuda.stream(second):
            transfer.restore_all(back, back)
    torch.cuda.synchronize()
    for side in (k, v):
        records = codec.encode(fresh, side.layout).cpu()
        decoded = codec.decode(codec.encode(rows[back], side.layout), side.layout)
        for host, layer in zip(side.host, side.device, strict=True):
            assert torch.equal(host[out.cpu()], records)
            assert torch.equal(layer[back], decoded)


@pytest.fixture
def nothing_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_calls_allocate_nothing_compile_nothing_and_do_not_wait(
    nothing_waits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.set_sync_debug_mode("default")
    codec = get_codec("int8")
    k, v = make_sides(codec, QWEN3, "cuda")
    transfer = FusedTransfer(codec, k, v)
    transfer.warm_up()
    slots = [tuple(part.cuda() for part in _slots(QWEN3, n)[:2]) for n in (1, 16, 37, 300)]
    torch.cuda.synchronize()

    def compiles(*args: object, **kwargs: object) -> None:
        raise AssertionError("compiled in traffic")

    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", compiles)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    for device_slots, host_slots in slots:
        transfer.backup(device_slots, host_slots)
        transfer.restore_all(device_slots, host_slots)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_fused_holds_less_than_a_mebibyte() -> None:
    codec = get_codec("int8")
    k, v = make_sides(codec, Shape(heads=1, k_dim=8, v_dim=8, layers=128), "cuda")
    assert FusedTransfer(codec, k, v).device_bytes < 2**20


def test_auto_looks_at_the_memory() -> None:
    k, _ = make_sides(get_codec("int8"), QWEN3, "cuda")
    device = k.device[0].device
    assert choose_transfer("auto", device, k.host)[0].name == "fused"
    kind, why = choose_transfer("auto", device, (torch.zeros(5000, dtype=torch.uint8),))
    assert kind.name == "torch" and "not registered" in why
    assert bool((k.host[0] == POISON).all())


def _long_pool() -> tuple[FusedTransfer, Shape]:
    """Enough for a restore that is still under way when its call returns."""
    codec, shape = get_codec("int8-compact"), Shape(layers=12, slots=3000)
    transfer = FusedTransfer(codec, *make_sides(codec, shape, "cuda"))
    transfer.warm_up()
    return transfer, shape


def _slots(shape: Shape, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        some_slots(shape, tokens, 1),
        some_slots(shape, tokens, 2),
        some_slots(shape, tokens, 3),
    )


def _both(
    codec_name: str,
    shape: Shape,
    device_slots: torch.Tensor,
    host_slots: torch.Tensor,
    targets: torch.Tensor,
    *,
    inputs: tuple[str, ...] = ("scattered_patterns", "exact_ties", "random_unit"),
    slots_on: str = "cuda",
    cut: int = 0,
    announced: bool = True,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """All bits after a backup and after a restore, of the reference on the CPU and of `fused`."""
    codec = get_codec(codec_name)
    kinds: tuple[tuple[type[Transfer], str], ...]
    kinds = ((TorchTransfer, "cpu"), (FusedTransfer, "cuda"))
    results = []
    for kind, device in kinds:
        k, v = make_sides(codec, shape, device)
        place = device if device == "cpu" else slots_on
        moved = [_at(slots, place, cut) for slots in (device_slots, host_slots, targets)]
        for seed, side in enumerate((k, v)):
            fill(side, device_slots, inputs, seed)
        transfer = kind(codec, k, v)
        transfer.warm_up()
        transfer.backup(moved[0], moved[1])
        torch.cuda.synchronize()
        counts = transfer.nonfinite_heads() or 0, transfer.inexact_rows() or 0
        found = [torch.tensor(counts), *bits(k), *bits(v)]
        for side in (k, v):
            poison_rows(side)
        if announced:
            transfer.begin_restore(moved[2], moved[1])
        for layer in range(shape.layers):
            transfer.restore(moved[2], moved[1], layer)
        torch.cuda.synchronize()
        results.append([*found, *bits(k), *bits(v)])
    return results[0], results[1]


def _at(slots: torch.Tensor, place: str, cut: int) -> torch.Tensor:
    """The slots on a device, `cut` elements into an allocation."""
    return torch.cat([slots[:cut], slots]).to(place)[cut:]


def _assert_equal(expected: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    for one, other in zip(expected, got, strict=True):
        assert torch.equal(one, other), (one != other).nonzero()[:4].tolist()
