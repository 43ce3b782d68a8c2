"""The Docker engine, through Docker's own SDK for Python."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hiqcache.errors import HiQCacheError


def connect() -> Any:
    """A client of the engine that DOCKER_HOST or the default socket names, and that answers.

    Raises
    ------
    HiQCacheError
        The SDK is not installed, no engine answers, or this user may not speak to it.
    """
    try:
        # By name: the repository's folder docker/ would hide the SDK from a type checker.
        docker: Any = import_module("docker")
    except ImportError as error:
        raise HiQCacheError(
            "the Docker SDK is not installed: pip install 'hiqcache[pod]'"
        ) from error
    try:
        # One call a second and container; a busy machine answers in seconds.
        client = docker.from_env(timeout=60)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise HiQCacheError(explain(str(error))) from error
    return client


def explain(message: str) -> str:
    """What the SDK's words about a socket mean, and what to do."""
    if "Permission denied" in message:
        return (
            "this user may not speak to Docker's socket (permission denied): add the user to the "
            "group docker and log in again"
        )
    if "No such file" in message or "refused" in message:
        return (
            "no Docker engine answers: install Docker, start it (systemctl start docker), or "
            "point DOCKER_HOST to one"
        )
    return f"the Docker engine does not answer ({message}): see DOCKER_HOST"
