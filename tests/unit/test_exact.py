"""`exact`: every bit comes back, and where one cannot, the record says so and the value is near."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hiqcache.codec.bound_report import BoundViolation
from hiqcache.codec.exact import split_records
from hiqcache.codec.inputs import INPUTS, named_input
from hiqcache.codec.record import RecordLayout
from hiqcache.codec.registry import get_codec
from hiqcache.codec.verify import verified_error
from hiqcache.errors import UsageError
from hiqcache.lab.bench.codec import one_thread

CODEC = get_codec("exact")


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


def bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int16)


def layout_of(rows: Tensor) -> RecordLayout:
    return CODEC.layout("k", rows.shape[1], rows.shape[2])


def there_and_back(rows: Tensor) -> tuple[Tensor, Tensor]:
    layout = layout_of(rows)
    records = CODEC.encode(rows, layout)
    return CODEC.decode(records, layout), CODEC.inexact_rows(records, layout)


def with_bias(sigma: float, tokens: int = 2000) -> Tensor:
    """K of 8 heads of 128 with a bias in two RoPE pairs, as Qwen2 has it, sigma 1 elsewhere."""
    rows = named_input("random_unit", (tokens, 8, 128), 0).float()
    for place in (5, 69, 40, 104):
        rows[:, :, place] += sigma
    return rows.bfloat16()


@pytest.mark.parametrize(
    ("heads", "head_dim", "record", "escapes"),
    [(8, 128, 1600, 31), (3, 64, 304, 9), (1, 256, 400, 7)],
)
def test_bytes_worked_by_hand(heads: int, head_dim: int, record: int, escapes: int) -> None:
    layout = CODEC.layout("v", heads, head_dim)
    values = heads * head_dim
    assert (layout.record_bytes, layout.aside, layout.padding_bytes) == (record, escapes, 0)
    assert layout.payload_bytes == values * 3 // 2
    assert record == values * 3 // 2 + values // 32 + escapes + 1


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("shape", [(64, 8, 128), (20, 3, 72), (9, 1, 8)], ids=str)
def test_rows_come_back_bit_for_bit_or_are_marked(name: str, shape: tuple[int, int, int]) -> None:
    rows = named_input(name, shape, 0)
    decoded, inexact = there_and_back(rows)
    layout = layout_of(rows)
    assert verified_error(CODEC, rows, CODEC.encode(rows, layout), layout, decoded) is None
    if name in ("random_unit", "random_large", "all_zeros", "nan", "infinity"):
        assert not inexact.any()


@pytest.mark.parametrize("sigma", [0.0, 30.0, 100.0, 300.0])
def test_a_bias_of_k_changes_no_bit(sigma: float) -> None:
    rows = with_bias(sigma)
    decoded, inexact = there_and_back(rows)
    assert torch.equal(bits(decoded), bits(rows))
    assert not inexact.any()


def test_a_row_that_does_not_fit_is_marked_and_near() -> None:
    rows = named_input("random_unit", (40, 8, 128), 0)
    rows[7] = (rows[7].float() * torch.tensor(2.0) ** -torch.arange(128.0)).bfloat16()
    decoded, inexact = there_and_back(rows)
    assert inexact.nonzero().flatten().tolist() == [7]
    others = torch.arange(40) != 7
    assert torch.equal(bits(decoded)[others], bits(rows)[others])
    groups = rows[7].double().view(-1, 32).abs().amax(-1, keepdim=True)
    error = (decoded[7].double() - rows[7].double()).view(-1, 32).abs()
    assert (error <= groups * 2.0**-14).all() and error.any()


def test_a_nan_without_a_place_is_never_a_number() -> None:
    rows = named_input("random_unit", (2, 8, 128), 0)
    rows[1, :, ::4] = torch.nan
    decoded, inexact = there_and_back(rows)
    assert inexact.tolist() == [False, True]
    assert decoded[1][rows[1].isnan()].isnan().all()
    numbers = ~decoded[1].isnan()
    assert torch.equal(bits(decoded)[1][numbers], bits(rows)[1][numbers])
    assert numbers.any()


def test_zeros_without_a_place_are_exact_and_not_marked() -> None:
    rows = named_input("random_unit", (3, 8, 128), 0)
    rows[:, :, ::2] = 0.0
    rows[:, :, 1::6] = -0.0
    decoded, inexact = there_and_back(rows)
    assert torch.equal(bits(decoded), bits(rows))
    assert not inexact.any()


def test_the_parts_are_where_the_layout_says() -> None:
    rows = torch.full((1, 8, 128), 1.5, dtype=torch.bfloat16)
    rows[0, 0, 3], rows[0, 7, 127] = -(2.0**-20), 2.0**-3
    layout = layout_of(rows)
    parts = split_records(CODEC.encode(rows, layout), layout)
    assert parts.raw[0, [0, 3, 1023]].tolist() == [0x40, 0x80, 0]
    assert parts.codes[0, [1, 511]].tolist() == [0xF0, 0x30]
    assert parts.bases[0].tolist() == [127] * 32
    assert parts.escapes[0].tolist() == [107, *[0] * 30]
    assert parts.flag.tolist() == [0]


def test_a_changed_bit_is_found() -> None:
    rows = named_input("random_unit", (4, 2, 64), 0)
    layout = layout_of(rows)
    records = CODEC.encode(rows, layout)
    records[2, 5] ^= 1
    with pytest.raises(BoundViolation, match="did not return 1 of 4 rows bit for bit.* row 2"):
        verified_error(CODEC, rows, records, layout, CODEC.decode(records, layout))


def test_fp16_rows_are_refused() -> None:
    rows = torch.ones(1, 8, 128, dtype=torch.float16)
    with pytest.raises(UsageError, match="rows: expected bfloat16 .*got float16"):
        CODEC.encode(rows, CODEC.layout("k", 8, 128))
