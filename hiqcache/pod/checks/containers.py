"""What `hiqcache pod` needs: a Docker engine, NVIDIA's runtime in it, and Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check
from hiqcache.pod.compose import compose_version
from hiqcache.pod.docker_engine import NoEngine, NoSdk, connect
from hiqcache.pod.plan import Plan

INSIDE = (Path("/.dockerenv"), Path("/run/.containerenv"))
ENGINE, RUNTIME = "Docker", "NVIDIA runtime"


def check_containers(plan: Plan) -> list[Check]:
    """Warnings at most: a server that is started without Docker needs none of it."""
    if any(mark.exists() for mark in INSIDE):
        return [Check(ENGINE, "skipped", "this is a container; it is looked at on the host")]
    try:
        client = connect()
    except NoSdk as error:
        return [Check(ENGINE, "skipped", str(error))]
    except NoEngine as error:
        return [Check(ENGINE, "warning", f"`hiqcache pod` would not work: {error}")]
    try:
        info = client.info()
    finally:
        client.close()
    return [
        Check(ENGINE, "ok", f"engine {info.get('ServerVersion', 'of an unknown version')}"),
        check_runtime(plan, info),
        check_compose(),
    ]


def check_runtime(plan: Plan, info: dict[str, Any]) -> Check:
    """Whether containers get a GPU: NVIDIA's runtime, or its devices by CDI.

    Parameters
    ----------
    info
        What the engine answers to `docker info`.
    """
    if not plan.gpu:
        return Check(RUNTIME, "skipped", "this server runs on the CPU")
    devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or ()]
    if "nvidia" in info.get("Runtimes", {}) or any(d.startswith("nvidia.com/") for d in devices):
        return Check(RUNTIME, "ok", "containers can be given the GPU")
    return Check(
        RUNTIME,
        "warning",
        "the engine does not know it, so no container gets a GPU",
        "install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure "
        "--runtime=docker and restart Docker",
    )


def check_compose() -> Check:
    try:
        return Check("Compose", "ok", compose_version())
    except HiQCacheError as error:
        return Check("Compose", "warning", f"`hiqcache pod` would not work: {error}")
