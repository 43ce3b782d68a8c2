"""The Docker engine, NVIDIA's runtime in it, and Compose: what `hiqcache pod` needs of a host."""

from __future__ import annotations

from pathlib import Path

from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check, attempt
from hiqcache.pod.compose import find_compose
from hiqcache.pod.engine import connect
from hiqcache.pod.plan import Plan

INSIDE = (Path("/.dockerenv"), Path("/run/.containerenv"))


def check_docker(plan: Plan) -> list[Check]:
    """Look at the engine. Nobody but `hiqcache pod` needs one, so that a lack is a warning."""
    if any(mark.exists() for mark in INSIDE):
        return [Check("Docker", "skipped", "this is a container")]
    try:
        client = connect()
    except HiQCacheError as error:
        return [Check("Docker", "warning", f"{error}; only `hiqcache pod` and Compose need it")]
    try:
        checks = [Check("Docker", "ok", f"engine {client.version()['Version']}")]
        info = client.info()
    finally:
        client.close()
    checks.append(_check_runtime(plan, info))
    compose = attempt("Compose", lambda: f"version {find_compose()[1]}")
    return [*checks, compose]


def _check_runtime(plan: Plan, info: dict[str, object]) -> Check:
    name = "NVIDIA runtime"
    runtimes = info.get("Runtimes")
    # Engines of 28.2 and newer also list devices of the Container Device Interface.
    devices = info.get("DiscoveredDevices")
    if isinstance(runtimes, dict) and "nvidia" in runtimes:
        return Check(name, "ok", "registered with the engine")
    if "nvidia.com/gpu" in str(devices):
        return Check(name, "ok", "GPUs are offered to the engine as CDI devices")
    fix = (
        "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker` "
        "and restart Docker"
    )
    if not plan.gpu:
        return Check(name, "skipped", "the server runs on the CPU")
    return Check(name, "warning", "the engine knows none, so no container gets a GPU", fix)
