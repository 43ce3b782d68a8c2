"""The project's compose.yaml, run by the real Compose under a project of the tests' own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = "hiqcache-test"


def program() -> list[str]:
    """`docker compose` as a program of its own or as Docker's plugin."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    pytest.fail(
        "Compose is missing: `tests/pod/install_tools.sh` installs Debian's docker-compose 2.26"
    )


class Compose:
    """Runs Compose on `compose.yaml`.

    Parameters
    ----------
    variables
        What a user would write into `.env`. No `.env` is read, so that a developer's own does
        not change what is tested.
    environment
        The process's environment: where the engine is.
    further
        Compose files on top of `compose.yaml`.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
        further: tuple[Path, ...] = (),
    ) -> None:
        self.variables = dict(variables)
        own = ("HIQCACHE_", "GRAFANA_", "PROMETHEUS_", "COMPOSE_", "PYTHON_IMAGE", "HF_TOKEN")
        base = os.environ if environment is None else environment
        self.environment = {k: v for k, v in base.items() if not k.startswith(own)}
        files = [ROOT / "compose.yaml", *further]
        self.command = [*program(), "--env-file", os.devnull, "--project-name", PROJECT]
        self.command += [word for file in files for word in ("--file", str(file))]

    def try_run(
        self, profiles: tuple[str, ...], *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a Compose command under some profiles; both outputs in `stdout`."""
        chosen = [word for profile in profiles for word in ("--profile", profile)]
        return subprocess.run(
            [*self.command, *chosen, *arguments],
            env={**self.environment, **self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def run(self, profiles: tuple[str, ...], *arguments: str, **variables: str) -> str:
        """The same, and it must succeed."""
        done = self.try_run(profiles, *arguments, **variables)
        assert done.returncode == 0, f"compose {' '.join(arguments)}: {done.stdout[-4000:]}"
        return done.stdout

    def config(self, profiles: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
        """The configuration as Compose understands it, for some profiles."""
        text = self.run(profiles, "config", "--format", "json", **variables)
        config: dict[str, Any] = json.loads(text)
        return config
