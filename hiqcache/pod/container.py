"""One container of the project, as the engine sees it now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hiqcache.pod.stage import Stage, last_stage, last_words

if TYPE_CHECKING:
    from docker import DockerClient  # type: ignore[attr-defined]

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
ONE_OFF_LABEL = "com.docker.compose.oneoff"
LOG_LINES = 1000
ANYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class Container:
    """A container and what the engine says of it.

    Parameters
    ----------
    service
        Its name in compose.yaml.
    status
        The engine's word: `created`, `running`, `restarting`, `exited`, `dead`, ...
    health
        `starting`, `healthy` or `unhealthy`; None where the image has no health check.
    restarts
        How often the engine has started it again.
    exit_code
        Of its last end; 0 before.
    started
        When it was started last, to the second.
    out_of_memory
        Whether the kernel ended it for memory.
    urls
        Published addresses by the port inside.
    arguments
        What its program was started with.
    """

    name: str
    service: str
    status: str
    health: str | None
    restarts: int
    exit_code: int
    out_of_memory: bool
    started: datetime
    urls: Mapping[int, str]
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Container:
        """Read what the engine's `inspect` answers."""
        state = attributes["State"]
        return cls(
            name=attributes["Name"].removeprefix("/"),
            service=attributes["Config"]["Labels"][SERVICE_LABEL],
            status=state["Status"],
            health=(state.get("Health") or {}).get("Status"),
            restarts=attributes.get("RestartCount", 0),
            exit_code=state.get("ExitCode", 0),
            out_of_memory=bool(state.get("OOMKilled")),
            # To the second: the engine counts nanoseconds, which Python cannot hold.
            started=datetime.fromisoformat(state["StartedAt"][:19] + "+00:00"),
            urls=_urls(attributes["NetworkSettings"].get("Ports") or {}),
            arguments=tuple(attributes.get("Args") or ()),
        )

    @property
    def server(self) -> bool:
        return "server-" in self.service

    @property
    def sidecar(self) -> bool:
        return "sidecar-" in self.service

    @property
    def variant(self) -> str:
        return self.service.rpartition("-")[2]

    @property
    def ready(self) -> bool:
        return self.status == "running" and self.health in (None, "healthy")

    @property
    def failure(self) -> str | None:
        """Why it will not get ready by itself; None while it may."""
        if self.out_of_memory and self.status != "running":
            return "was ended by the kernel for memory"
        if self.status in ("exited", "dead", "restarting"):
            return f"ended with code {self.exit_code}"
        if self.health == "unhealthy":
            return "is unhealthy"
        return None

    @property
    def looping(self) -> bool:
        """Whether it keeps ending: between two ends it looks like one that starts."""
        return self.restarts > 0 and not self.ready


def find_containers(client: DockerClient, project: str) -> dict[str, Container]:
    """The containers of a project's services by name; `compose run` leaves others."""
    found = {}
    # An engine that is removing one lists it and then does not know it.
    for container in client.containers.list(
        all=True, filters={"label": f"{PROJECT_LABEL}={project}"}, ignore_removed=True
    ):
        labels = container.attrs["Config"]["Labels"]
        if labels.get(ONE_OFF_LABEL, "False") == "False" and SERVICE_LABEL in labels:
            one = Container.of(container.attrs)
            found[one.service] = one
    return found


def log_lines(
    client: DockerClient, container: Container, since: datetime | None = None
) -> list[str]:
    """The end of its log, of all its starts or of those since a moment."""
    one = client.containers.get(container.name)
    # The engine keeps the log when it starts a container again.
    text: bytes = one.logs(tail=LOG_LINES, since=None if since is None else since.timestamp())
    return text.decode(errors="replace").splitlines()


def stage(client: DockerClient, container: Container) -> str:
    """What it does, in words."""
    if container.failure is not None:
        return container.failure
    if container.status != "running":
        return "waiting for others" if container.status == "created" else container.status
    if container.ready:
        return Stage.READY.words
    if not container.server:
        return Stage.STARTING.words
    # SGLang says that it is ready some seconds before the next health check does.
    return min(last_stage(log_lines(client, container, container.started)), Stage.WARMING).words


def reason(client: DockerClient, container: Container) -> str:
    """What went wrong and the container's own last words, over several lines."""
    words = "\n".join(f"  {line}" for line in last_words(log_lines(client, container)))
    what = container.failure or f"ended and was started again, {container.restarts} times"
    return f"{container.name} {what}; its last words:\n{words}"


def memory(client: DockerClient, container: Container) -> tuple[int, int | None] | None:
    """Bytes in use without file pages, and the limit; None while it does not run.

    The engine gives the machine's whole memory for a container without a limit.
    """
    if container.status != "running":
        return None
    one = client.containers.get(container.name)
    figures = one.stats(stream=False, one_shot=True).get("memory_stats") or {}
    if "usage" not in figures:
        return None
    pages = figures.get("stats") or {}
    # Version 2 of the kernel's interface, then version 1.
    inactive = pages.get("inactive_file", pages.get("total_inactive_file", 0))
    limit = one.attrs["HostConfig"].get("Memory") or None
    return max(0, figures["usage"] - inactive), limit


def _urls(ports: Mapping[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for inside, bindings in ports.items():
        for binding in bindings or ():
            host = "127.0.0.1" if binding["HostIp"] in ANYWHERE else binding["HostIp"]
            found.setdefault(int(inside.partition("/")[0]), f"http://{host}:{binding['HostPort']}")
    return found
