"""The kernels under Triton's interpreter against the torch reference, bit for bit.

Not collected by itself: `test_fused.py` runs it in a process with `TRITON_INTERPRET=1`, which
Triton reads once, when it is imported.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hiqcache.codec.inputs import INPUTS
from hiqcache.codec.registry import get_codec
from hiqcache.errors import UsageError
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.launch import INTERPRETED, RowKernels
from hiqcache.transfer.layerwise import LayerCounts
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import (
    Shape,
    bits,
    fill,
    make_sides,
    poison_rows,
    some_slots,
)

SHAPES = (
    Shape(),
    Shape(layout="page_first"),
    Shape(heads=1, k_dim=8, v_dim=16, layout="page_first"),
    Shape(heads=3, k_dim=64, v_dim=64),
    Shape(heads=3, k_dim=72, v_dim=40, strided=True),
    Shape(heads=5, k_dim=96, v_dim=80, layout="page_first", strided=True),
    Shape(dtype=torch.float16),
    Shape(heads=3, k_dim=72, v_dim=40, layout="page_first", strided=True, dtype=torch.float16),
)
# Bytes that are no payload go through the product too, and are dropped behind it.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in multiply")
HARD = tuple(name for name in INPUTS if name != "qwen3_8b_shaped")


def test_this_is_the_interpreter() -> None:
    assert INTERPRETED


@pytest.mark.parametrize("codec_name", ["bf16", "int8", "int8-compact"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_records_and_rows_equal_the_reference(codec_name: str, shape: Shape) -> None:
    expected, got = (_round_trip(kind, codec_name, shape, 23) for kind in KINDS)
    _assert_equal(expected, got)
    by_layer = _round_trip(FusedTransfer, codec_name, shape, 23, announced=False)
    _assert_equal(expected, by_layer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", HARD)
def test_hard_rows_equal_the_reference(name: str, dtype: torch.dtype) -> None:
    shape = Shape(heads=3, k_dim=72, v_dim=128, layers=1, dtype=dtype)
    expected, got = (_round_trip(kind, "int8-compact", shape, 17, inputs=(name,)) for kind in KINDS)
    _assert_equal(expected, got)
    assert bool(got[0]) == (name in ("nan", "infinity", "scattered_patterns"))


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 8, 40])
def test_any_number_of_tokens(tokens: int) -> None:
    shape = Shape(heads=2, k_dim=64, v_dim=64, layers=1)
    expected, got = (_round_trip(kind, "int8", shape, tokens) for kind in KINDS)
    _assert_equal(expected, got)


@pytest.mark.parametrize("programs", [2, 3, 64])
def test_any_number_of_programs(programs: int) -> None:
    shape = Shape(heads=2, k_dim=64, v_dim=16, layers=2)
    expected = _round_trip(TorchTransfer, "int8-compact", shape, 31)
    got = _round_trip(FusedTransfer, "int8-compact", shape, 31, programs=programs)
    _assert_equal(expected, got)


def test_a_record_larger_than_a_tile() -> None:
    shape = Shape(heads=40, k_dim=256, v_dim=256, layers=1, slots=4)
    expected, got = (_round_trip(kind, "int8-compact", shape, 3) for kind in KINDS)
    _assert_equal(expected, got)


def test_layers_pass_one_by_one_once_the_kernel_has_counted_them() -> None:
    """On the CPU waiting looks at the count, and raises where a stream would wait."""
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=16, layers=3)
    transfer = FusedTransfer(codec, *make_sides(codec, shape), 3)
    transfer.warm_up()
    counts = transfer._announced.counts
    for tokens in (31, 1, 40):
        slots = some_slots(shape, tokens, seed=tokens)
        transfer.backup(slots, slots)
        transfer.restore_all(slots, slots)
    counts.expect(1)
    with pytest.raises(RuntimeError, match="layer 2: .* counted, .* expected"):
        counts.wait(2)


def test_counts_may_wrap() -> None:
    counts = LayerCounts(2, torch.device("cpu"))
    counts.counts.fill_(2**31 - 1)
    counts.expect(2**31 - 1)
    counts.wait(1)
    counts.counts += 2
    counts.expect(2)
    counts.wait(0)


def test_a_restore_of_other_slots_is_not_taken_for_the_announced_one() -> None:
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=64)
    k, v = make_sides(codec, shape)
    slots, others = some_slots(shape, 12, seed=1), some_slots(shape, 12, seed=2)
    for seed, side in enumerate((k, v)):
        fill(side, slots, ("random_unit",), seed)
    transfer = FusedTransfer(codec, k, v, 3)
    transfer.warm_up()
    transfer.backup(slots, slots)
    expected = codec.decode(codec.encode(k.device[1][slots], k.layout), k.layout)
    transfer.begin_restore(slots, slots)
    poison_rows(k)
    transfer.restore(others, slots, 1)
    assert torch.equal(k.device[1][others], expected)


def test_slots_may_be_a_slice_of_others() -> None:
    shape = Shape(heads=2, k_dim=64, v_dim=64, layers=1)
    codec = get_codec("int8")
    sides = [make_sides(codec, shape) for _ in KINDS]
    slots = some_slots(shape, 12, seed=1)
    for kind, (k, v) in zip(KINDS, sides, strict=True):
        fill(k, slots, ("random_unit",), 0)
        fill(v, slots, ("random_unit",), 1)
        kind(codec, k, v).backup(slots[1::2], slots[::2])
    for one, other in zip(*sides, strict=True):
        assert torch.equal(bits(one)[1], bits(other)[1])


def test_one_program_is_refused() -> None:
    codec = get_codec("int8")
    k, v = make_sides(codec, Shape())
    with pytest.raises(UsageError, match="programs: expected 2 or more"):
        RowKernels(codec, k, v, 1)


def test_memory_off_a_unit_is_refused() -> None:
    codec = get_codec("int8")
    k, v = make_sides(codec, Shape(heads=1, k_dim=8, v_dim=8))
    apart = torch.zeros((2, 40, 12), dtype=torch.bfloat16)[:, :, :8].unflatten(2, (1, 8))
    with pytest.raises(UsageError, match="k rows: .* multiple of 16 bytes, .* 24 bytes"):
        FusedTransfer(codec, replace(k, device=tuple(apart.unbind(0))), v)


@pytest.mark.parametrize(
    ("lead", "back"), [(65504, 65504), (-65504, -65504), (65280, 65504), (65248, 127 * 512)]
)
def test_fp16_restores_nothing_past_its_range(lead: float, back: float) -> None:
    """127 x 516, the product that the largest values are restored from, is infinity in FP16."""
    codec, shape = get_codec("int8"), Shape(heads=2, k_dim=64, v_dim=64, dtype=torch.float16)
    k, v = make_sides(codec, shape)
    slots = some_slots(shape, 5, seed=1)
    for side in (k, v):
        for rows in side.device:
            rows[slots] = lead
    transfer = FusedTransfer(codec, k, v, 3)
    transfer.backup(slots, slots)
    poison_rows(k)
    transfer.restore(slots, slots, 0)
    assert bool((k.device[0][slots] == back).all())


def test_two_types_of_rows_are_refused() -> None:
    codec = get_codec("int8")
    k, _ = make_sides(codec, Shape())
    _, v = make_sides(codec, Shape(dtype=torch.float16))
    with pytest.raises(UsageError, match="rows: expected one type in K and V"):
        FusedTransfer(codec, k, v)


def test_rows_of_another_type_are_refused() -> None:
    codec = get_codec("int8")
    k, v = make_sides(codec, Shape(heads=1, k_dim=8, v_dim=8))
    whole = tuple(rows.view(torch.int16) for rows in k.device)
    with pytest.raises(UsageError, match="int16 cannot be encoded: expected .*bfloat16, float16"):
        FusedTransfer(codec, replace(k, device=whole), replace(v, device=whole))


def test_rows_with_heads_apart_are_refused() -> None:
    codec = get_codec("int8")
    k, v = make_sides(codec, Shape(heads=2, k_dim=8, v_dim=8))
    apart = torch.zeros((2, 40, 2, 16), dtype=torch.bfloat16)[..., :8]
    with pytest.raises(UsageError, match="v rows: expected heads and head_dim to be contiguous"):
        FusedTransfer(codec, k, replace(v, device=tuple(apart.unbind(0))))


KINDS: tuple[type[Transfer], ...] = (TorchTransfer, FusedTransfer)


def _round_trip(
    kind: type[Transfer],
    codec_name: str,
    shape: Shape,
    tokens: int,
    *,
    inputs: tuple[str, ...] = ("scattered_patterns", "exact_ties", "random_unit"),
    programs: int | None = 3,
    announced: bool = True,
) -> list[torch.Tensor]:
    """All bits of both sides after a backup, and after a restore into poisoned rows."""
    codec = get_codec(codec_name)
    k, v = make_sides(codec, shape)
    device_slots, host_slots, targets = (some_slots(shape, tokens, seed) for seed in (1, 2, 3))
    for seed, side in enumerate((k, v)):
        fill(side, device_slots, inputs, seed)
    transfer = kind(codec, k, v, programs)
    transfer.warm_up()
    transfer.backup(device_slots, host_slots)
    nonfinite = transfer.nonfinite_heads()
    assert (nonfinite is None) == (codec_name == "bf16")
    kept = [torch.tensor(nonfinite or 0), *bits(k), *bits(v)]
    for side in (k, v):
        poison_rows(side)
    if announced:
        transfer.begin_restore(targets, host_slots)
    for layer in range(shape.layers):
        transfer.restore(targets, host_slots, layer)
    return [*kept, *bits(k), *bits(v)]


def _assert_equal(expected: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    names = ("non-finite heads", *("rows", "records") * 4)
    for name, one, other in zip(names, expected, got, strict=True):
        assert torch.equal(one, other), f"{name}: {(one != other).nonzero()[:4].tolist()}"
