"""Docker Compose, which does the work: found, asked for its version, and called."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hiqcache.errors import HiQCacheError, UsageError

LEAST = (2, 20)
"""The first release with `required: false` under `depends_on`, which compose.yaml uses."""


class ComposeFailed(HiQCacheError):
    """Compose ended with a failure; the message carries its own last words."""


def find_compose() -> list[str]:
    """The command that is Compose v2: Docker's plugin, or a program of its own.

    Raises
    ------
    HiQCacheError
        Neither is installed, or what is, is too old.
    """
    candidates = (["docker", "compose"], ["docker-compose"])
    versions = {" ".join(command): _version(command) for command in candidates}
    for command in candidates:
        found = versions[" ".join(command)]
        if found is not None and found >= LEAST:
            return command
    for name, found in versions.items():
        if found is not None:
            raise HiQCacheError(
                f"`{name}` is Compose {_dotted(found)}, expected {_dotted(LEAST)} or newer: "
                f"install a newer one (docs.docker.com/compose/install)"
            )
    raise HiQCacheError(
        "Docker Compose is not installed (neither `docker compose` nor `docker-compose` answers): "
        "install its version 2 (docs.docker.com/compose/install)"
    )


def compose_version() -> str:
    """The command and its version, for a person; raises as `find_compose`."""
    command = find_compose()
    return f"`{' '.join(command)}` {_dotted(_version(command) or LEAST)}"


def _version(command: list[str]) -> tuple[int, int] | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            [*command, "version", "--short"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"v?(\d+)\.(\d+)", done.stdout.strip())
    return (int(found[1]), int(found[2])) if done.returncode == 0 and found else None


@dataclass
class Compose:
    """One project of one compose file.

    Parameters
    ----------
    file
        The compose file; its folder is the project's.
    env_file
        Variables for it; None leaves the choice to Compose, which reads `.env` beside the file.
    profiles
        As of `--profile`; empty leaves the choice to `COMPOSE_PROFILES`.
    project
        The project's name; None takes the one in the file.
    """

    file: Path
    env_file: Path | None = None
    profiles: Sequence[str] = ()
    project: str | None = None
    program: list[str] = field(default_factory=find_compose)

    def __post_init__(self) -> None:
        for option, path in (("--file", self.file), ("--env-file", self.env_file)):
            if path is not None and not path.is_file():
                raise UsageError(f"{option} {path} does not exist: name an existing file")

    def command(self, *arguments: str) -> list[str]:
        words = [*self.program, "--file", str(self.file)]
        if self.env_file is not None:
            words += ["--env-file", str(self.env_file)]
        if self.project is not None:
            words += ["--project-name", self.project]
        for profile in self.profiles:
            words += ["--profile", profile]
        return [*words, *arguments]

    def read(self, *arguments: str) -> str:
        """Run a command that only asks, and return what it printed.

        Raises
        ------
        ComposeFailed
            Its last words, in one line.
        """
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise ComposeFailed(last_words(done.stderr or done.stdout))
        return done.stdout

    def all_profiles(self) -> tuple[str, ...]:
        """Every profile of the file."""
        return tuple(self.read("config", "--profiles").split())

    def check_profiles(self) -> None:
        """Refuse a profile that the file does not have: Compose starts the rest without a word.

        Raises
        ------
        UsageError
            Names it and those that there are.
        """
        known = self.all_profiles()
        for profile in self.profiles:
            if profile not in known:
                raise UsageError(
                    f"{self.file} has no profile {profile!r}: expected one of "
                    f"{', '.join(sorted(known))}"
                )

    def project_name(self) -> str:
        """The project's name: given, of `COMPOSE_PROJECT_NAME`, or of the file."""
        name: str = json.loads(self.read("config", "--format", "json"))["name"]
        return name

    def services(self) -> tuple[str, ...]:
        """What the chosen profiles start; every required variable must have its value.

        Raises
        ------
        ComposeFailed
            A variable or file is missing, in Compose's words.
        """
        return tuple(sorted(self.read("config", "--services").split()))


def last_words(output: str) -> str:
    """Compose's own reason: its last line, without colours."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines()]
    return next((line for line in reversed(lines) if line), "Compose failed and said nothing")


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
