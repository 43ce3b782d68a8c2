"""One SGLang server in a container of HiQCache's image, for `fleet`; `server.py` is a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.lab.serving.client import Client
from hiqcache.lab.serving.server import ServerFailed, free_port, last_words, wait_ready
from hiqcache.pod.docker_engine import connect

PORT = 30000
"""Where SGLang listens inside; the image's health check asks there."""
HF_CACHE, KERNELS = "/weights", "/kernels"
"""The image's folders for downloads and for compiled kernels."""
MODEL = "/model"
"""A folder of this machine goes there: under its own name it could lie where the container's user
may not go."""
SHARED_MEMORY = "2g"
NAME = "hiqcache-experiment"
STOP_SECONDS = 30


def image_digest(image: str) -> str:
    """What the engine calls an image: its digest in a registry, else its own id.

    Raises
    ------
    HiQCacheError
        There is no engine, or no such image.
    """
    client = connect()
    try:
        found = client.images.get(image)
    except _failure() as error:
        raise HiQCacheError(
            f"the Docker engine has no image {image} ({error}): build it with docker compose build"
        ) from None
    digests: list[str] = found.attrs.get("RepoDigests") or []
    return digests[0] if digests else str(found.id)


class ContainerServer:
    """A container that answers on a port of 127.0.0.1; `Server` is the same as a process.

    Parameters
    ----------
    image
        Built from `docker/server.Dockerfile`.
    model
        A Hugging Face id, or a folder of this machine, which the container may read.
    arguments
        Further arguments of SGLang.
    environment
        Variables of the container.
    log
        Takes the container's output when it is stopped.
    gpu
        The GPU that it may use; None where there is none.
    """

    def __init__(
        self,
        image: str,
        model: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        gpu: str | None = None,
    ) -> None:
        self.port = free_port()
        self.log = log
        self.client = Client(f"http://127.0.0.1:{self.port}")
        folder = Path(model).resolve() if Path(model).is_dir() else None
        self._options: dict[str, Any] = {
            "image": image,
            "name": f"{NAME}-{self.port}",
            "command": [
                *("--model-path", MODEL if folder else model),
                *("--host", "0.0.0.0"),
                *("--port", str(PORT)),
                "--enable-metrics",
                *arguments,
            ],
            "environment": {**_token(), **environment},
            "ports": {f"{PORT}/tcp": ("127.0.0.1", self.port)},
            "volumes": _volumes(folder),
            "shm_size": SHARED_MEMORY,
        }
        if folder is None:
            # What is downloaded belongs to whoever runs this, as does everything in their cache.
            self._options["user"] = f"{os.getuid()}:{os.getgid()}"
        if gpu is not None:
            types: Any = import_module("docker.types")
            self._options |= {
                "device_requests": [types.DeviceRequest(device_ids=[gpu], capabilities=[["gpu"]])],
                # L2 is pinned memory.
                "ulimits": [types.Ulimit(name="memlock", soft=-1, hard=-1)],
            }
        self._container: Any = None

    def start(self) -> None:
        """Start the container; `wait_ready` waits for its server.

        Raises
        ------
        HiQCacheError
            There is no engine or no such image, or the engine does not start it.
        """
        engine = connect()
        try:
            self._container = engine.containers.create(**self._options)
            self._container.start()
        except _failure() as error:
            self.stop()
            raise ServerFailed(
                f"the container of {self._options['image']} does not start: {error}"
            ) from None

    def wait_ready(self, timeout: float, progress: Callable[[float], None] | None = None) -> float:
        """As `Server.wait_ready`."""
        return wait_ready(self, timeout, progress)

    def exit_code(self) -> int | None:
        """The container's exit code; None while it runs."""
        if self._container is None:
            return None
        self._container.reload()
        state = self._container.attrs["State"]
        return int(state["ExitCode"]) if state["Status"] in ("exited", "dead") else None

    def output(self) -> str:
        if self._container is None:
            return self.log.read_text(errors="replace") if self.log.exists() else ""
        text: bytes = self._container.logs()
        return text.decode(errors="replace")

    def last_words(self) -> str:
        return last_words(self.output())

    def stop(self) -> None:
        """End the container, keep its output in the log, and remove it."""
        container, self._container = self._container, None
        if container is None:
            return
        container.stop(timeout=STOP_SECONDS)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(container.logs())
        container.remove(force=True, v=True)


def _volumes(folder: Path | None) -> dict[str, dict[str, str]]:
    """The model's folder, or the cache that Hugging Face's ids go to."""
    if folder is not None:
        return {str(folder): {"bind": MODEL, "mode": "ro"}}
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    kernels = Path.home() / ".cache" / "hiqcache" / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    return {
        home: {"bind": HF_CACHE, "mode": "rw"},
        str(kernels): {"bind": KERNELS, "mode": "rw"},
    }


def _token() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN")
    return {} if token is None else {"HF_TOKEN": token}


def _failure() -> type[Exception]:
    found: type[Exception] = import_module("docker.errors").DockerException
    return found
