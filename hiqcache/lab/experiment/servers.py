"""The servers of an experiment: one at a time, or all side by side with one under load."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.arms import Deployment
from hiqcache.lab.serving.client import Client
from hiqcache.lab.serving.container import ContainerServer
from hiqcache.lab.serving.server import AnyServer, Server

READY_SECONDS = 540
STAGGER_SECONDS = 4
"""Between two starts side by side: both would else measure the same free memory."""


@dataclass(frozen=True)
class Endpoint:
    """A server that answers, where it runs, and SGLang's arguments beyond model and address."""

    client: Client
    gpu: str | None
    arguments: tuple[str, ...]


class Servers(ABC):
    """Gives the server of a deployment; the caller puts one under load at a time."""

    @abstractmethod
    def endpoint(self, deployment: Deployment) -> Endpoint:
        """The ready server of this deployment.

        Raises
        ------
        HiQCacheError
            It does not start, or has failed before.
        """

    @abstractmethod
    def close(self) -> None:
        """End what was started."""

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Launch:
    """What every server is started with.

    Parameters
    ----------
    arguments, environment
        SGLang's arguments and variables beyond those of the pools and the codec.
    gpus
        Values for `CUDA_VISIBLE_DEVICES`; empty where there is no choice.
    per_gpu
        Servers that share a GPU before the next one takes its turn.
    container_image
        Servers run as containers of this image; as processes of this machine when None.
    """

    model: str
    geometry: Geometry
    arguments: tuple[str, ...]
    environment: dict[str, str]
    logs: Path
    gpus: tuple[str, ...] = ()
    per_gpu: int = 6
    container_image: str | None = None

    def server(self, deployment: Deployment, gpu: str | None) -> AnyServer:
        arguments = self.all_arguments(deployment)
        environment = {**self.environment, **deployment.environment()}
        log = self.logs / f"{deployment.name}.log"
        if self.container_image is not None:
            return ContainerServer(
                self.container_image, self.model, arguments, environment, log, gpu
            )
        place = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return Server(self.model, arguments, {**environment, **place}, log)

    def all_arguments(self, deployment: Deployment) -> tuple[str, ...]:
        return (*deployment.arguments(self.geometry), *self.arguments)

    def gpu(self, index: int) -> str | None:
        """The place of the server with this index: a GPU is filled before the next."""
        if not self.gpus:
            return None
        return self.gpus[min(index // self.per_gpu, len(self.gpus) - 1)]


@dataclass
class OneByOne(Servers):
    """A server is started when it is asked for and ended when another one is."""

    launch: Launch
    _current: tuple[str, AnyServer, Endpoint] | None = field(default=None, init=False)

    def endpoint(self, deployment: Deployment) -> Endpoint:
        if self._current is not None and self._current[0] == deployment.name:
            return self._current[2]
        self.close()
        gpu = self.launch.gpu(0)
        server = self.launch.server(deployment, gpu)
        server.start()
        try:
            server.wait_ready(READY_SECONDS)
        except BaseException:
            server.stop()
            raise
        endpoint = Endpoint(server.client, gpu, self.launch.all_arguments(deployment))
        self._current = (deployment.name, server, endpoint)
        return endpoint

    def close(self) -> None:
        if self._current is not None:
            self._current[1].stop()
            self._current = None


class SideBySide(Servers):
    """All servers are started at once and stay up.

    One that does not come up is missed only by its own runs.
    """

    def __init__(self, launch: Launch, deployments: Sequence[Deployment]) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._failed: dict[str, HiQCacheError] = {}
        self._servers: dict[str, AnyServer] = {}
        begin = time.monotonic()
        try:
            for index, deployment in enumerate(deployments):
                time.sleep(max(0.0, begin + index * STAGGER_SECONDS - time.monotonic()))
                gpu = launch.gpu(index)
                server = launch.server(deployment, gpu)
                server.start()
                self._servers[deployment.name] = server
                self._endpoints[deployment.name] = Endpoint(
                    server.client, gpu, launch.all_arguments(deployment)
                )
            for name, server in self._servers.items():
                left = READY_SECONDS - (time.monotonic() - begin)
                try:
                    server.wait_ready(max(1.0, left))
                except HiQCacheError as error:
                    self._failed[name] = error
                    server.stop()
        except BaseException:
            self.close()
            raise

    def endpoint(self, deployment: Deployment) -> Endpoint:
        if error := self._failed.get(deployment.name):
            raise error
        if (code := self._servers[deployment.name].exit_code()) is not None:
            raise HiQCacheError(f"the server of {deployment.name} has ended with code {code}")
        return self._endpoints[deployment.name]

    def close(self) -> None:
        # Each takes seconds to end.
        with ThreadPoolExecutor(max(1, len(self._servers))) as pool:
            list(pool.map(lambda server: server.stop(), self._servers.values()))
