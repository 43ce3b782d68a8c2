"""What `HIQCACHE_VERIFY` finds in L2: every flipped bit, and records that are somewhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.errors import IntegrityError
from hiqcache.transfer.checksum import checksums, words_of
from hiqcache.transfer.registry import make_verification
from hiqcache.transfer.torch_transfer import TorchTransfer
from hiqcache.transfer.verification import Verification
from tests.unit.interpreter import ROOT, run_interpreted
from tests.unit.kernel_pool import Shape, bits, codec_names, make_sides
from tests.unit.verified_pool import reference_checksum, verified_pool

SHAPES = (
    Shape(heads=3, k_dim=64, v_dim=64, layers=3),
    Shape(heads=1, k_dim=8, v_dim=16, layers=2, layout="page_first"),
)


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_checksum_is_its_formula(codec: str, shape: Shape) -> None:
    pool = verified_pool(codec, shape)
    for layer in range(shape.layers):
        layouts = pool.k.layout, pool.v.layout
        records = [side.host[layer][pool.slots] for side in (pool.k, pool.v)]
        got = checksums(records, layouts, layer)
        for token in range(len(pool.slots)):
            expected = reference_checksum([r[token] for r in records], layouts, layer)
            assert int(got[token]) & 0xFFFFFFFF == expected


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_untouched_records_pass_and_restore_as_without(codec: str, shape: Shape) -> None:
    pool = verified_pool(codec, shape)
    pool.restore()
    assert pool.checks.mismatches() == 0
    plain = TorchTransfer(get_codec(codec), pool.k, pool.v)
    got = [bits(side)[0] for side in (pool.k, pool.v)]
    for layer in range(shape.layers):
        plain.restore(pool.slots.flip(0), pool.slots, layer)
    again = [bits(side)[0] for side in (pool.k, pool.v)]
    assert all(torch.equal(*pair) for pair in zip(got, again, strict=True))


@pytest.mark.parametrize("codec", codec_names())
@pytest.mark.parametrize("side", ["k", "v"])
def test_every_flipped_bit_of_a_record_is_found(codec: str, side: str) -> None:
    shape = Shape(heads=1, k_dim=24, v_dim=8, layers=2)
    pool = verified_pool(codec, shape, tokens=3)
    half = getattr(pool, side)
    record = half.host[1][pool.slots[1]]
    for bit in range(8 * half.layout.used_bytes):
        record[bit // 8] ^= 1 << bit % 8
        before = pool.checks.mismatches()
        pool.restore()
        assert pool.checks.mismatches() == before + 1, f"bit {bit}"
        record[bit // 8] ^= 1 << bit % 8
    before = pool.checks.mismatches()
    pool.restore()
    assert pool.checks.mismatches() == before


def test_damage_in_one_word_and_two_high_bits_are_found() -> None:
    pool = verified_pool("int8", SHAPES[0])
    record = pool.k.host[0][pool.slots[0]]
    for places in ((3, 7), (3, 191), (100, 104), (0, 1, 2, 3)):
        for place in places:
            record[place] ^= 0x80
        before = pool.checks.mismatches()
        pool.restore()
        assert pool.checks.mismatches() == before + 1
        for place in places:
            record[place] ^= 0x80


def test_records_of_another_layer_side_or_slot_are_found() -> None:
    pool = verified_pool("int8", SHAPES[0])
    slot, other = pool.slots[0], pool.slots[1]

    def swapped(first: torch.Tensor, second: torch.Tensor) -> int:
        before = pool.checks.mismatches()
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)
        pool.restore()
        second.copy_(first)
        first.copy_(kept)
        return pool.checks.mismatches() - before

    assert swapped(pool.k.host[0][slot], pool.k.host[1][slot]) == 2
    assert swapped(pool.k.host[0][slot], pool.v.host[0][slot]) == 1
    assert swapped(pool.k.host[0][slot], pool.k.host[0][other]) == 2


def test_a_slot_that_was_never_backed_up_is_found() -> None:
    pool = verified_pool("int8", SHAPES[0], tokens=8)
    unused = next(slot for slot in range(SHAPES[0].slots) if slot not in pool.slots.tolist())
    pool.checks.after_restore(torch.tensor([unused]), 0)
    assert pool.checks.mismatches() == 1


def test_padding_is_not_looked_at() -> None:
    pool = verified_pool("int8", SHAPES[0])
    for half in (pool.k, pool.v):
        for records in half.host:
            records[:, half.layout.used_bytes :] ^= 0xFF
    pool.restore()
    assert pool.checks.mismatches() == 0


def test_a_sample_is_one_slot_in_16() -> None:
    shape = Shape(heads=1, k_dim=8, v_dim=8, layers=1, slots=64)
    pool = verified_pool("int8", shape, tokens=64, mode="sample")
    for records in pool.k.host:
        records[:, 0] ^= 1
    pool.restore()
    assert pool.checks.mismatches() == 64 // 16
    assert (pool.checks.table[0] != 0).nonzero().flatten().tolist() == [0, 16, 32, 48]


def test_what_l3_brings_is_adopted_and_what_it_takes_is_looked_at() -> None:
    pool = verified_pool("int8", SHAPES[0])
    pool.k.host[1][pool.slots[0]].fill_(1)
    pool.checks.adopt(pool.slots[:1])
    pool.checks.require(pool.slots)
    pool.restore()
    assert pool.checks.mismatches() == 0
    pool.k.host[1][pool.slots[0], 5] ^= 1
    with pytest.raises(IntegrityError, match="nothing goes to L3 any more"):
        pool.checks.require(pool.slots[:1])
    assert pool.checks.mismatches() == 1
    # Others could be what was computed from it.
    with pytest.raises(IntegrityError):
        pool.checks.require(pool.slots[1:])


def test_off_is_nothing_and_a_mode_is_one_on_the_cpu() -> None:
    codec = get_codec("int8")
    transfer = TorchTransfer(codec, *make_sides(codec, SHAPES[0]))
    assert make_verification("off", transfer) is None
    for mode, every in (("sample", 16), ("full", 1)):
        made = make_verification(mode, transfer)
        assert type(made) is Verification and made.every == every


def test_a_token_costs_four_bytes_a_layer() -> None:
    pool = verified_pool("int8", SHAPES[0])
    assert pool.checks.checksum_bytes == 4 * SHAPES[0].layers * SHAPES[0].slots
    assert pool.checks.device_bytes == 0
    assert words_of(pool.k.layout) == 50, "192 values and 3 scales of 2 bytes are 198"


def test_the_kernel_under_the_interpreter() -> None:
    run_interpreted("checksum_cases.py", at_least=10)


VARIANTS_AND_CODE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.runtime.jit import create_function_from_signature
from hiqcache.transfer.kernel_verification import NUMBERS, ROWS, WIDTH
from hiqcache.transfer.kernels.checksum import verify

target = GPUTarget("cuda", 80, 32)
bind = create_function_from_signature(verify.signature, verify.params, CUDABackend(target))
constants = (16, 208, 198, 1152, 1040, ROWS, WIDTH)
kinds = {str(bind(*[n] * NUMBERS, *constants)[1]) for n in (0, 1, 16, 37, 1 << 40)}
print(len(kinds))
names = verify.arg_names
kinds = {name: "i64" if place < NUMBERS else "constexpr" for place, name in enumerate(names)}
places = {(NUMBERS + place,): value for place, value in enumerate(constants)}
source = ASTSource(verify, kinds, places)
print(triton.compile(source, target=target, options={"num_warps": 8}).asm["ptx"])
"""


def test_the_kernel_compiles_to_one_variant(tmp_path: Path) -> None:
    """Without a GPU: Triton brings its assembler along."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", VARIANTS_AND_CODE],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    variants, _, code = done.stdout.partition("\n")
    assert variants == "1"
    assert "atom.global" in code and "ld.global" in code
