"""The ladder's kernels and those of `exact` under Triton's interpreter, against the reference.

Not collected by itself: `test_fused.py` runs it in a process with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.transfer.base import Transfer
from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import Shape, bits, fill, make_sides, poison_rows, some_slots

# Bytes that are no payload go through the product too, and are dropped behind it.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in multiply")
E4M3, E5M2, FP16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16
TOKENS = 11


def shape(heads: int, k_dim: int, v_dim: int, **more: object) -> Shape:
    return Shape(heads=heads, k_dim=k_dim, v_dim=v_dim, slots=20, **more)  # type: ignore[arg-type]


CASES = (
    ("k8v8", shape(8, 128, 128)),
    ("k6v5", shape(8, 128, 128, layout="page_first")),
    ("k4v4", shape(8, 128, 128, strided=True)),
    ("k5v6", shape(3, 64, 64)),
    ("k4v5", shape(3, 64, 80, layout="page_first")),
    ("k6v4", shape(1, 80, 96)),
    ("k8v5", shape(1, 8, 8)),
    ("k4v8", shape(1, 256, 256)),
    ("k5v4", shape(5, 192, 72, layout="page_first", strided=True)),
    ("k6v6", shape(5, 96, 192, dtype=FP16)),
    ("k4v6", shape(2, 256, 128, dtype=FP16)),
    ("k6v5", shape(3, 128, 64, dtype=E4M3)),
    ("k5v8", shape(2, 64, 96, layout="page_first", dtype=E4M3)),
    ("k4v4", shape(3, 128, 80, dtype=E5M2)),
    ("exact", shape(8, 128, 128, layout="page_first")),
    ("exact", shape(3, 64, 40, strided=True)),
    ("exact", shape(1, 8, 80)),
    ("bf16", shape(3, 64, 64, dtype=E4M3)),
)
HARD = (
    ("all_zeros", "nan"),
    ("infinity", "huge_value"),
    ("near_floor", "largest_finite"),
    ("all_patterns", "random_large"),
)


@pytest.mark.parametrize(("codec_name", "shape"), CASES, ids=str)
def test_records_and_rows_equal_the_reference(codec_name: str, shape: Shape) -> None:
    names = ("scattered_patterns", "random_unit", "exact_ties")
    _assert_equal(*_both(codec_name, shape, names))


@pytest.mark.parametrize("names", HARD, ids=", ".join)
@pytest.mark.parametrize(
    ("codec_name", "dtype"),
    [("k4v8", torch.bfloat16), ("k6v5", FP16), ("exact", torch.bfloat16), ("k5v4", E5M2)],
)
def test_hard_rows_equal_the_reference(
    codec_name: str, dtype: torch.dtype, names: tuple[str, str]
) -> None:
    _assert_equal(*_both(codec_name, shape(2, 128, 64, dtype=dtype), names))


@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_any_number_of_tokens(tokens: int) -> None:
    _assert_equal(*_both("k6v4", shape(2, 64, 64), ("scattered_patterns",), tokens))


def test_rows_that_exact_cannot_hold_are_counted() -> None:
    expected, got = _both("exact", shape(2, 64, 64), ("scattered_patterns", "random_unit"))
    assert expected[0].tolist() == got[0].tolist()
    assert got[0][1] > 0


def _both(
    codec_name: str, shape: Shape, names: tuple[str, ...], tokens: int = TOKENS
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Counts and all bits after a backup and after a restore into poisoned rows."""
    codec = get_codec(codec_name)
    device_slots, host_slots, targets = (some_slots(shape, tokens, seed) for seed in (1, 2, 3))
    results = []
    kinds: tuple[type[Transfer], ...] = (TorchTransfer, FusedTransfer)
    for kind in kinds:
        k, v = make_sides(codec, shape)
        for seed, side in enumerate((k, v)):
            fill(side, device_slots, names, seed)
        transfer = kind(codec, k, v, 3)
        transfer.warm_up()
        transfer.backup(device_slots, host_slots)
        counts = transfer.nonfinite_heads() or 0, transfer.inexact_rows() or 0
        found = [torch.tensor(counts), *bits(k), *bits(v)]
        for side in (k, v):
            poison_rows(side)
        transfer.restore_all(targets, host_slots)
        results.append([*found, *bits(k), *bits(v)])
    return results[0], results[1]


def _assert_equal(expected: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    names = ("counts", *("rows", "records") * 4)
    for name, one, other in zip(names, expected, got, strict=True):
        assert torch.equal(one, other), f"{name}: {(one != other).nonzero()[:4].tolist()}"
