"""What `pod` says when it cannot begin, and what it makes of the engine's answers."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hiqcache.errors import HiQCacheError, UsageError
from hiqcache.pod import docker_engine
from hiqcache.pod.compose import Compose, find_compose, last_words
from hiqcache.pod.container import Container
from hiqcache.pod.status import l2_words, request

ROOT = Path(__file__).parents[2]


def pod(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hiqcache.cli", "pod", *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/root", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("verb", ["up", "status", "logs", "down"])
def test_without_an_engine_every_verb_is_one_sentence(tmp_path: Path, verb: str) -> None:
    pytest.importorskip("docker")
    done = pod(verb, DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "there is no Docker engine" in done.stderr


def test_an_engine_that_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with pytest.raises(docker_engine.NoEngine, match="nothing answers .* start Docker"):
        docker_engine.connect()


def test_a_socket_without_permission(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    # pytest's own folders are closed to others.
    folder = Path("/var/tmp/hiqcache-socket-test")
    folder.mkdir(mode=0o755, exist_ok=True)
    path = folder / "docker.sock"
    path.unlink(missing_ok=True)
    program = (
        "import os, sys; from hiqcache.pod.docker_engine import connect, NoEngine\n"
        "import docker, docker.errors, requests\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: connect()\n"
        "except NoEngine as error: print(error)\n"
    )
    try:
        with socket.socket(socket.AF_UNIX) as mine:
            mine.bind(str(path))
            mine.listen()
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "DOCKER_HOST": f"unix://{path}"},
                capture_output=True,
                text=True,
                timeout=60,
            )
    finally:
        path.unlink()
        folder.rmdir()
    assert "no permission to use the Docker engine" in done.stdout, done.stderr
    assert "usermod -aG docker" in done.stdout


def program(folder: Path, name: str, prints: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{prints}\n")
    path.chmod(0o755)


def test_a_compose_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HiQCacheError, match="Compose is not installed"):
        find_compose()
    program(tmp_path, "docker-compose", "echo 1.29.2")
    with pytest.raises(HiQCacheError, match="is Compose 1.29, expected 2.20 or newer"):
        find_compose()
    program(tmp_path, "docker", "echo v2.40.1-desktop.1")
    assert find_compose() == ["docker", "compose"]
    program(tmp_path, "docker", "exit 1")
    program(tmp_path, "docker-compose", "echo 2.26.1-4")
    assert find_compose() == ["docker-compose"]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--file .* does not exist"):
        Compose(tmp_path / "none.yaml", program=["true"])
    with pytest.raises(UsageError, match="--env-file .* does not exist"):
        Compose(ROOT / "compose.yaml", tmp_path / "none", program=["true"])


def test_composes_reason_is_its_last_line() -> None:
    said = " Container a  Starting\n\x1b[31mdependency failed to start: b is unhealthy\x1b[0m\n\n"
    assert last_words(said) == "dependency failed to start: b is unhealthy"
    assert "said nothing" in last_words("\n")


def attributes(**state: Any) -> dict[str, Any]:
    """The parts of what engine 20.10 answers to `inspect`."""
    return {
        "Name": "/hiqcache-cpu-server-int8-1",
        "RestartCount": 0,
        "Args": ["--", "/opt/hiqcache/entrypoint.sh", "--api-key", "k"],
        "Config": {"Labels": {"com.docker.compose.service": "cpu-server-int8"}},
        "State": {
            "Status": "running",
            "OOMKilled": False,
            "ExitCode": 0,
            "StartedAt": "2026-11-30T06:47:14.123456789Z",
            **state,
        },
        "NetworkSettings": {
            "Ports": {"30000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "30001"}], "9464/tcp": None}
        },
    }


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        ({"Health": {"Status": "starting"}}, None),
        ({"Health": {"Status": "healthy"}}, None),
        ({"Health": {"Status": "unhealthy"}}, "is unhealthy"),
        ({"Status": "created"}, None),
        ({"Status": "restarting", "ExitCode": 1}, "ended with code 1"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "by the kernel for memory"),
    ],
)
def test_which_states_are_failures(state: dict[str, Any], failure: str | None) -> None:
    container = Container.of(attributes(**state))
    assert container.variant == "int8" and container.server and not container.sidecar
    assert container.urls == {30000: "http://127.0.0.1:30001"}
    if failure is None:
        assert container.failure is None
    else:
        assert failure in str(container.failure)
    assert container.ready == (state.get("Health") == {"Status": "healthy"})


def test_the_key_is_never_printed() -> None:
    assert "Bearer $API_KEY" in request("http://h:1", key=True)
    assert "Bearer" not in request("http://h:1", key=False)


def test_l2_in_words() -> None:
    l2 = {"tokens_max": 65_105.0}
    sizes = {"configured": 15_360.0, "backup": None, "restore": None}
    assert l2_words({"l2": l2, "bytes_per_token": sizes, "pool": {"codec": "int8"}}) == (
        "L2 holds 65,105 tokens at 15,360 bytes each (HiQCache int8)"
    )
    sizes["configured"] = None
    stock = l2_words({"l2": l2, "bytes_per_token": sizes, "pool": None})
    assert "first backup" in stock and "HiQCache is off" in stock
    assert l2_words({"l2": {"tokens_max": None}, "bytes_per_token": sizes, "pool": None}) == "no L2"
