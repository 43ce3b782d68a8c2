"""What cannot work stops with one sentence before SGLang starts, and never with code 137."""

from __future__ import annotations

import re
import socket

import pytest

from .compose import Compose
from .docker import Engine
from .pod import CPU, SECRETS, SERVICES

SERVER = "cpu-server-int8"
OUT_OF_MEMORY = 137
STARTED = "server_args=|Load weight|launch_server"


def refused(output: str, code: int, *words: str) -> None:
    """One line on what is wrong, with these words in it; SGLang has not been started."""
    assert code in (1, 2), f"exit code {code}: {output[-2000:]}"
    assert "Traceback" not in output and not re.search(STARTED, output), output[-2000:]
    lines = [line for line in output.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, output[-2000:]
    assert not [secret for secret in SECRETS.values() if secret in output]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        # 1 GB of L2 would fit, but SGLang leaves 10 GiB free.
        ({"HIQCACHE_CPU_MEMORY_LIMIT": "8g"}, ("memory", "10 GiB")),
        ({"HIQCACHE_CPU_L2_GB": "12"}, ("memory", "10 GiB")),
        ({"HIQCACHE_CPU_SHM_SIZE": "1m"}, ("/dev/shm",)),
        ({"HIQCACHE_CPU_MODEL": "/models/none"}, ("no /models/none",)),
        ({"HIQCACHE_CODEC": "int9"}, ("HIQCACHE_CODEC", "int9", "int8-compact")),
    ],
    ids=["memory limit", "L2 beyond the limit", "shared memory", "no model", "unknown codec"],
)
def test_a_server_that_cannot_work_says_so(
    compose: Compose, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    done = compose.try_run((CPU,), "run", "--rm", "--no-deps", "-T", SERVER, **variables)
    refused(done.stdout, done.returncode, *words)


def test_a_taken_port_inside_is_a_sentence(
    engine: Engine, compose: Compose, server_image: str
) -> None:
    arguments = compose.config((CPU,))["services"][SERVER]["command"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments[arguments.index("--port") + 1] = port
        arguments[arguments.index("--host") + 1] = "127.0.0.1"
        done = engine.try_run(
            *("run", "--rm", "--network", "host", "--memory", "16g", "--shm-size", "1g"),
            *("--env", "HIQCACHE_CODEC=int8", server_image, *arguments),
        )
    refused(done.stdout, done.returncode, port)


def test_a_taken_port_of_the_host_is_named(engine: Engine, compose: Compose) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        try:
            done = compose.try_run(
                *((CPU,), "up", "--detach", "--no-build", "cpu-sidecar-int8"),
                HIQCACHE_INT8_SIDECAR_PORT=port,
            )
        finally:
            compose.run((CPU,), "down", "--volumes")
    assert done.returncode not in (0, OUT_OF_MEMORY)
    assert f"127.0.0.1:{port}" in done.stdout and "address already in use" in done.stdout


@pytest.mark.parametrize("name", ["GRAFANA_PASSWORD"])
def test_a_missing_password_starts_nothing(engine: Engine, compose: Compose, name: str) -> None:
    done = compose.try_run((CPU,), "up", "--detach", "--no-build", *SERVICES, **{name: ""})
    assert done.returncode not in (0, OUT_OF_MEMORY)
    assert len(done.stdout.strip().splitlines()) == 1 and name in done.stdout
    assert not engine.run("ps", "--all", "--quiet", "--filter", "name=hiqcache-test")
