"""Base images made on this machine, in place of those that would be pulled.

Each is Debian bookworm with what the real image has: the same programs in the same places,
under the same user. They come in by build argument or by the variables of compose.yaml.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from .docker import Engine
from .packages import PackageFolders

DEBIAN = "hiqcache-test/debian:bookworm"
PYTHON = "hiqcache-test/python:slim"
PROMETHEUS = "hiqcache-test/prometheus:debian"
SUITE = "bookworm"
FOLDER = Path(__file__).parent / "images"


def make_all(engine: Engine, packages: PackageFolders) -> None:
    """Make the images that are not there yet: a minute and a half."""
    if not engine.has_image(DEBIAN):
        _import_debian(engine)
    for tag, name in ((PYTHON, "python"), (PROMETHEUS, "prometheus")):
        if not engine.has_image(tag):
            with tempfile.TemporaryDirectory() as context:
                packages.write(Path(context))
                engine.build(
                    tag, FOLDER / f"{name}.Dockerfile", Path(context), {"DEBIAN_IMAGE": DEBIAN}
                )


def _import_debian(engine: Engine) -> None:
    # Not in /tmp, which is often mounted in a way that forbids device files.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", SUITE, str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"debootstrap: {done.stdout[-2000:]}")
        with subprocess.Popen(
            ["tar", "-C", str(root), "--exclude=./var/cache/apt/archives/*.deb", "-c", "."],
            stdout=subprocess.PIPE,
        ) as archive:
            engine.run("import", "-", DEBIAN, stdin=archive.stdout)
