"""The checksum kernel under Triton's interpreter against the torch reference.

Not collected by itself: `test_verified.py` runs it in a process with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import pytest
import torch

from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.kernel_verification import KernelVerification
from hiqcache.transfer.launch import INTERPRETED
from tests.unit.kernel_pool import Shape, codec_names
from tests.unit.verified_pool import VerifiedPool, verified_pool

# Words that wrap are what the checksum is made of.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")

SHAPES = (
    Shape(heads=3, k_dim=64, v_dim=64, layers=2),
    Shape(heads=1, k_dim=8, v_dim=16, layers=3, layout="page_first"),
    Shape(heads=8, k_dim=128, v_dim=128, layers=1),
)


def kernel_pool(codec: str, shape: Shape, tokens: int = 11, mode: str = "full") -> VerifiedPool:
    return verified_pool(
        codec, shape, tokens=tokens, mode=mode, kind=KernelVerification, moves=FusedTransfer
    )


def test_this_is_the_interpreter() -> None:
    assert INTERPRETED


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_checksums_equal_the_reference(codec: str, shape: Shape) -> None:
    pool, expected = kernel_pool(codec, shape), verified_pool(codec, shape, tokens=11)
    assert torch.equal(pool.checks.table, expected.checks.table)
    assert pool.checks.table.count_nonzero() == 11 * shape.layers
    pool.restore()
    assert pool.checks.mismatches() == 0


@pytest.mark.parametrize("side", ["k", "v"])
def test_flipped_bits_are_counted(side: str) -> None:
    shape = SHAPES[0]
    pool = kernel_pool("int8", shape)
    half = getattr(pool, side)
    found = 0
    for byte in range(0, half.layout.used_bytes, 19):
        for layer in range(shape.layers):
            record = half.host[layer][pool.slots[byte % 11]]
            record[byte] ^= 1 << byte % 8
            pool.restore()
            found += 1
            assert pool.checks.mismatches() == found
            record[byte] ^= 1 << byte % 8


def test_padding_is_not_looked_at_and_layers_are_told_apart() -> None:
    pool = kernel_pool("int8", SHAPES[0])
    for records in pool.k.host:
        records[:, pool.k.layout.used_bytes :] ^= 0xFF
    pool.restore()
    assert pool.checks.mismatches() == 0
    pool.k.host[0][pool.slots[2]] = pool.k.host[1][pool.slots[2]]
    pool.restore()
    assert pool.checks.mismatches() == 1


def test_a_sample_looks_at_one_slot_in_16() -> None:
    shape = Shape(heads=1, k_dim=8, v_dim=8, layers=2, slots=40)
    pool = kernel_pool("int8-compact", shape, tokens=40, mode="sample")
    looked_at = (pool.checks.table != 0).any(0).nonzero().flatten().tolist()
    assert looked_at == [0, 16, 32]
    for records in pool.v.host:
        records[:, 0] ^= 1
    pool.restore()
    assert pool.checks.mismatches() == 3 * shape.layers


def test_no_tokens_are_no_launch() -> None:
    pool = kernel_pool("int8", SHAPES[0])
    nothing = torch.zeros(0, dtype=torch.int64)
    pool.checks.after_backup(nothing)
    pool.checks.after_restore(nothing, 0)
    assert pool.checks.mismatches() == 0
