"""Verification on the GPU: the kernel against the reference, and what it finds in host memory."""

from __future__ import annotations

import pytest
import torch

from hiqcache.transfer.fused import FusedTransfer
from hiqcache.transfer.kernel_verification import KernelVerification
from hiqcache.transfer.registry import make_verification
from hiqcache.transfer.torch_transfer import TorchTransfer
from hiqcache.transfer.verification import Verification
from tests.unit.kernel_pool import Shape, codec_names
from tests.unit.verified_pool import VerifiedPool, verified_pool

pytestmark = pytest.mark.gpu
SHAPES = (
    Shape(slots=400, layers=4),
    Shape(heads=3, k_dim=64, v_dim=32, layers=3, slots=400, layout="page_first"),
)
TOKENS = 333


def gpu_pool(codec: str, shape: Shape, mode: str = "full") -> VerifiedPool:
    return verified_pool(
        codec,
        shape,
        tokens=TOKENS,
        mode=mode,
        kind=KernelVerification,
        moves=FusedTransfer,
        device="cuda",
    )


def found(pool: VerifiedPool) -> int:
    pool.restore()
    torch.cuda.synchronize()
    return pool.checks.mismatches()


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_checksums_equal_the_reference(codec: str, shape: Shape) -> None:
    pool, expected = gpu_pool(codec, shape), verified_pool(codec, shape, tokens=TOKENS)
    torch.cuda.synchronize()
    assert torch.equal(pool.checks.table, expected.checks.table)
    assert found(pool) == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flipped_bits_in_host_memory_are_found(shape: Shape) -> None:
    pool = gpu_pool("int8-compact", shape)
    torch.cuda.synchronize()
    wrong = 0
    for half in (pool.k, pool.v):
        for bit in range(0, 8 * half.layout.used_bytes, 61):
            record = half.host[bit % shape.layers][pool.slots[bit % TOKENS]]
            record[bit // 8] ^= 1 << bit % 8
            wrong += 1
            assert found(pool) == wrong, f"bit {bit}"
            record[bit // 8] ^= 1 << bit % 8
    assert found(pool) == wrong


def test_the_kernel_is_chosen_where_it_reaches_and_torch_looks_from_the_cpu() -> None:
    pool = gpu_pool("int8", SHAPES[0])
    assert isinstance(make_verification("sample", pool.transfer), KernelVerification)
    slow = TorchTransfer(pool.transfer.codec, pool.k, pool.v)
    checks = make_verification("full", slow)
    assert type(checks) is Verification
    slow.backup(pool.slots, pool.slots)
    checks.after_backup(pool.slots)
    pool.k.host[2][pool.slots[0], 9] ^= 2
    slow.restore(pool.slots, pool.slots, 2)
    checks.after_restore(pool.slots, 2)
    assert checks.mismatches() == 1
