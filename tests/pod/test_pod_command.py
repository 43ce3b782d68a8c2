"""`hiqcache pod` on the real engine: what a person sees of a start, a failure and an end."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiqcache.lab.serving.server import free_port

from .compose import PROJECT, ROOT, Compose
from .docker import Engine
from .pod import SECRETS

pytest.importorskip("docker")

OWN = f"{PROJECT}-command"
GRAFANA = "grafana"


class Command:
    """`hiqcache pod VERB` under a project of its own, with the tests' `.env`."""

    def __init__(self, engine: Engine, compose: Compose, folder: Path) -> None:
        # Grafana's image cannot be had without a registry; Prometheus has one that stands in.
        stand_in = {"GRAFANA_IMAGE": compose.variables["PROMETHEUS_IMAGE"]}
        ports = {name: str(free_port()) for name in compose.variables if name.endswith("_PORT")}
        self.variables = {**compose.variables, **stand_in, **ports}
        self.folder, self.environment = folder, compose.environment
        # With another image Grafana's folders and its check mean nothing.
        override = folder / "compose.yaml"
        override.write_text(
            f"include:\n  - path: [{ROOT}/compose.yaml, {folder}/grafana.yaml]\n"
            f"    env_file: {folder}/.env\n"
        )
        (folder / "grafana.yaml").write_text(
            "services:\n  grafana:\n    entrypoint: [sleep, infinity]\n    init: true\n"
            "    healthcheck: {disable: true}\n"
        )

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        lines = (f"{k}={v}" for k, v in {**self.variables, **variables}.items())
        (self.folder / ".env").write_text("\n".join(lines))
        return subprocess.run(
            [
                *(sys.executable, "-m", "hiqcache.cli", "pod", *arguments),
                *("--file", str(self.folder / "compose.yaml"), "--project-name", OWN),
                *("--env-file", str(self.folder / ".env")),
            ],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )


@pytest.fixture(scope="module")
def command(
    engine: Engine, compose: Compose, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Command]:
    command = Command(engine, compose, tmp_path_factory.mktemp("command"))
    try:
        yield command
    finally:
        command("down", "--volumes")


def test_an_unknown_profile_and_a_missing_password_start_nothing(
    command: Command, engine: Engine
) -> None:
    unknown = command("up", "--profile", "gpu")
    assert unknown.returncode == 2
    assert "no profile 'gpu'" in unknown.stderr and "cpu, gpu-metrics" in unknown.stderr
    missing = command("up", "--profile", "cpu", GRAFANA_PASSWORD="")
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1 and "GRAFANA_PASSWORD" in missing.stderr
    assert not engine.run("ps", "--all", "--quiet", "--filter", f"name={OWN}")


def test_status_without_containers_is_a_sentence(command: Command) -> None:
    done = command("status")
    assert done.returncode == 1
    assert "hiqcache pod up starts them" in done.stderr and done.stderr.count("\n") == 1


def test_a_start_that_fails_names_the_container_and_its_words(command: Command) -> None:
    done = command("up", "--profile", "cpu", HIQCACHE_CPU_MODEL="/models/none")
    assert done.returncode == 1, done.stdout
    assert re.search(rf"hiqcache: {OWN}-cpu-server-\w+-1 (ended|is)", done.stderr)
    assert "there is no /models/none" in done.stderr
    assert not [secret for secret in SECRETS.values() if secret in done.stdout + done.stderr]
    status = command("status")
    assert status.returncode == 1 and "/models/none" in status.stderr
    assert command("down").returncode == 0


def test_a_start_ends_with_a_request_that_works(command: Command, engine: Engine) -> None:
    done = command("up", "--profile", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    for service in ("cpu-server-bf16", "cpu-server-int8"):
        stages = re.findall(rf"\d+ s  {service} +([a-zA-Z2 ]+?)(?: \(after|$)", done.stdout, re.M)
        assert stages[-1] == "ready" and "loading weights" in stages
    # 1 GB of L2: 23,040 bytes per token, and 12,480.
    assert "L2 holds 43,403 tokens at 23,040 bytes each" in done.stdout
    assert "L2 holds 80,129 tokens at 12,480 bytes each" in done.stdout
    assert not [secret for secret in SECRETS.values() if secret in done.stdout + done.stderr]
    curl = done.stdout[done.stdout.index("curl ") :].replace("\\\n", " ")
    curl = curl.replace("$API_KEY", SECRETS["API_KEY"])
    answer = subprocess.run(
        [*shlex.split(curl), "--silent", "--fail"], capture_output=True, timeout=120, check=True
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_status_and_logs_of_a_running_pod(command: Command) -> None:
    status = command("status")
    assert status.returncode == 0, status.stderr
    row = next(line for line in status.stdout.splitlines() if line.startswith("cpu-server-int8"))
    assert re.search(r"ready +\d+\.\d\d GiB +16\.00 GiB +http://127\.0\.0\.1:\d+", row)
    logs = command("logs", "cpu-server-int8", "--tail", "2000")
    assert "HiQCache: codec=int8-compact" in logs.stdout


def test_down_leaves_no_container(command: Command, engine: Engine) -> None:
    assert command("down", "--volumes").returncode == 0
    assert not engine.run("ps", "--all", "--quiet", "--filter", f"name={OWN}")
