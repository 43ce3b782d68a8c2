"""What a result was made by: the one place that says which facts go with a figure."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("hiqcache", "torch", "triton", "sglang")


def provenance(device: str, device_name: str) -> dict[str, str]:
    """Versions, machine, commit and date, as strings.

    Parameters
    ----------
    device
        The torch device type, such as `cpu` or `cuda`.
    device_name
        The name of that device; `cpu_model()` for a CPU.
    """
    return {
        **{name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": device,
        "device_name": device_name,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    """The processor's name, from /proc/cpuinfo where there is one."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the checkout this package runs from, `+dirty` if changed; else "unknown"."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may lie inside some other project's repository.
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return "unknown"
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
