"""What compiles kernels: each missing part is named with what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hiqcache.pod.checks import toolchain
from hiqcache.pod.checks.toolchain import check_compilers, check_kernels
from hiqcache.pod.plan import Plan

LAY_OUT = Path(__file__).parents[2] / "docker" / "cuda_home.py"
GPU = Plan(gpu=True)


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """A machine with everything."""
    for name in (
        "bin/c++",
        "bin/cc",
        "cuda/bin/nvcc",
        "cuda/lib64/libcudart.so",
        "include/Python.h",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path / "cuda")}


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("bin/c++", "install g++"),
        ("bin/cc", "install g++"),
        ("include/Python.h", "python3-dev"),
        ("cuda/bin/nvcc", "set CUDA_HOME"),
        ("cuda/lib64/libcudart.so", "to link with"),
        (None, "nvcc"),
    ],
)
def test_a_missing_compiler_is_named(
    missing: str | None,
    words: str,
    tools: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path / name))
    if missing:
        (tmp_path / missing).unlink()
    found = check_compilers(GPU, tools)
    assert found.status == ("failed" if missing else "ok")
    assert words in found.sentence()


def test_on_a_cpu_nothing_is_compiled() -> None:
    assert check_compilers(Plan(gpu=False), {}).status == "skipped"


def test_kernels_need_a_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"SGLANG_CACHE_DIR": str(tmp_path / "kernels" / "sglang")}
    assert check_kernels(environ).status == "ok"
    # Root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = check_kernels(environ)
    assert found.status == "failed" and "chown" in found.fix and str(tmp_path) in found.text


SOURCE = """
#include <cub/cub.cuh>
#include <cuda.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
extern "C" int run(float *x) {
    int devices;
    twice<<<1, 32>>>(x);
    return cuDeviceGetCount(&devices) + cudaDeviceSynchronize();
}
"""


@pytest.mark.parametrize("architecture", ["80", "90a"])
def test_the_wheels_compile_and_link_a_kernel(architecture: str, tmp_path: Path) -> None:
    """As flashinfer and SGLang do it. CCCL refuses headers of another release than nvcc's."""
    pytest.importorskip("nvidia.cu13")
    home = tmp_path / "cuda"
    subprocess.run([sys.executable, LAY_OUT, home], check=True)
    (tmp_path / "kernel.cu").write_text(SOURCE)
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    compiled = subprocess.run(
        [home / "bin" / "nvcc", code, "--compiler-options=-fPIC", "-c", "kernel.cu"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    paths = (f"-L{home}/lib64", f"-L{home}/lib64/stubs")
    link = ["c++", "-shared", "kernel.o", *paths, "-lcudart", "-lcuda", "-o", "kernel.so"]
    subprocess.run(link, cwd=tmp_path, check=True)
    needed = subprocess.run(
        ["readelf", "--dynamic", "--wide", "kernel.so"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    assert "[libcuda.so.1]" in needed and "[libcudart.so.13]" in needed
