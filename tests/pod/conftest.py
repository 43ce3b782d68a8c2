"""An engine, the images, and the pod on the CPU: each made once and used by all tests.

`HIQCACHE_POD_FOLDER` keeps the engine's data there between runs; without it everything that a
run made is removed at its end.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import stand_in
from .compose import PROJECT, Compose
from .docker import Engine, OwnEngine
from .packages import PackageFolders
from .pod import CPU, Pod, variables

KEEP = "HIQCACHE_POD_FOLDER"


def remove_left(engine: Engine) -> None:
    """Remove containers that a failed test left behind."""
    left = engine.run("ps", "--all", "--quiet", "--filter", f"name={PROJECT}").split()
    if left:
        engine.run("rm", "--force", "--volumes", *left)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine that answers; if none does, one of our own for this run."""
    running = Engine(None)
    if running.answers():
        yield running
        remove_left(running)
        return
    kept = os.environ.get(KEEP)
    # Not in /tmp, which may be memory.
    folder = Path(kept or tempfile.mkdtemp(prefix="hiqcache-pod-", dir="/var/tmp"))
    own = OwnEngine(folder)
    try:
        own.start()
        engine = Engine(own.host)
        yield engine
        remove_left(engine)
    finally:
        own.stop(remove=kept is None)


@pytest.fixture(scope="session")
def bases(engine: Engine) -> Iterator[dict[str, str]]:
    """The variables that put the stand-ins in the place of the pulled images."""
    packages = PackageFolders()
    packages.start()
    try:
        stand_in.make_all(engine, packages)
        yield {"PYTHON_IMAGE": stand_in.PYTHON, "PROMETHEUS_IMAGE": stand_in.PROMETHEUS}
    finally:
        packages.stop()


@pytest.fixture(scope="session")
def compose(engine: Engine, bases: dict[str, str]) -> Compose:
    """Compose with every image of the profile `cpu` built."""
    network = Path(__file__).parent / "host_network.yaml"
    compose = Compose({**variables(), **bases}, engine.environment, (network,))
    # One service after the other: both variants are one image of 11 GB.
    for service in ("cpu-server-int8", "cpu-sidecar-int8"):
        compose.run((CPU,), "build", service)
    return compose


@pytest.fixture(scope="session")
def server_image(engine: Engine, compose: Compose) -> str:
    image: str = compose.config((CPU,))["services"]["cpu-server-int8"]["image"]
    return image


@pytest.fixture(scope="module")
def pod(engine: Engine, compose: Compose) -> Iterator[Pod]:
    """Both variants, their sidecars and Prometheus, healthy."""
    pod = Pod(engine, compose)
    try:
        pod.up()
        yield pod
    finally:
        compose.run((CPU,), "down", "--volumes", "--timeout", "20")
