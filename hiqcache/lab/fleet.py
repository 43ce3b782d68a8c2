"""The servers that are compared: one arm each, as processes or containers, in turn or at once.

Experiments, quality runs, the demo and `bench tpot` start their servers here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hiqcache.cpu_server import CPU_ARGUMENTS, CPU_ENVIRONMENT
from hiqcache.errors import HiQCacheError
from hiqcache.lab.serving.client import Client
from hiqcache.lab.serving.container import ContainerServer
from hiqcache.lab.serving.server import AnyServer, Server

READY_SECONDS = 900
STAGGER_SECONDS = 4
"""Between two starts side by side: both would else measure the same free memory."""


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The pools of a server as SGLang's flags; None leaves a flag to its default.

    Parameters
    ----------
    l1_tokens
        `--max-total-tokens`.
    l2
        The flag for the size of L2 with its value; empty for SGLang's default, None for no L2.
    page, policy, layout
        `--page-size`, `--hicache-write-policy` and `--hicache-mem-layout`.
    """

    l1_tokens: int
    l2: tuple[str, ...] | None = None
    page: int | None = None
    policy: str | None = None
    layout: str | None = None

    def arguments(self) -> tuple[str, ...]:
        words = [*_flag("--max-total-tokens", self.l1_tokens), *_flag("--page-size", self.page)]
        if self.l2 is not None:
            words += ["--enable-hierarchical-cache", *self.l2]
            words += _flag("--hicache-write-policy", self.policy)
            words += _flag("--hicache-mem-layout", self.layout)
        return tuple(words)


def _flag(name: str, value: object) -> tuple[str, ...]:
    return () if value is None else (name, str(value))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A server that is compared with others.

    Parameters
    ----------
    name
        How results and logs call it.
    codec
        `HIQCACHE_CODEC`; `off` is SGLang's own BF16 HiCache, None a server without L2.
    arguments, environment
        What only this arm has; its arguments come last, and the last one counts.
    """

    name: str
    codec: str | None
    pools: Pools
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What every server of a fleet is started with.

    Parameters
    ----------
    model
        A Hugging Face id or a folder.
    arguments
        SGLang's arguments beyond model, address, pools and those of an arm.
    logs
        The folder that takes `<arm>.log`.
    gpus
        Values for `CUDA_VISIBLE_DEVICES`; empty where there is no choice.
    per_gpu
        Servers that share a GPU before the next one takes its turn.
    image
        Servers run as containers of this image; as processes of this machine when None.
    """

    model: str
    arguments: tuple[str, ...]
    logs: Path
    gpus: tuple[str, ...] = ()
    per_gpu: int = 6
    image: str | None = None

    def arguments_of(self, arm: Arm) -> tuple[str, ...]:
        # An image for the CPU says by itself that it runs there.
        device = CPU_ARGUMENTS if self._on_this_cpu else ()
        return (*device, *arm.pools.arguments(), *self.arguments, *arm.arguments)

    def gpu(self, place: int) -> str | None:
        """The GPU of the server at this place: one is filled before the next."""
        if self.gpus:
            return self.gpus[min(place // self.per_gpu, len(self.gpus) - 1)]
        # A container sees no GPU but those it is given.
        return "0" if self.image is not None and has_gpu() else None

    def server(self, arm: Arm, gpu: str | None) -> AnyServer:
        """The arm's server, not started."""
        environment = {
            **(CPU_ENVIRONMENT if self._on_this_cpu else {}),
            "HIQCACHE_CODEC": arm.codec or "off",
            **arm.environment,
        }
        log = self.logs.resolve() / f"{arm.name}.log"
        if self.image is not None:
            return ContainerServer(
                self.image, self.model, self.arguments_of(arm), environment, log, gpu
            )
        place = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return Server(self.model, self.arguments_of(arm), {**environment, **place}, log)

    @property
    def _on_this_cpu(self) -> bool:
        return self.image is None and not has_gpu()


class Fleet:
    """The servers of several arms, to be used in a `with` statement.

    Side by side, all are started at once and stay up, and one that does not come up is missed
    only where it is asked for. Otherwise a server is started when its arm is asked for, and
    ended when another one is.
    """

    def __init__(self, launch: Launch, arms: Sequence[Arm], *, side_by_side: bool = False) -> None:
        self.launch = launch
        self._places = {arm.name: place if side_by_side else 0 for place, arm in enumerate(arms)}
        self._arms = tuple(arms)
        self._side_by_side = side_by_side
        self._servers: dict[str, AnyServer] = {}
        self._failed: dict[str, HiQCacheError] = {}

    def gpu(self, arm: Arm) -> str | None:
        """The GPU that the arm's server is given; None where there is no choice."""
        return self.launch.gpu(self._places.get(arm.name, 0))

    def client(self, arm: Arm) -> Client:
        """The client of the arm's server, which is ready.

        Raises
        ------
        HiQCacheError
            The server does not start, or has ended.
        """
        if error := self._failed.get(arm.name):
            raise error
        if arm.name not in self._servers:
            if not self._side_by_side:
                self.close()
            self._start(arm)
            self._wait(arm.name, READY_SECONDS)
        server = self._servers[arm.name]
        if (code := server.exit_code()) is not None:
            raise HiQCacheError(
                f"the server of {arm.name} has ended with code {code}: {server.last_words()}"
            )
        return server.client

    def close(self) -> None:
        """End every server; together, since each takes seconds."""
        servers, self._servers = self._servers, {}
        with ThreadPoolExecutor(max(1, len(servers))) as pool:
            list(pool.map(lambda server: server.stop(), servers.values()))

    def _start(self, arm: Arm) -> None:
        self._servers[arm.name] = self.launch.server(arm, self.gpu(arm))
        with self._ending(arm.name):
            self._servers[arm.name].start()

    def _wait(self, name: str, seconds: float) -> None:
        with self._ending(name):
            self._servers[name].wait_ready(seconds)

    @contextmanager
    def _ending(self, name: str) -> Iterator[None]:
        """End the server if it does not come up: it must not be taken for one that did."""
        try:
            yield
        except BaseException:
            self._servers.pop(name).stop()
            raise

    def __enter__(self) -> Fleet:
        if not self._side_by_side:
            return self
        begin = time.monotonic()
        try:
            for place, arm in enumerate(self._arms):
                time.sleep(max(0.0, begin + place * STAGGER_SECONDS - time.monotonic()))
                self._start(arm)
            for arm in self._arms:
                try:
                    self._wait(arm.name, max(1.0, READY_SECONDS - (time.monotonic() - begin)))
                except HiQCacheError as error:
                    self._failed[arm.name] = error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
