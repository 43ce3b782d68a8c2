"""compose.yaml and .env.example without an engine: what each profile starts, and with what."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .compose import ROOT, Compose

PASSWORD = {"GRAFANA_PASSWORD": "set"}
MONITORING = {"prometheus", "grafana"}
BF16 = {"server-bf16", "sidecar-bf16"}
INT8 = {"server-int8", "sidecar-int8"}
PROFILES = {
    ("bf16",): BF16 | MONITORING,
    ("int8",): INT8 | MONITORING,
    ("bf16", "int8"): BF16 | INT8 | MONITORING,
    ("cpu",): {f"cpu-{name}" for name in BF16 | INT8} | MONITORING,
    ("bf16", "int8", "gpu-metrics"): BF16 | INT8 | MONITORING | {"gpu-metrics"},
}
GIB = 2**30


@pytest.fixture(scope="module")
def compose() -> Compose:
    return Compose(PASSWORD)


def example() -> str:
    return (ROOT / ".env.example").read_text("utf-8")


@pytest.mark.parametrize("profiles", PROFILES, ids=lambda names: "+".join(names))
def test_a_profile_starts_its_services(compose: Compose, profiles: tuple[str, ...]) -> None:
    assert set(compose.config(profiles)["services"]) == PROFILES[profiles]


def test_env_example_starts_both_variants(tmp_path: Path, compose: Compose) -> None:
    path = tmp_path / ".env"
    path.write_text(example().replace("GRAFANA_PASSWORD=", "GRAFANA_PASSWORD=set"), "utf-8")
    words = [str(path) if word == "/dev/null" else word for word in compose.command]
    plain, with_file = Compose({}), Compose({})
    with_file.command = words
    assert set(with_file.config()["services"]) == PROFILES["bf16", "int8"]
    # A profile on the command line takes the place of those in the file.
    assert set(with_file.config(("cpu",))["services"]) == PROFILES["cpu",]
    # What the file shows as the default is the default.
    text = re.sub(r"^#(?=[A-Z0-9_]+=)", "", path.read_text("utf-8"), flags=re.MULTILINE)
    path.write_text(text, "utf-8")
    everything = ("bf16", "int8", "cpu", "gpu-metrics")
    defaults = plain.config(everything, **PASSWORD)
    # An empty token and a missing one are the same to a server.
    shown = with_file.config(everything)
    for service in shown["services"].values():
        if "HF_TOKEN" in (service.get("environment") or {}):
            service["environment"]["HF_TOKEN"] = None
    assert shown == defaults


def test_env_example_explains_every_variable_of_compose_yaml() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text("utf-8")))
    used |= {"COMPOSE_PROFILES", "HF_TOKEN"}
    assert set(re.findall(r"^#?([A-Z0-9_]+)=", example(), re.MULTILINE)) == used


@pytest.mark.parametrize("profiles", PROFILES, ids=lambda names: "+".join(names))
def test_a_missing_password_is_one_sentence(profiles: tuple[str, ...]) -> None:
    done = Compose({}).try_run(profiles, "up", "--detach")
    assert done.returncode not in (0, 137)
    assert "copy .env.example to .env and set GRAFANA_PASSWORD in it" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1


@pytest.mark.parametrize("profiles", PROFILES, ids=lambda names: "+".join(names))
def test_ports_are_published_where_they_were_asked(
    compose: Compose, profiles: tuple[str, ...]
) -> None:
    def addresses(config: dict[str, Any]) -> list[tuple[str, str]]:
        ports = [p for service in config["services"].values() for p in service.get("ports", [])]
        return [(port["host_ip"], port["published"]) for port in ports]

    closed = addresses(compose.config(profiles))
    assert {address for address, _ in closed} == {"127.0.0.1"}
    assert len({port for _, port in closed}) == len(closed) == len(PROFILES[profiles])
    opened = addresses(compose.config(profiles, HIQCACHE_BIND="0.0.0.0"))
    assert {address for address, _ in opened} == {"0.0.0.0"}


def test_the_variants_differ_in_the_codec_alone(compose: Compose) -> None:
    services = compose.config(("bf16", "int8"))["services"]
    bf16, int8 = services["server-bf16"], services["server-int8"]
    assert bf16["command"] == int8["command"]
    assert bf16["environment"] == {"HIQCACHE_CODEC": "off", "HF_TOKEN": None}
    assert int8["environment"]["HIQCACHE_CODEC"] == "int8-compact"
    changed = {key for key in bf16.keys() | int8.keys() if bf16.get(key) != int8.get(key)}
    assert changed == {"environment", "ports", "depends_on", "profiles"}


def test_int8_waits_for_bf16_only_if_there_is_one(compose: Compose) -> None:
    both = compose.config(("bf16", "int8"))["services"]["server-int8"]
    assert both["depends_on"] == {
        "server-bf16": {"condition": "service_healthy", "required": False}
    }
    assert "server-bf16" not in compose.config(("int8",))["services"]


@pytest.mark.parametrize(("profile", "service"), [("bf16", "server-bf16"), ("int8", "server-int8")])
def test_gpu_servers_have_what_pinning_needs(compose: Compose, profile: str, service: str) -> None:
    config = compose.config((profile,), HIQCACHE_GPU="3")["services"][service]
    assert config["ulimits"]["memlock"] == -1
    assert int(config["shm_size"]) == 2 * GIB
    (device,) = config["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["device_ids"]) == ("nvidia", ["3"])
    arguments = config["command"]
    l2 = int(arguments[arguments.index("--hicache-size") + 1])
    assert (l2, arguments[arguments.index("--max-total-tokens") + 1]) == (8, "16384")
    assert int(config["mem_limit"]) > l2 * 10**9 + 10 * GIB


def test_further_arguments_are_arguments_of_their_own(compose: Compose) -> None:
    given = compose.config(("int8",), HIQCACHE_SERVER_ARGS="--api-key 'two words' --page-size 16")
    assert given["services"]["server-int8"]["command"][-4:] == [
        *("--api-key", "two words"),
        *("--page-size", "16"),
    ]


def test_every_image_has_a_version(compose: Compose) -> None:
    everything = ("bf16", "int8", "cpu", "gpu-metrics")
    for name, service in compose.config(everything)["services"].items():
        tag = service["image"].rpartition(":")[2]
        assert re.search(r"\d+\.\d+", tag), f"{name}: {service['image']}"


@pytest.mark.parametrize("name", ["server-bf16", "server-int8"])
def test_a_cpu_server_differs_in_the_device_and_in_sizes_alone(compose: Compose, name: str) -> None:
    gpu = compose.config(("bf16", "int8"))["services"][name]
    cpu = compose.config(("cpu",))["services"][f"cpu-{name}"]
    # INT8 waits for BF16 where both share a GPU's memory; the limits are for pinning.
    changed = {key for key in gpu.keys() | cpu.keys() if gpu.get(key) != cpu.get(key)}
    sizes = {"command", "mem_limit", "shm_size"}
    assert changed - {"depends_on", "environment"} == {"deploy", "ulimits", "profiles"} | sizes
    if name == "server-bf16":  # SGLang's own host pool needs CUDA
        gpu["environment"]["HIQCACHE_CODEC"] = "bf16"
    assert gpu["environment"] == cpu["environment"]

    def options(command: list[str]) -> list[str]:
        return [word for word in command if word.startswith("--")]

    assert options(gpu["command"]) == options(cpu["command"])


@pytest.mark.parametrize(
    "name", ["server-bf16", "server-int8", "sidecar-bf16", "sidecar-int8", *sorted(MONITORING)]
)
def test_everything_is_closed(compose: Compose, name: str) -> None:
    service = compose.config(("bf16", "int8"))["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name in MONITORING:
        assert service["user"].partition(":")[0] not in ("", "0", "root")
    for volume in service.get("volumes", []):
        assert volume["type"] == "volume" or volume["read_only"] is True


def test_grafana_finds_its_files_where_they_are_mounted(compose: Compose) -> None:
    service = compose.config(("int8",))["services"]["grafana"]
    mounts = {
        volume["target"]: Path(volume["source"])
        for volume in service["volumes"]
        if volume["type"] == "bind"
    }
    grafana = ROOT / "monitoring" / "grafana"
    assert mounts == {
        "/etc/grafana/grafana.ini": grafana / "grafana.ini",
        "/etc/grafana/provisioning": grafana / "provisioning",
        "/etc/grafana/dashboards": grafana / "dashboards",
    }
    ini = configparser.ConfigParser()
    ini.read(mounts["/etc/grafana/grafana.ini"], "utf-8")
    home = Path(ini["dashboards"]["default_home_dashboard_path"])
    assert (mounts[str(home.parent)] / home.name).is_file()
    provider = yaml.safe_load(
        (mounts["/etc/grafana/provisioning"] / "dashboards" / "hiqcache.yml").read_text("utf-8")
    )["providers"][0]
    assert provider["options"]["path"] in mounts
    source = yaml.safe_load(
        (mounts["/etc/grafana/provisioning"] / "datasources" / "prometheus.yml").read_text("utf-8")
    )["datasources"][0]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert compose.config(("int8",))["services"][host]["ports"][0]["target"] == int(port)


def test_prometheus_scrapes_names_that_every_profile_has(compose: Compose) -> None:
    config = yaml.safe_load((ROOT / "monitoring/prometheus/prometheus.yml").read_text("utf-8"))
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "hiqcache"]
    wanted = {target.partition(":")[0] for g in job["static_configs"] for target in g["targets"]}
    for profiles in (("bf16", "int8"), ("cpu",)):
        services = compose.config(profiles)["services"]
        names = set(services)
        for service in services.values():
            names |= set((service["networks"]["default"] or {}).get("aliases", []))
        assert wanted <= names
