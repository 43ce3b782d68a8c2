"""Docker Compose: which program it is, and a run of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hiqcache.errors import HiQCacheError, UsageError

PROJECT = "hiqcache"
OLDEST = (2, 20)
"""compose.yaml says `required: false` in `depends_on`, which this version brought."""

PROFILES = ("bf16", "int8", "cpu", "gpu-metrics")
INSTALL = "install Docker's plugin docker-compose-plugin, or Debian's docker-compose"


def find_compose() -> tuple[list[str], str]:
    """The command that runs Compose, and its version.

    Raises
    ------
    HiQCacheError
        There is none, or it is older than `compose.yaml` needs.
    """
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(
            [*command, "version", "--short"], capture_output=True, text=True, check=False
        )
        found = re.search(r"(\d+)\.(\d+)[\w.-]*", done.stdout)
        if done.returncode != 0 or found is None:
            continue
        if (int(found[1]), int(found[2])) < OLDEST:
            raise HiQCacheError(
                f"Compose is version {found[0]}, expected {'.'.join(map(str, OLDEST))} or newer: "
                f"{INSTALL}"
            )
        return command, found[0]
    raise HiQCacheError(f"Docker Compose is not installed: {INSTALL}")


@dataclass(frozen=True)
class Compose:
    """Compose on one file of services.

    Parameters
    ----------
    file, env_file
        `compose.yaml` and the variables it is filled with; without an `env_file` Compose looks
        for `.env` beside `file`.
    profiles
        What to start; empty for what `COMPOSE_PROFILES` says.
    environ
        The environment that it runs in.
    """

    file: Path
    env_file: Path | None = None
    profiles: tuple[str, ...] = ()
    command: Sequence[str] = ("docker", "compose")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def find(cls, file: Path, env_file: Path | None, profiles: tuple[str, ...]) -> Compose:
        """Find the program and look at what was asked of it.

        Raises
        ------
        UsageError
            An unknown profile, or a file that does not exist.
        HiQCacheError
            No Compose, or one that is too old.
        """
        unknown = [profile for profile in profiles if profile not in PROFILES]
        if unknown:
            raise UsageError(
                f"no profile is called {unknown[0]!r}: expected one of {', '.join(PROFILES)}"
            )
        for path, flag in ((file, "--file"), (env_file, "--env-file")):
            if path is not None and not path.is_file():
                raise UsageError(f"there is no {path}: run it in HiQCache's folder or set {flag}")
        command, _ = find_compose()
        return cls(file, env_file, profiles, command)

    def words(self, *arguments: str) -> list[str]:
        """The whole command line."""
        env = () if self.env_file is None else ("--env-file", str(self.env_file))
        chosen = [word for profile in self.profiles for word in ("--profile", profile)]
        return [
            *(*self.command, "--file", str(self.file), *env, "--project-name", PROJECT),
            *(*chosen, *arguments),
        ]

    def run(self, *arguments: str) -> str:
        """Run it to its end and return what it printed.

        Raises
        ------
        HiQCacheError
            It failed; carries its last line, which says why.
        """
        done = subprocess.run(
            self.words(*arguments), capture_output=True, text=True, check=False, env=self.environ
        )
        if done.returncode != 0:
            raise HiQCacheError(last_words(done.stderr))
        return done.stdout

    def services(self) -> tuple[str, ...]:
        """The services that the profiles start. Reading them also finds what `.env` lacks."""
        found = tuple(sorted(self.run("config", "--services").split()))
        return found


def last_words(text: str) -> str:
    """The line of Compose's output that says what went wrong.

    A missing variable it reports as `error while interpolating PATH: required variable NAME is
    missing a value: MESSAGE`, where the message is compose.yaml's own.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next(
        (
            line
            for line in reversed(lines)
            if re.search(r"error|denied|required|no such", line, re.I)
        ),
        lines[-1] if lines else "Compose failed and said nothing",
    )
    variable = re.search(r"required variable (\w+) is missing a value: (.*)", line)
    return f"{variable[1]} is not set: {variable[2]}" if variable else line
