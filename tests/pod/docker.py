"""A Docker engine for the tests: the one that answers, or one of our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

START_SECONDS = 60


class Engine:
    """A Docker engine, spoken to through the `docker` program."""

    def __init__(self, host: str | None) -> None:
        # Debian's client lies there; a machine may have a stand-in of that name earlier on PATH.
        self.program = _program("docker", path=f"/usr/bin:{os.environ['PATH']}")
        self.environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if host is not None:
            self.environment["DOCKER_HOST"] = host

    def try_run(
        self, *arguments: str, stdin: Any = None, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker ARGUMENTS`; both outputs in `stdout`."""
        return subprocess.run(
            [self.program, *arguments],
            env=self.environment,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )

    def run(self, *arguments: str, stdin: Any = None) -> str:
        """Run `docker ARGUMENTS`, which must succeed, and return what it printed."""
        done = self.try_run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout[-4000:]}"
        return done.stdout.strip()

    def answers(self) -> bool:
        return self.try_run("version", timeout=20).returncode == 0

    def has_image(self, name: str) -> bool:
        return self.try_run("image", "inspect", name).returncode == 0

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("inspect", name))[0]
        return found

    def build(
        self,
        tag: str,
        dockerfile: Path,
        context: Path,
        arguments: Mapping[str, str],
        target: str | None = None,
    ) -> str:
        """Build an image, or one stage of it, and return the builder's output."""
        given = [word for pair in arguments.items() for word in ("--build-arg", "=".join(pair))]
        given += ["--target", target] if target else []
        return self.run(
            *("build", "--progress", "plain", "--network", "host"),
            *("--file", str(dockerfile), "--tag", tag, *given, str(context)),
        )


class OwnEngine:
    """`dockerd` with a data root, a socket and a pid file of its own.

    Parameters
    ----------
    folder
        Takes the images: 16 GB for these tests.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        if os.geteuid() != 0:
            pytest.fail("no Docker engine answers, and only root can start one: start Docker")
        dockerd = _program("dockerd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        self.folder.mkdir(parents=True, exist_ok=True)
        log = (self.folder / "dockerd.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(dockerd, "--host", self.host),
                *("--data-root", str(self.folder / "data")),
                *("--exec-root", str(self.folder / "exec")),
                *("--pidfile", str(self.folder / "docker.pid")),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        engine, deadline = Engine(self.host), time.monotonic() + START_SECONDS
        while not engine.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = (self.folder / "dockerd.log").read_text(errors="replace")
                pytest.fail(f"dockerd does not start: {words[-2000:]}")
            time.sleep(0.5)

    def stop(self, *, remove: bool) -> None:
        """Stop it; with `remove` also delete its images, containers and build cache."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        if remove:
            # A build with the host's network leaves its network namespace mounted.
            mounted = [
                line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()
            ]
            for place in reversed(mounted):
                if place.startswith(f"{self.folder}/"):
                    subprocess.run(["umount", place], check=False)
            shutil.rmtree(self.folder, ignore_errors=True)


def _program(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        pytest.fail(f"{name} is missing: `tests/pod/install_tools.sh` installs Debian's docker.io")
    return found
