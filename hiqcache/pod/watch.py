"""`pod up`: Compose starts the containers, this says how far they are."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING

from hiqcache.errors import HiQCacheError
from hiqcache.pod import container as containers
from hiqcache.pod.compose import Compose, ComposeFailed, last_words
from hiqcache.pod.container import Container, find_containers

if TYPE_CHECKING:
    from docker import DockerClient  # type: ignore[attr-defined]

BUILDING = "building or pulling"
POLL_SECONDS = 2.0
REPEAT_SECONDS = 30.0
"""A stage that lasts is said again this often, so that it does not look stuck."""


class PodFailed(HiQCacheError):
    """A container did not get ready; the message is a sentence, `words` are its own."""

    def __init__(self, sentence: str, words: str) -> None:
        super().__init__(sentence)
        self.words = words


class Start:
    """Compose's `up`, in a session of its own: Ctrl-C ends the watching, not the start."""

    def __init__(self, compose: Compose) -> None:
        # Open as long as Compose writes, which may be longer than this watches.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            compose.command("up", "--detach"),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def code(self) -> int | None:
        """Compose's exit code; None while it works."""
        return self._process.poll()

    def last_line(self) -> str:
        """What Compose said last."""
        self._output.seek(0)
        return last_words(self._output.read().decode(errors="replace"))


class Watch:
    """Prints a line when a service enters a stage, and again while it stays there.

    Parameters
    ----------
    services
        What has to get ready.
    say
        Takes the lines.
    """

    def __init__(
        self,
        client: DockerClient,
        project: str,
        services: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.client, self.project, self.services, self.say = client, project, services, say
        self._begin = time.monotonic()
        self._stages: dict[str, tuple[str, float]] = {}
        self._said: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._width = max((len(service) for service in services), default=0)

    def until_ready(self, start: Start) -> dict[str, Container]:
        """Watch until every service is ready, and return its containers.

        Raises
        ------
        PodFailed
            A container ended, restarted or became unhealthy.
        ComposeFailed
            Compose could not start them.
        """
        while True:
            # First: a container that ends says more than Compose does about it.
            code = start.code()
            found = find_containers(self.client, self.project)
            for service in self.services:
                self._look(service, found.get(service), start)
            if code:
                raise ComposeFailed(f"Compose: {start.last_line()}")
            if all(service in found and found[service].ready for service in self.services):
                return found
            time.sleep(POLL_SECONDS)

    def _look(self, service: str, container: Container | None, start: Start) -> None:
        if container is None:
            if start.code() is None:
                self._enter(service, BUILDING, start.last_line())
            return
        before = self._restarts.setdefault(service, container.restarts)
        if container.failure is not None or container.restarts > before:
            failure = container.failure or "ended and was started again"
            self._enter(service, failure)
            raise PodFailed(
                f"{container.name} {failure}; the other containers were left as they are "
                f"(hiqcache pod status, hiqcache pod down)",
                containers.reason(self.client, container),
            )
        self._enter(service, containers.stage(self.client, container))

    def _enter(self, service: str, stage: str, detail: str = "") -> None:
        now = time.monotonic()
        old, since = self._stages.get(service, ("", now))
        label = f"{now - self._begin:6.0f} s  {service:<{self._width}}  "
        if stage != old:
            after = f" (after {now - since:.0f} s {old})" if old else ""
            self.say(f"{label}{stage}{after}")
            self._stages[service], self._said[service] = (stage, now), now
        elif stage != "ready" and now - self._said[service] >= REPEAT_SECONDS:
            more = f"; {detail[:100]}" if detail else ""
            self.say(f"{label}still {stage}, for {now - since:.0f} s{more}")
            self._said[service] = now
