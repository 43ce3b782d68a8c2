"""The GPU and its driver, through NVIDIA's management library (`nvidia-ml-py`).

None of this creates a CUDA context, so it can be looked at beside running servers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hiqcache.pod.check import Check
from hiqcache.pod.checks.machine import weights_folder
from hiqcache.pod.plan import Plan

LEAST_CAPABILITY = (8, 0)
"""What HiQCache's kernels are compiled for and tried on begins here: docs/transfer.md."""

WORKSPACE_BYTES = 3 * 10**9
"""Of a rank beside weights and L1: the CUDA context, CUDA graphs and activations. A round figure
for servers of 8B parameters, so a plan that misses it is a warning only."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int
    free: int


@dataclass(frozen=True)
class Gpus:
    """What the driver tells. `cuda` is the newest CUDA that it runs, as (major, minor)."""

    driver: str
    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]


def read_gpus() -> Gpus | str:
    """The driver and the GPUs that it shows here; a reason where there are none."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed, so that nothing can be read"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver answers ({error})"
    try:
        return _read(pynvml)
    except pynvml.NVMLError as error:
        return f"the NVIDIA driver does not tell ({error})"
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any) -> Gpus:
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        name = nvml.nvmlDeviceGetName(handle)
        gpus.append(Gpu(index, name, (major, minor), memory.total, memory.free))
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return Gpus(
        driver=nvml.nvmlSystemGetDriverVersion(),
        cuda=(cuda // 1000, cuda % 1000 // 10),
        gpus=tuple(gpus),
    )


def check_gpus(plan: Plan, found: Gpus | str) -> list[Check]:
    """GPU, driver, compute capability and VRAM; without a GPU only what the plan says of it."""
    if not plan.gpu:
        return [Check("GPU", "skipped", "the server runs on the CPU")]
    if isinstance(found, str) or not found.gpus:
        text = found if isinstance(found, str) else "the driver shows no GPU"
        if not plan.described:
            return [Check("GPU", "skipped", text)]
        return [
            Check(
                "GPU",
                "failed",
                text,
                "give the container one (docker run --gpus, Compose's devices), install NVIDIA's "
                "driver, or set SGLANG_PLATFORM=hiqcache_cpu to try it on the CPU",
            )
        ]
    return [
        _check_count(plan, found.gpus),
        check_driver(found, cuda_of_torch()),
        _check_capability(found.gpus[: plan.tp]),
        check_vram(plan, found.gpus[: plan.tp], weights_bytes(plan)),
    ]


def _check_count(plan: Plan, gpus: tuple[Gpu, ...]) -> Check:
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus)
    if len(gpus) < plan.tp:
        fix = "show it more GPUs or lower --tp-size"
        return Check("GPU", "failed", f"{names}; {plan.tp} ranks need {plan.tp}", fix)
    return Check("GPU", "ok", names)


def check_driver(found: Gpus, runtime: tuple[int, int] | None) -> Check:
    """A driver runs every CUDA of its own major version, newer minor ones too (NVIDIA's rule)."""
    text = f"{found.driver}, runs CUDA {found.cuda[0]}.{found.cuda[1]}"
    if runtime is None:
        return Check("driver", "ok", text)
    text += f"; torch brings CUDA {runtime[0]}.{runtime[1]}"
    if found.cuda[0] < runtime[0]:
        fix = f"install a driver for CUDA {runtime[0]}, or an image with an older CUDA"
        return Check("driver", "failed", text, fix)
    return Check("driver", "ok", text)


def cuda_of_torch() -> tuple[int, int] | None:
    """The CUDA runtime that is installed as torch's dependency; None if it comes otherwise."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            major, minor, *_ = version(name).split(".")
        except PackageNotFoundError:
            continue
        return int(major), int(minor)
    return None


def _check_capability(gpus: tuple[Gpu, ...]) -> Check:
    text = ", ".join(sorted({f"{gpu.capability[0]}.{gpu.capability[1]}" for gpu in gpus}))
    least = ".".join(map(str, LEAST_CAPABILITY))
    if any(gpu.capability < LEAST_CAPABILITY for gpu in gpus):
        fix = f"use a GPU of {least} or newer (A100, RTX A6000, L40S, H100 and later)"
        return Check("capability", "failed", f"{text}, and bfloat16 needs {least}", fix)
    return Check("capability", "ok", text)


def weights_bytes(plan: Plan, environ: Mapping[str, str] = os.environ) -> int | None:
    """Bytes of the model's weights, from its files; None where they are not on this machine."""
    folder = weights_folder(plan, environ)
    files = [] if folder is None else list(folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) or None


def check_vram(plan: Plan, gpus: tuple[Gpu, ...], weights: int | None) -> Check:
    """Weights and L1 of a rank against the GPU's memory, before minutes of loading."""
    name = "VRAM"
    memory = min(gpu.memory for gpu in gpus)
    free = min(gpu.free for gpu in gpus)
    has = f"{memory / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
    if weights is None:
        return Check(name, "ok", f"{has}; the weights are not here yet, so their size is unknown")
    rank, l1 = weights // plan.tp, plan.l1_bytes() or 0
    pool = f"L1 takes {l1 / 1e9:.1f} GB" if l1 else "L1 takes what is left"
    text = f"{has}; weights take {rank / 1e9:.1f} GB and {pool}"
    if rank + l1 > memory:
        fix = "use a larger GPU, a smaller model or more ranks"
        if rank < memory and l1:
            fix = "lower --max-total-tokens or use a larger GPU"
        return Check(name, "failed", text, fix)
    if rank + l1 > free:
        fix = "stop what else runs on this GPU"
        return Check(name, "failed", text, fix)
    if rank + l1 + WORKSPACE_BYTES > free:
        fix = "about 3 GB more are usual for the CUDA context, graphs and activations"
        return Check(name, "warning", text, fix)
    return Check(name, "ok", text)
