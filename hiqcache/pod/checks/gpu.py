"""The GPU, as NVIDIA's management library sees it, against what the server needs of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check
from hiqcache.pod.checks.containers import INSIDE
from hiqcache.pod.checks.machine import weights_folder
from hiqcache.pod.checks.memory import gigabytes
from hiqcache.pod.plan import Plan

NAME = "GPU"
BF16_CAPABILITY = (8, 0)
"""The first one with BF16 arithmetic: Ampere."""

WORK_BYTES = 3_000_000_000
"""A CUDA context, cuBLAS's workspaces, activations and captured graphs of one rank; an estimate."""


OTHERS = ("dev/kfd", "dev/davinci[0-9]*", "dev/accel/*", "dev/hl[0-9]*")
"""Accelerators of AMD, Huawei and others, which are left to SGLang."""

NVIDIA, DISPLAY = "0x10de", "0x03"
"""A PCI vendor, and the class of display and 3D controllers."""

HIDDEN = ("", "-1")
"""CUDA_VISIBLE_DEVICES of somebody who wants no GPU."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: compute capability, and memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    total: int
    free: int


@dataclass(frozen=True)
class Gpus:
    """All that are visible here, and what the driver supports.

    Parameters
    ----------
    driver
        The driver's version.
    cuda
        The newest CUDA release that it supports, major and minor.
    """

    driver: str
    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]


class NoGpus(Exception):
    """NVIDIA's library could not be asked; the message says why."""


def read_gpus(environ: Mapping[str, str] = os.environ) -> Gpus:
    """Ask NVIDIA's management library about the GPUs that `CUDA_VISIBLE_DEVICES` leaves.

    Raises
    ------
    NoGpus
        Its Python package, the driver or every GPU is missing.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        raise NoGpus("nvidia-ml-py is not installed, which SGLang brings") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoGpus(f"NVIDIA's driver does not answer ({error})") from None
    try:
        handles = [
            (index, pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            chosen = [word.strip() for word in visible.split(",")]
            handles = [
                (index, handle)
                for index, handle in handles
                if str(index) in chosen or pynvml.nvmlDeviceGetUUID(handle) in chosen
            ]
        if not handles:
            left = "" if visible is None else f" that CUDA_VISIBLE_DEVICES={visible} leaves visible"
            raise NoGpus(f"the driver sees no GPU{left}")
        gpus = []
        for index, handle in handles:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            gpus.append(Gpu(index, name, tuple(capability), memory.total, memory.free))
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        # 13000 is CUDA 13.0, 12040 is 12.4.
        supports = (cuda // 1000, cuda % 1000 // 10)
        return Gpus(pynvml.nvmlSystemGetDriverVersion(), supports, tuple(gpus))
    except pynvml.NVMLError as error:
        raise NoGpus(f"NVIDIA's driver does not answer ({error})") from None
    finally:
        pynvml.nvmlShutdown()


def no_accelerator(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Why a server has to run on the CPU here; None where there is an accelerator.

    Raises
    ------
    HiQCacheError
        This machine has an NVIDIA GPU that does not answer and that nobody has hidden.
    """
    try:
        read_gpus(environ)
        return None
    except NoGpus as reason:
        why = str(reason)
    if any(found for pattern in OTHERS for found in root.glob(pattern)):
        return None
    if environ.get("CUDA_VISIBLE_DEVICES") not in HIDDEN and _nvidia_on_the_bus(root):
        raise HiQCacheError(
            f"this machine has an NVIDIA GPU, but {why}: mend that, give the container the GPU "
            f"(docker run --gpus all, and nvidia-container-toolkit on the host), or choose the CPU "
            f"with --device cpu"
        )
    inside = any((root / mark.relative_to("/")).exists() for mark in INSIDE)
    hint = "; a container is given a GPU by docker run --gpus all" if inside else ""
    return f"no accelerator here ({why}{hint})"


def _nvidia_on_the_bus(root: Path) -> bool:
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        kind = vendor.with_name("class")
        if vendor.read_text().strip() == NVIDIA and kind.read_text().startswith(DISPLAY):
            return True
    return False


def check_gpus(plan: Plan, environ: Mapping[str, str] = os.environ) -> list[Check]:
    """All that concerns the GPU; one line that says why, where there is none."""
    if not plan.gpu:
        return [Check(NAME, "skipped", "this server runs on the CPU")]
    try:
        found = read_gpus(environ)
    except NoGpus as reason:
        return [missing_gpus(plan, str(reason))]
    return [
        check_count(plan, found),
        check_driver(found, torch_cuda()),
        *(check_capability(plan, gpu) for gpu in found.gpus[: plan.ranks.on_a_host]),
        *(
            check_vram(plan, gpu, weights_bytes(plan, environ))
            for gpu in found.gpus[: plan.ranks.on_a_host]
        ),
    ]


def missing_gpus(plan: Plan, reason: str) -> Check:
    """A failure for a server that needs one, a warning where no server was described."""
    fix = (
        "install NVIDIA's driver; a container needs --gpus all, and nvidia-container-toolkit on "
        "the host; --device cpu chooses the CPU"
    )
    return Check(NAME, "failed" if plan.described else "warning", reason, fix)


def check_count(plan: Plan, found: Gpus) -> Check:
    names = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in found.gpus)
    ranks = plan.ranks.on_a_host
    if len(found.gpus) < ranks:
        text = f"{len(found.gpus)} visible ({names}), {ranks} ranks asked for"
        return Check(NAME, "failed", text, "start fewer ranks or make more GPUs visible")
    return Check(NAME, "ok", names)


def torch_cuda() -> tuple[int, int] | None:
    """The CUDA release that torch was built for, read from its files: its import is slow."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    built = re.search(r"^cuda\b[^=]*= '(\d+)\.(\d+)'", text, re.MULTILINE)
    return (int(built[1]), int(built[2])) if built else None


def check_driver(found: Gpus, built: tuple[int, int] | None) -> Check:
    """A driver runs programs of its own CUDA major release and of older ones."""
    text = f"{found.driver}, supports CUDA {_dotted(found.cuda)}"
    if built is None:
        return Check("driver", "ok", text)
    text += f"; torch was built for {_dotted(built)}"
    if found.cuda[0] < built[0]:
        return Check(
            "driver", "failed", text, f"install a driver that supports CUDA {built[0]} or newer"
        )
    return Check("driver", "ok", text)


def check_capability(plan: Plan, gpu: Gpu) -> Check:
    """L2's records are made from BF16, which older GPUs do not compute."""
    name, text = "compute", f"GPU {gpu.index} has compute capability {_dotted(gpu.capability)}"
    if gpu.capability >= BF16_CAPABILITY:
        return Check(name, "ok", text)
    return Check(
        name,
        "failed" if plan.described else "warning",
        f"{text}, BF16 needs {_dotted(BF16_CAPABILITY)}",
        "use an Ampere GPU or a newer one",
    )


def weights_bytes(plan: Plan, environ: Mapping[str, str] = os.environ) -> int | None:
    """Bytes of the model's weights in all, if they are on this machine already."""
    folder = weights_folder(plan, environ)
    if folder is None:
        return None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def check_vram(plan: Plan, gpu: Gpu, weights: int | None) -> Check:
    """Weights, L1 and work space of one rank against the GPU's free memory."""
    name = "VRAM"
    text = f"GPU {gpu.index} has {gigabytes(gpu.free)} of {gigabytes(gpu.total)} free"
    l1 = plan.l1_bytes()
    if weights is None:
        return Check(name, "ok", f"{text}; the model's weights are not here to be counted")
    share = weights // (plan.ranks.tp * plan.ranks.pp)
    parts = [f"weights {gigabytes(share)}", f"about {gigabytes(WORK_BYTES)} of work"]
    need = share + WORK_BYTES
    if l1 is not None:
        parts.insert(1, f"L1 {gigabytes(l1)}")
        need += l1
    wants = f"{', '.join(parts)}: {gigabytes(need)}; {text}"
    if need <= gpu.free:
        return Check(name, "ok", wants)
    fix = "stop what else runs on it, lower --max-total-tokens or use a smaller model"
    return Check(name, "failed", wants, fix)


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
