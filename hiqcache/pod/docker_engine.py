"""The Docker engine through its SDK: reached, or a sentence on why not."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hiqcache.errors import HiQCacheError

if TYPE_CHECKING:
    from docker import DockerClient  # type: ignore[attr-defined]

SOCKET = "unix:///var/run/docker.sock"


class NoEngine(HiQCacheError):
    """No Docker engine can be used from here; the message says why and what to do."""


class NoSdk(NoEngine):
    """The Docker SDK is not installed."""


def connect() -> DockerClient:
    """A client of the engine that `DOCKER_HOST` or Docker's default socket names.

    Raises
    ------
    NoEngine
        The SDK or the socket is missing, access is denied, or nothing answers.
    """
    try:
        # Untyped; and in a checkout the folder docker/ hides it from mypy.
        docker: Any = import_module("docker")
        failure: type[Exception] = import_module("docker.errors").DockerException
    except ImportError:
        raise NoSdk("the Docker SDK is not installed: pip install 'hiqcache[pod]'") from None
    host = os.environ.get("DOCKER_HOST", SOCKET)
    try:
        client = docker.from_env(timeout=30)
        client.ping()
    except (failure, OSError, ValueError) as error:
        raise NoEngine(_reason(host, error)) from None
    return client


def _reason(host: str, error: BaseException) -> str:
    socket = host.removeprefix("unix://")
    words = str(error)
    if "PermissionError" in words or "Permission denied" in words:
        return (
            f"no permission to use the Docker engine at {socket}: add yourself to its group "
            f"(sudo usermod -aG docker $USER, then log in again) or use sudo"
        )
    if host.startswith("unix://") and not os.path.exists(socket):
        return (
            f"there is no Docker engine at {socket}: install Docker and start it (sudo systemctl "
            f"start docker), or point DOCKER_HOST to one"
        )
    if any(name in words for name in ("ConnectionRefusedError", "Connection refused")):
        return f"nothing answers at {socket}: start Docker (sudo systemctl start docker)"
    return f"the Docker engine at {host} cannot be used ({words}): check DOCKER_HOST"
