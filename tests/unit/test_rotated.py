"""The rotation, and what `int8-rotated` does beyond `int8`."""

from __future__ import annotations

import pytest
import torch

from hiqcache.codec.base import Codec
from hiqcache.codec.bound import BoundViolation, verified_error_bound
from hiqcache.codec.inputs import INPUTS, QWEN3_8B_SHAPE, named_input
from hiqcache.codec.int8 import split_records
from hiqcache.codec.registry import get_codec
from hiqcache.codec.rotation import rotate, run_length, unrotate
from hiqcache.codec.row import ROW_TYPES, RowType

CODEC, PLAIN = get_codec("int8-rotated"), get_codec("int8-compact")
KINDS = pytest.mark.parametrize("kind", ROW_TYPES.values(), ids=lambda kind: kind.label)


def sylvester(order: int) -> torch.Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < order:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix


def squared_error(codec: Codec, rows: torch.Tensor) -> float:
    layout = codec.layout("k", *rows.shape[1:])
    decoded = codec.decode(codec.encode(rows, layout), layout, dtype=rows.dtype)
    return float((decoded.double() - rows.double()).pow(2).mean())


@pytest.mark.parametrize("head_dim", [8, 16, 64, 72, 80, 96, 128, 256])
def test_the_rotation_is_sylvesters_matrix_over_each_run(head_dim: int) -> None:
    run = run_length(head_dim)
    assert run == (16 if head_dim % 16 == 0 else 8)
    x = torch.randn(3, head_dim, dtype=torch.float64)
    runs = x.view(3, -1, run)
    expected = (runs @ sylvester(run) / run).view(3, head_dim)
    assert torch.allclose(rotate(x), expected, rtol=0, atol=1e-14)
    assert torch.allclose(unrotate(rotate(x)), x, rtol=0, atol=1e-14)


def test_sums_of_the_largest_values_stay_finite() -> None:
    largest = torch.full((1, 1, 16), 255 * 2.0**120).bfloat16()
    for rows in (largest, -largest, largest * torch.tensor([1.0, -1.0]).repeat(8).bfloat16()):
        back = CODEC.decode(CODEC.encode(rows, CODEC.layout("k", 1, 16)), CODEC.layout("k", 1, 16))
        assert back.isfinite().all()
        assert torch.allclose(back.double(), rows.double(), rtol=2.0**-7)


@KINDS
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("shape", [(40, 3, 64), (20, 2, 72)], ids=str)
def test_the_bound_holds(name: str, shape: tuple[int, int, int], kind: RowType) -> None:
    rows = named_input(name, shape, 0, kind.dtype)
    layout = CODEC.layout("k", *shape[1:])
    records = CODEC.encode(rows, layout)
    decoded = CODEC.decode(records, layout, dtype=kind.dtype)
    report = verified_error_bound(rows, records, layout, decoded, run=CODEC.run_length(shape[2]))
    assert report.elements == rows.numel()


def test_a_wrong_value_breaks_the_bound() -> None:
    rows = named_input("random_unit", (8, 2, 64), 0)
    layout = CODEC.layout("k", 2, 64)
    records = CODEC.encode(rows, layout)
    decoded = CODEC.decode(records, layout)
    records[3, 70] += 2
    with pytest.raises(BoundViolation, match="the rounding term is over its limit: first at token"):
        verified_error_bound(rows, records, layout, decoded, run=16)


@KINDS
def test_one_large_channel_costs_the_others_less(kind: RowType) -> None:
    rows = torch.randn(256, 8, 128, generator=torch.Generator().manual_seed(1))
    rows[:, :, 37] *= 40
    rows = rows.to(kind.dtype)
    errors = [squared_error(codec, rows) for codec in (CODEC, PLAIN)]
    assert errors[0] < errors[1] / 8


def test_an_even_row_loses_nothing_to_speak_of() -> None:
    rows = named_input("qwen3_8b_shaped", QWEN3_8B_SHAPE, 0)
    rotated, plain = (squared_error(codec, rows) for codec in (CODEC, PLAIN))
    assert 0 < rotated < 1.1 * plain


@KINDS
@pytest.mark.parametrize("name", ["random_unit", "qwen3_8b_shaped"])
def test_encoding_a_decoded_row_moves_next_to_nothing(name: str, kind: RowType) -> None:
    shape = (200, 8, 128)
    layout = CODEC.layout("k", 8, 128)
    records = CODEC.encode(named_input(name, shape, 0, kind.dtype), layout)
    again = CODEC.encode(CODEC.decode(records, layout, dtype=kind.dtype), layout)
    (q, scale), (q_again, scale_again) = (split_records(r, layout) for r in (records, again))
    assert (q.int() - q_again.int()).abs().max() <= 1
    assert (q != q_again).double().mean() < 0.01
    ratio = scale_again.double() / scale.double()
    assert ((ratio - 1).abs() <= 2.0**-7).all()


@KINDS
def test_a_broken_head_is_nan_and_its_neighbours_are_not(kind: RowType) -> None:
    rows = torch.randn(3, 4, 32).to(kind.dtype)
    rows[1, 2, 5], rows[2, 0, 31] = torch.inf, torch.nan
    layout = CODEC.layout("v", 4, 32)
    records = CODEC.encode(rows, layout)
    broken = torch.zeros(3, 4, dtype=torch.bool)
    broken[1, 2] = broken[2, 0] = True
    assert torch.equal(CODEC.broken_heads(records, layout), broken)
    decoded = CODEC.decode(records, layout, dtype=kind.dtype)
    assert torch.equal(decoded.isnan(), broken[:, :, None].expand(3, 4, 32))
    assert torch.equal(
        decoded.view(torch.int16)[broken], torch.full((2, 32), kind.nan_bits, dtype=torch.int16)
    )
