"""What compiles kernels at run time on a GPU, and where the results are kept."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from hiqcache.pod.check import Check
from hiqcache.pod.plan import Plan

USUAL = Path("/usr/local/cuda")
TOOLKIT = (
    "set CUDA_HOME to a CUDA 13.0 toolkit; `python docker/cuda_home.py FOLDER` makes one of the "
    "installed wheels, the server image has it in /opt/cuda"
)


def check_compilers(plan: Plan, environ: Mapping[str, str] = os.environ) -> Check:
    """A C++ compiler and Python's headers, without which Triton starts nothing, and nvcc."""
    name = "compilers"
    if not plan.gpu:
        return Check(name, "skipped", "this server runs on the CPU, where nothing is compiled")
    path = environ.get("PATH")
    compiler = shutil.which(environ.get("CXX", "c++"), path=path)
    if compiler is None or shutil.which(environ.get("CC", "cc"), path=path) is None:
        return Check(
            name, "failed", "no C++ compiler, which Triton starts kernels with", "install g++"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        return Check(
            name,
            "failed",
            f"{headers} has no Python.h, which Triton compiles against",
            "install your Python's headers (Debian: python3-dev)",
        )
    home = cuda_home(environ)
    if not (home / "bin" / "nvcc").exists():
        text = f"no nvcc in {home}, with which SGLang and flashinfer compile kernels"
        return Check(name, "failed", text, TOOLKIT)
    if not (home / "lib64" / "libcudart.so").exists():
        return Check(name, "failed", f"no libcudart.so in {home}/lib64 to link with", TOOLKIT)
    return Check(name, "ok", f"{compiler}, {home}/bin/nvcc")


def cuda_home(environ: Mapping[str, str]) -> Path:
    """The toolkit that SGLang compiles with: its `cuda_home`, without its import."""
    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if named:
        return Path(named)
    found = shutil.which("nvcc", path=environ.get("PATH"))
    return Path(found).parent.parent if found else USUAL


def check_kernels(environ: Mapping[str, str] = os.environ) -> Check:
    """Compiled kernels are kept, so that a second start compiles nothing."""
    name = "kernels"
    folder = Path(environ.get("SGLANG_CACHE_DIR") or "~/.cache/sglang").expanduser()
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return Check(name, "ok", f"kept in {folder}")
    return Check(
        name,
        "failed",
        f"user {os.getuid()} cannot write {there}, where compiled kernels are kept ({folder})",
        f"chown it to {os.getuid()}, or set SGLANG_CACHE_DIR to a folder that can be written",
    )
