"""The pod on the CPU with real Docker, Compose, SGLang and Prometheus. The tests run in order."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from .compose import PROJECT
from .pod import CPU, READY_SECONDS, SECRETS, SERVICES, SIGTERM, VARIANTS, Pod, wait_for

BYTES_PER_TOKEN = {"bf16": 23_040, "int8": 12_480}
"""SmolLM2-135M: 30 layers, K and V, 3 heads of 64: 384 bytes per row, a record of 208."""

WARM_UP_TOKENS = 100
"""Under `write_through` SGLang's own warm-up and health checks leave some tokens in L2."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_chat_is_answered(pod: Pod, variant: str) -> None:
    answer = pod.client(variant).chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=12,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None and answer.usage.completion_tokens > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_chat_is_streamed(pod: Pod, variant: str) -> None:
    stream = pod.client(variant).chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=12,
        temperature=0,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len([piece for piece in pieces if piece]) > 1
    assert "Paris" in "".join(pieces)


@pytest.mark.parametrize("variant", VARIANTS)
def test_replay_restores_tokens_of_the_records_size(pod: Pod, variant: str) -> None:
    pod.evict_and_replay(variant)
    metrics = pod.metrics(variant)
    assert metrics["hiqcache_restore_tokens_total"] > 0
    for direction in ("backup", "restore"):
        tokens = metrics[f"hiqcache_{direction}_tokens_total"]
        assert metrics[f"hiqcache_{direction}_bytes_total"] == tokens * BYTES_PER_TOKEN[variant]
        assert metrics[f"hiqcache_l2_bytes_per_token_{direction}"] == BYTES_PER_TOKEN[variant]
    # Both have 1 GB.
    assert metrics["hiqcache_l2_tokens_max"] == 10**9 // BYTES_PER_TOKEN[variant] + 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_prometheus_has_the_same_figures(pod: Pod, variant: str) -> None:
    restored = pod.metrics(variant)["hiqcache_restore_tokens_total"]

    def scraped() -> bool | None:
        found = pod.query(f'hiqcache_restore_tokens_total{{variant="{variant}"}}')
        return True if found and float(found[0]["value"][1]) == restored else None

    wait_for("the restored tokens in Prometheus", scraped, 30)
    ratio = "hiqcache_restore_bytes_total / hiqcache_restore_tokens_total"
    (found,) = pod.query(f'({ratio}) and on() hiqcache_up{{variant="{variant}"}} == 1')[:1]
    values = {s["metric"]["variant"]: float(s["value"][1]) for s in pod.query(ratio)}
    assert values[variant] == BYTES_PER_TOKEN[variant]
    assert found


def test_no_alert_about_a_running_pod(pod: Pod) -> None:
    firing = pod.query('ALERTS{alertstate="firing"}')
    assert not firing
    assert {series["metric"]["variant"] for series in pod.query("hiqcache_up == 1")} == set(
        VARIANTS
    )


@pytest.mark.parametrize("service", SERVICES)
def test_no_container_runs_as_root_or_gains_rights(pod: Pod, service: str) -> None:
    host = pod.state(service)["HostConfig"]
    # Compose without Docker's plugin writes it one way, Docker's client the other.
    assert {option.partition("=")[0].partition(":")[0] for option in host["SecurityOpt"]} == {
        "no-new-privileges"
    }
    assert host["CapDrop"] == ["ALL"]
    assert not host["Privileged"]
    assert pod.engine.run("exec", pod.name(service), "id", "-u") != "0"


@pytest.mark.parametrize("service", SERVICES)
def test_root_file_system_is_read_only(pod: Pod, service: str) -> None:
    assert pod.state(service)["HostConfig"]["ReadonlyRootfs"]
    # As root too, whom permissions do not stop.
    written = pod.engine.try_run("exec", "-u", "0", pod.name(service), "touch", "/written")
    assert written.returncode != 0 and "Read-only file system" in written.stdout


def test_published_ports_listen_on_the_loopback_address_alone(pod: Pod) -> None:
    ports = {
        int(binding["HostPort"]): binding["HostIp"]
        for service in SERVICES
        for bindings in pod.state(service)["NetworkSettings"]["Ports"].values()
        for binding in bindings or ()
    }
    assert len(ports) == len(SERVICES)
    assert set(ports.values()) == {"127.0.0.1"}
    listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    for port in ports:
        addresses = re.findall(rf"\s(\S+):{port}\s", listening)
        assert addresses == ["127.0.0.1"], f"port {port} listens on {addresses}"


@pytest.mark.parametrize("service", SERVICES)
def test_no_secret_in_a_log(pod: Pod, service: str) -> None:
    log = pod.log(service)
    assert not [name for name, secret in SECRETS.items() if secret in log]


@pytest.mark.parametrize("variant", VARIANTS)
def test_sidecar_knows_and_tells_no_secret(pod: Pod, variant: str) -> None:
    paths = ("/", "/metrics", "/api/v1/summary", "/openapi.json", "/healthz", "/readyz")
    told = "".join(pod.sidecar(variant, path) for path in paths)
    told += str(pod.state(f"cpu-sidecar-{variant}")["Config"])
    assert not [name for name, secret in SECRETS.items() if secret in told]


def test_a_server_does_not_get_the_password_of_grafana(pod: Pod) -> None:
    for service in SERVICES:
        environment = pod.state(service)["Config"]["Env"]
        assert not [line for line in environment if SECRETS["GRAFANA_PASSWORD"] in line]


def test_a_killed_scheduler_ends_the_container_and_docker_starts_it_again(pod: Pod) -> None:
    service = "cpu-server-int8"
    other = pod.state("cpu-server-bf16")
    held = pod.metrics("bf16")["hiqcache_l2_tokens"]
    assert pod.metrics("int8")["hiqcache_l2_tokens"] > 0
    begin = time.time()
    # In the container's own process list: SGLang names its processes.
    pod.engine.run(
        *("exec", pod.name(service), "sh", "-c"),
        'for p in /proc/[0-9]*; do grep -aq "^sglang::scheduler" $p/cmdline && kill -9 ${p#/proc/};'
        " done; true",
    )

    def restarted() -> int | None:
        return pod.state(service)["RestartCount"] or None

    assert wait_for("a restart", restarted, 30) == 1
    died = pod.engine.run(
        *("events", "--since", str(int(begin)), "--until", str(int(time.time()) + 1)),
        *("--filter", "event=die", "--filter", f"container={pod.name(service)}"),
        *("--format", "{{.Actor.Attributes.exitCode}}"),
    )
    assert died.split() and "0" not in died.split()

    def healthy() -> bool | None:
        return True if pod.state(service)["State"]["Health"]["Status"] == "healthy" else None

    wait_for("healthy again", healthy, READY_SECONDS)
    empty = pod.metrics("int8")
    assert empty["hiqcache_up"] == 1
    assert empty["hiqcache_restore_tokens_total"] == 0
    assert empty["hiqcache_l2_tokens"] < WARM_UP_TOKENS
    pod.evict_and_replay("int8")
    again = pod.metrics("int8")
    assert again["hiqcache_restore_tokens_total"] > 0
    assert again["hiqcache_restore_bytes_total"] == (
        again["hiqcache_restore_tokens_total"] * BYTES_PER_TOKEN["int8"]
    )
    # The other variant has noticed nothing.
    now = pod.state("cpu-server-bf16")
    assert (now["RestartCount"], now["State"]["StartedAt"]) == (0, other["State"]["StartedAt"])
    assert pod.metrics("bf16")["hiqcache_l2_tokens"] == held


@pytest.mark.parametrize("service", ["cpu-server-bf16", "cpu-sidecar-bf16", "prometheus"])
def test_a_stop_is_clean_and_in_time(pod: Pod, service: str) -> None:
    pod.compose.run((CPU,), "stop", service)
    state = pod.state(service)["State"]
    # 137 would be Docker's patience at its end.
    assert state["ExitCode"] == (0 if service == "prometheus" else SIGTERM)
    assert not state["OOMKilled"]


def test_down_leaves_nothing(pod: Pod) -> None:
    pod.compose.run((CPU,), "down", "--volumes")
    for kind in ("ps --all", "volume ls", "network ls"):
        left = pod.engine.run(*kind.split(), "--quiet", "--filter", f"name={PROJECT}")
        assert not left, kind
