"""The image for places that run one container: server and sidecar under one supervisor."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from hiqcache.lab.serving.server import free_port

from .compose import PROJECT, ROOT
from .docker import Engine
from .pod import READY_SECONDS, SIGTERM, get, wait_for
from .stand_in import PYTHON

NAME = f"{PROJECT}-allinone"
ARGUMENTS = (
    *("--model-path", "/models/smollm2-135m-instruct", "--host", "0.0.0.0", "--port", "30000"),
    *("--enable-metrics", "--max-total-tokens", "2048"),
    *("--enable-hierarchical-cache", "--hicache-size", "1"),
)
KILL = (
    'for p in /proc/[0-9]*; do tr "\\0" " " <$p/cmdline | grep -q "{}" && kill -9 ${{p#/proc/}};'
    " done; true"
)


class Container:
    """One all-in-one container and the addresses of its two halves."""

    def __init__(self, engine: Engine, image: str) -> None:
        self.engine = engine
        self.server, self.sidecar = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        published = [
            word
            for address, inside in ((self.server, 30000), (self.sidecar, 9464))
            for word in ("--publish", f"{address.removeprefix('http://')}:{inside}")
        ]
        engine.run(
            *("run", "--detach", "--name", NAME, *published),
            *("--memory", "16g", "--shm-size", "1g", "--env", "HIQCACHE_CODEC=int8"),
            *(image, *ARGUMENTS),
        )

    def up(self) -> bool | None:
        """True once the sidecar has figures of the server, None before."""
        state = self.engine.inspect(NAME)["State"]
        assert state["Running"], self.engine.run("logs", NAME)[-4000:]
        try:
            metrics = get(f"{self.sidecar}/metrics")
        except OSError:
            return None
        healthy = state["Health"]["Status"] == "healthy"
        return True if "\nhiqcache_up 1.0" in metrics and healthy else None

    def kill(self, words: str) -> None:
        """SIGKILL what has these words, a regular expression, in its command line."""
        self.engine.run("exec", NAME, "sh", "-c", KILL.format(words))


@pytest.fixture(scope="module")
def image(engine: Engine, server_image: str) -> str:
    """Its layers are the server's, which `server_image` has built."""
    tag = "hiqcache-test/allinone:latest"
    dockerfile, arguments = ROOT / "docker" / "server.Dockerfile", {"PYTHON_IMAGE": PYTHON}
    engine.build(tag, dockerfile, ROOT, arguments, "allinone")
    return tag


@pytest.fixture(scope="module")
def container(engine: Engine, image: str) -> Iterator[Container]:
    try:
        container = Container(engine, image)
        wait_for("both halves", container.up, READY_SECONDS)
        yield container
    finally:
        engine.try_run("rm", "--force", NAME)


def test_both_halves_answer(container: Container) -> None:
    request = urllib.request.Request(
        f"{container.server}/v1/completions",
        json.dumps({"model": "default", "prompt": "Paris is", "max_tokens": 4}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 4
    assert "hiqcache_l2_tokens_max 65105.0" in get(f"{container.sidecar}/metrics")


def test_a_dead_sidecar_comes_back_and_the_server_stays(container: Container) -> None:
    started = container.engine.inspect(NAME)["State"]["StartedAt"]
    # With a bracket, so that the shell that looks does not find itself.
    container.kill("[h]iqcache sidecar")

    def down() -> bool | None:
        try:
            get(f"{container.sidecar}/healthz")
        except OSError:
            return True
        return None

    wait_for("the sidecar's end", down, 10)
    wait_for("the sidecar again", container.up, 60)
    assert container.engine.inspect(NAME)["State"]["StartedAt"] == started


def test_a_stop_is_clean_and_a_dead_server_ends_the_container(
    container: Container, engine: Engine
) -> None:
    engine.run("stop", "--time", "60", NAME)
    # After the 60 s Docker would have killed it: code 137.
    assert engine.inspect(NAME)["State"]["ExitCode"] == SIGTERM
    engine.run("start", NAME)
    wait_for("both halves again", container.up, READY_SECONDS)
    container.kill("^sglang::scheduler")

    def ended() -> bool | None:
        return None if engine.inspect(NAME)["State"]["Running"] else True

    wait_for("the container's end", ended, 30)
    assert engine.inspect(NAME)["State"]["ExitCode"] != 0


def test_a_refusal_is_the_containers_exit_code(engine: Engine, image: str) -> None:
    done = engine.try_run("run", "--rm", "--env", "HIQCACHE_CODEC=int9", image, *ARGUMENTS)
    assert done.returncode in (1, 2), done.stdout[-2000:]
    assert "int9" in done.stdout and "Traceback" not in done.stdout
