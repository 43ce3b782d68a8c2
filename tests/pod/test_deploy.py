"""deploy/: what can be said about it without a cluster, a rented pod or a running systemd."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hiqcache.cli import build_parser

from .compose import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
SYSTEMD = ROOT / "deploy" / "systemd"
GIB = 2**30


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((KUBERNETES / name).read_text("utf-8"))
    return document


def containers() -> dict[str, dict[str, Any]]:
    pod = load("deployment.yaml")["spec"]["template"]["spec"]
    return {container["name"]: container for container in pod["containers"]}


def test_kustomization_lists_every_manifest_and_renames_every_image() -> None:
    kustomization = load("kustomization.yaml")
    manifests = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == manifests
    assert {image["name"] for image in kustomization["images"]} == {
        container["image"] for container in containers().values()
    }


def test_selectors_and_ports_meet() -> None:
    template = load("deployment.yaml")["spec"]["template"]
    service, monitor = load("service.yaml"), load("servicemonitor.yaml")
    labels = template["metadata"]["labels"]
    assert load("deployment.yaml")["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    named = {
        port["name"]: port["containerPort"] for c in containers().values() for port in c["ports"]
    }
    for port in service["spec"]["ports"]:
        assert named[port["targetPort"]] == port["port"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_scrape_is_the_one_of_compose() -> None:
    (endpoint,) = load("servicemonitor.yaml")["spec"]["endpoints"]
    text = (ROOT / "monitoring" / "prometheus" / "prometheus.yml").read_text("utf-8")
    settings = yaml.safe_load(text)["global"]
    assert endpoint["interval"] == settings["scrape_interval"]
    assert endpoint["scrapeTimeout"] == settings["scrape_timeout"]
    # The label names the service, whatever codec it runs.
    assert endpoint["relabelings"] == [{"targetLabel": "variant", "replacement": "int8"}]
    codec = {e["name"]: e.get("value") for e in containers()["server"]["env"]}["HIQCACHE_CODEC"]
    assert codec == "int8-compact"


def test_the_limit_covers_l2_the_reserve_and_shared_memory() -> None:
    server = containers()["server"]
    limit = int(server["resources"]["limits"]["memory"].removesuffix("Gi")) * GIB
    (size,) = [a.partition("=")[2] for a in server["args"] if a.startswith("--hicache-size=")]
    (shm,) = [
        volume["emptyDir"]["sizeLimit"]
        for volume in load("deployment.yaml")["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "shm"
    ]
    shared = int(shm.removesuffix("Gi")) * GIB
    process = 8 * 10**9
    assert limit >= int(size) * 10**9 + 10 * GIB + shared + process
    assert server["resources"]["requests"]["memory"] == server["resources"]["limits"]["memory"]


def test_a_slow_start_is_given_half_an_hour() -> None:
    probe = containers()["server"]["startupProbe"]
    assert probe["httpGet"]["path"] == "/health"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800


def test_secrets_are_named_and_never_written() -> None:
    environment = {entry["name"]: entry for entry in containers()["server"]["env"]}
    for name in ("API_KEY", "HF_TOKEN"):
        assert "value" not in environment[name]
        assert environment[name]["valueFrom"]["secretKeyRef"]["name"] == "hiqcache"
    # Without the secret the pod must not start with `$(API_KEY)` as its key.
    assert "optional" not in environment["API_KEY"]["valueFrom"]["secretKeyRef"]
    assert not [path for path in KUBERNETES.glob("*.yaml") if load(path.name)["kind"] == "Secret"]


@pytest.mark.parametrize("name", ["server", "sidecar"])
def test_a_container_is_closed(name: str) -> None:
    context = containers()[name]["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] > 0
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_server_writes_where_its_image_does() -> None:
    """The image's folders for weights and kernels, and /tmp, are volumes of its user."""
    spec = load("deployment.yaml")["spec"]["template"]["spec"]
    mounts = {mount["mountPath"] for mount in containers()["server"]["volumeMounts"]}
    assert mounts == {"/weights", "/kernels", "/tmp", "/dev/shm"}
    assert (
        spec["securityContext"]["fsGroup"] == containers()["server"]["securityContext"]["runAsUser"]
    )
    assert {volume["name"] for volume in spec["volumes"]} == {"cache", "tmp", "shm"}
    assert load("claim.yaml")["metadata"]["name"] == "cache"


def settings() -> dict[str, str]:
    """server.env, as systemd reads it."""
    lines = (SYSTEMD / "server.env").read_text("utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("unit", ["hiqcache.service", "hiqcache-sidecar.service"])
def test_units_start_commands_that_exist(unit: str) -> None:
    text = (SYSTEMD / unit).read_text("utf-8")
    commands = re.findall(r"^ExecStart(?:Pre)?=(.+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        filled = command.replace("$SGLANG_ARGUMENTS", settings()["SGLANG_ARGUMENTS"])
        program, *words = shlex.split(filled)
        assert program == "/opt/hiqcache/bin/hiqcache"
        build_parser().parse_args(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("unit", ["hiqcache.service", "hiqcache-sidecar.service"])
def test_systemd_accepts_the_units(tmp_path: Path, unit: str) -> None:
    # The program is not installed where the unit expects it; any executable will do here.
    text = (SYSTEMD / unit).read_text("utf-8")
    (tmp_path / unit).write_text(text.replace("/opt/hiqcache/bin/hiqcache", "/bin/true"), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_page_says_what_was_tested() -> None:
    pages = [ROOT / "deploy" / name for name in ("runpod.md", "vast.md")]
    pages += [KUBERNETES / "README.md", SYSTEMD / "README.md"]
    for page in pages:
        assert "\n## What was tested\n" in page.read_text("utf-8"), page
