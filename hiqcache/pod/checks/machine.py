"""What a server needs of the machine besides memory: a port, shared memory, a disk, a model."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from hiqcache.pod.check import Check
from hiqcache.pod.plan import Plan

SHM = Path("/dev/shm")
SHM_ONE_RANK = 64 * 2**20
"""Docker's default. One rank keeps semaphores and its load there, below 1 MiB; images of a
multimodal model come on top."""

SHM_MORE_RANKS = 2**30
"""NCCL's own advice for a container (its troubleshooting page); SGLang's broadcast between ranks
takes 25 MB a group of it."""

LEAST_DISK = 2**30
DOWNLOAD_DISK = 20 * 2**30


def check_port(plan: Plan) -> Check:
    """Bind to the address, as the server will."""
    name, address = "port", f"{plan.host}:{plan.port}"
    # getaddrinfo would take it modulo 65,536.
    if plan.port > 65535:
        return Check(name, "failed", f"there is no port {plan.port}", "choose one up to 65535")
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            plan.host, plan.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        reason = error.strerror or str(error)
        fix = "stop what listens there or choose another --port"
        if isinstance(error, socket.gaierror):
            fix = "correct --host"
        return Check(name, "failed", f"cannot listen on {address} ({reason})", fix)
    return Check(name, "ok", f"{address} is free")


def check_shared_memory(plan: Plan, folder: Path = SHM) -> Check:
    """A full /dev/shm ends a process with SIGBUS and no word."""
    name = "shared memory"
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(name, "failed", f"{folder}: {error.strerror}", "mount a tmpfs there")
    ranks = plan.ranks.on_a_host
    need = SHM_MORE_RANKS if ranks > 1 else SHM_ONE_RANK
    text = f"{folder} has {_mebibytes(free)} free, {_mebibytes(need)} needed for {_ranks(ranks)}"
    if free >= need:
        return Check(name, "ok", text)
    return Check(
        name, "failed", text, "give the container more (docker run --shm-size, Compose's shm_size)"
    )


def check_memlock(plan: Plan, limit: int | None = None) -> Check:
    """Say what the limit on locked memory is, and that CUDA does not look at it.

    Parameters
    ----------
    limit
        Bytes; by default this process's own soft limit, -1 for none.
    """
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    if limit == resource.RLIM_INFINITY:
        return Check("locked memory", "ok", "no limit")
    return Check(
        "locked memory",
        "ok",
        f"limit {limit // 1024:,} KiB; CUDA pins L2 through its driver, which does not count it",
    )


def check_model(plan: Plan) -> Check:
    """A path must exist; an id is left to SGLang."""
    name, model = "model", plan.model
    if model is None:
        return Check(name, "skipped", "no --model-path was given")
    path = Path(model).expanduser()
    if path.is_dir() and not any(path.glob("*.gguf")):
        if not any((path / file).exists() for file in ("config.json", "params.json")):
            return Check(
                name, "failed", f"{model} holds no config.json", "name a folder with a checkpoint"
            )
    elif not path.exists() and (
        model.startswith(("/", "./", "../", "~")) or ("://" not in model and model.count("/") > 1)
    ):
        return Check(
            name,
            "failed",
            f"there is no {model}",
            "correct --model-path, or mount the folder into the container",
        )
    here = f"{model} is here" if path.exists() else f"{model} is no path here; SGLang looks it up"
    return Check(name, "ok", here)


def check_disk(plan: Plan, environ: Mapping[str, str] = os.environ) -> Check:
    """Room for weights that are still to be downloaded, and for compiled kernels."""
    name, folder = "disk", hub_folder(environ)
    mounted = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(mounted).free
    text = f"{free / 2**30:.0f} GiB free for {folder}"
    if free < LEAST_DISK:
        return Check(
            name,
            "failed",
            f"{free / 2**20:.0f} MiB free for {folder}",
            "free at least 1 GiB, or put HF_HOME on another disk",
        )
    downloads = plan.model is not None and not Path(plan.model).expanduser().exists()
    if downloads and weights_folder(plan, environ) is None and free < DOWNLOAD_DISK:
        return Check(
            name,
            "warning",
            f"{text}, and {plan.model} is not there yet",
            "a model of 8B parameters takes 16 GB; put HF_HOME on a larger disk",
        )
    return Check(name, "ok", text)


def hub_folder(environ: Mapping[str, str]) -> Path:
    """Where Hugging Face keeps downloads, by its own variables."""
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return Path(environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def weights_folder(plan: Plan, environ: Mapping[str, str]) -> Path | None:
    """The folder that holds the model's weights on this machine; None if none does."""
    if plan.model is None:
        return None
    path = Path(plan.model).expanduser()
    if path.is_dir():
        return path
    snapshots = hub_folder(environ) / f"models--{plan.model.replace('/', '--')}" / "snapshots"
    return next((place for place in snapshots.glob("*") if any(place.glob("*.safetensors"))), None)


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
