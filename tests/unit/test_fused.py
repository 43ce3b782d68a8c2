"""The `fused` kernels against the reference, under Triton's interpreter, and what compiles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.interpreter import ROOT, run_interpreted

VARIANTS = """
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import create_function_from_signature
from hiqcache.transfer.kernels import entry

backend = CUDABackend(GPUTarget("cuda", 86, 32))
for kernel in (entry.backup, entry.restore):
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    numbers = [param for param in kernel.params if not param.is_constexpr]
    constants = [64] * (len(kernel.params) - len(numbers))
    kinds = {str(bind(*[n] * len(numbers), *constants)[1]) for n in (0, 1, 16, 37, 1 << 40)}
    print(kernel.__name__, len(numbers), len(kinds))
"""


def test_kernels_under_the_interpreter() -> None:
    run_interpreted("fused_cases.py", at_least=45)


def test_the_ladder_under_the_interpreter() -> None:
    run_interpreted("ladder_cases.py", at_least=38)


def test_every_width_under_the_interpreter() -> None:
    run_interpreted("matrix_cases.py", at_least=52)


def test_no_value_of_an_argument_makes_another_variant() -> None:
    """Else Triton would compile in the middle of traffic, or launch what does not fit."""
    done = subprocess.run(
        [sys.executable, "-c", VARIANTS], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "backup 7 1\nrestore 9 1\n", done.stdout + done.stderr


COMPILE = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hiqcache.codec.registry import get_codec
from hiqcache.transfer.kernels import entry
from hiqcache.transfer.plan import make_plan
from tests.unit.kernel_pool import Shape, make_sides

capability, heads, k_dim, v_dim = map(int, sys.argv[2:6])
dtype = getattr(torch, sys.argv[1])
shape = Shape(heads=heads, k_dim=k_dim, v_dim=v_dim, dtype=dtype)
for name in sys.argv[6:]:
    codec = get_codec(name)
    plan = make_plan(codec, *make_sides(codec, shape), programs=32)
    constants = {"k": plan.k, "v": plan.v}
    for kernel in (entry.backup, entry.restore):
        kinds = {arg: "constexpr" if arg in constants else "i64" for arg in kernel.arg_names}
        places = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
        source = ASTSource(kernel, kinds, places)
        target = GPUTarget("cuda", capability, 32)
        options = {"num_warps": plan.warps, "num_stages": 1}
        compiled = triton.compile(source, target=target, options=options)
        print(compiled.asm["ptx"])
        print("scratch", compiled.metadata.shared, "of", plan.scratch_bytes)
        print("END")
"""


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [*((capability, "bfloat16") for capability in (80, 86, 89, 90)), (86, "float16")],
)
def test_kernels_compile_and_move_16_bytes_a_thread(
    capability: int, dtype: str, tmp_path: Path
) -> None:
    """Without a GPU: Triton brings its assembler along."""
    codes = _compiled(tmp_path, ("int8-compact", "bf16"), capability, 8, 128, 128, dtype=dtype)
    encode, decode, out, back = codes
    # The GPU's own conversions, and only where rows are FP16.
    assert ("cvt.f32.f16" in encode) == ("cvt.rn.f16" in decode) == (dtype == "float16")
    assert _scratch(encode, decode) == (8192, 8192)
    assert _scratch(out, back) == (0, 0)
    for code in codes:
        _moves_16_bytes(code)


@pytest.mark.parametrize("capability", [86, 90])
@pytest.mark.parametrize("codec", ["k6v5", "exact"])
def test_rotated_and_lossless_kernels_compile_and_move_16_bytes_a_thread(
    codec: str, capability: int, tmp_path: Path
) -> None:
    encode, decode = _compiled(tmp_path, (codec,), capability, 8, 128, 128)
    taken, planned = _scratch(encode, decode)
    assert taken <= planned <= 98304
    # A tile that is prefetched into the buffer of the one before it comes out wrong.
    assert not any("cp.async" in code for code in (encode, decode))
    _moves_16_bytes(encode)
    # What was set aside goes back over the rest, a value each.
    _moves_16_bytes(decode, *(("st.global.b16",) if codec == "k6v5" else ()))


def test_an_odd_geometry_compiles_and_splits_the_tail_alone(tmp_path: Path) -> None:
    encode, decode = _compiled(tmp_path, ("int8-compact",), 80, 3, 72, 40)
    assert _scratch(encode, decode) == (16384, 16384)
    stores = _accesses(encode, "st.global")
    assert stores.keys() == {"st.global.v4.b32", "st.global.b16"}
    assert _accesses(decode, "st.global").keys() == {"st.global.v4.b32"}


def _moves_16_bytes(code: str, *beside: str) -> None:
    assert _accesses(code, "st.global").keys() == {"st.global.v4.b32", *beside}
    # Slots and tables come one by one, everything else in full width.
    assert _accesses(code, "ld.global").keys() <= {"ld.global.v4.b32", "ld.global.b64"}


def _compiled(
    tmp_path: Path, codecs: tuple[str, ...], *numbers: int, dtype: str = "bfloat16"
) -> list[str]:
    """The PTX of each codec's backup and restore."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, dtype, *map(str, numbers), *codecs],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("END\n")[: 2 * len(codecs)]


def _scratch(*codes: str) -> tuple[int, int]:
    """The shared memory that kernels take, at most, and what their plan says."""
    found = [re.search(r"scratch (\d+) of (\d+)", code) for code in codes]
    taken, planned = zip(*((int(m[1]), int(m[2])) for m in found if m), strict=True)
    assert len(taken) == len(codes) and len(set(planned)) == 1
    return max(taken), planned[0]


def _accesses(code: str, kind: str) -> Counter[str]:
    return Counter(re.findall(rf"\b{re.escape(kind)}\S*", code))
