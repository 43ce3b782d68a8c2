"""Prometheus' rules and Grafana's boards: valid, tested, and about metrics that exist."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from hiqcache.lab.serving.server import free_port

from . import monitoring_exporter as exporter
from .monitoring_files import (
    ALERTS,
    BOARDS,
    GRAFANA,
    PROMETHEUS,
    RECORDING,
    ROOT,
    asked_for,
    board_queries,
    load,
    metric_names,
    panels,
    rules,
)

CONFIG = PROMETHEUS / "prometheus.yml"
METRICS_PAGE = ROOT / "docs" / "metrics.md"

# What Prometheus makes itself.
OWN = {"up", "ALERTS"}


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: install Debian's package `prometheus`, which contains it")
    return found


def run_promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [tool("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def documented() -> set[str]:
    """What docs/metrics.md lists; the exporter's own list while there is no such page."""
    if not METRICS_PAGE.exists():
        return set(exporter.sidecar("int8", 1))
    first_cells = re.findall(r"^\|([^|]+)\|", METRICS_PAGE.read_text("utf-8"), re.MULTILINE)
    names = {name for cell in first_cells for name in re.findall(r"`(hiqcache_\w+)", cell)}
    return names | {
        f"{name}_{part}"
        for name in names
        if name.endswith("_seconds")
        for part in ("bucket", "sum", "count")
    }


def test_metric_names_are_found_in_an_expression() -> None:
    expr = """
      sum by (tier) (rate(a_total{x=~"b(c)"}[5m])) / ignoring (tier) group_left () (d:e > 0)
        and histogram_quantile(0.99, f_bucket) >= 1e3 or on () label_replace(g, "h", "$1", "i", "")
    """
    assert metric_names(expr) == {"a_total", "d:e", "f_bucket", "g"}


def test_configuration_is_valid() -> None:
    output = run_promtool("check", "config", CONFIG)
    assert "WARNING" not in output, output


def test_rules_are_valid() -> None:
    run_promtool("check", "rules", "--lint=all", "--lint-fatal", RECORDING, ALERTS)


def test_rules_do_what_their_tests_say() -> None:
    run_promtool("test", "rules", *sorted((PROMETHEUS / "tests").glob("*.yml")))


def test_a_missing_promtool_is_a_failure_that_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="install Debian's package `prometheus`"):
        run_promtool("--version")


def test_both_sidecars_are_scraped_under_their_variant() -> None:
    config = yaml.safe_load(CONFIG.read_text("utf-8"))
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "hiqcache")
    assert [(group["targets"], group["labels"]) for group in job["static_configs"]] == [
        (["sidecar-bf16:9464"], {"variant": "bf16"}),
        (["sidecar-int8:9464"], {"variant": "int8"}),
    ]
    assert (config["global"]["scrape_interval"], config["global"]["scrape_timeout"]) == ("5s", "4s")


def test_recording_rules_have_colons_and_alerts_have_what_a_reader_needs() -> None:
    assert all(rule["record"].startswith("hiqcache:") for rule in rules(RECORDING))
    for rule in rules(ALERTS):
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert "$labels" in rule["annotations"]["summary"], name
        assert "$value" in rule["annotations"]["description"], name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"


def test_runbook_has_one_section_an_alert() -> None:
    sections = re.findall(r"^## (.+)$", (ROOT / "docs" / "runbook.md").read_text("utf-8"), re.M)
    assert sections == [rule["alert"] for rule in rules(ALERTS)]


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules(ALERTS)])
def test_alert_has_a_firing_and_a_quiet_test(alert: str) -> None:
    cases = yaml.safe_load((PROMETHEUS / "tests" / "alerts_test.yml").read_text("utf-8"))["tests"]
    expected = [
        [bool(check["exp_alerts"]) for check in case["alert_rule_test"]]
        for case in cases
        if any(check["alertname"] == alert for check in case["alert_rule_test"])
    ]
    assert any(any(case) for case in expected), "no case in which it fires"
    assert any(not any(case) for case in expected), "no case in which it stays quiet"


def test_every_metric_exists() -> None:
    known = documented() | {rule["record"] for rule in rules(RECORDING)} | OWN
    read = [(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules(RECORDING)]
    read += [(rule["alert"], rule["expr"]) for rule in rules(ALERTS)]
    read += board_queries()
    unknown = {where: names for where, expr in read if (names := metric_names(expr) - known)}
    assert not unknown


def test_the_exporter_of_these_tests_serves_only_what_a_sidecar_does() -> None:
    assert set(exporter.sidecar("int8", 1)) <= documented()


def test_generated_files_are_the_committed_ones(tmp_path: Path) -> None:
    generate = GRAFANA / "generate.py"
    subprocess.run([sys.executable, generate, "--root", tmp_path], check=True)
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    names = [path.relative_to(tmp_path) for path in written]
    assert names == sorted(
        [*(path.relative_to(ROOT) for path in BOARDS), Path("docs/dashboard.md")]
    )
    for path, name in zip(written, names, strict=True):
        assert path.read_bytes() == (ROOT / name).read_bytes(), (
            f"{name} is not what monitoring/grafana/generate.py writes: run it"
        )


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_board_explains_itself_and_names_no_data_source(path: Path) -> None:
    board = load(path)
    assert board["uid"] == path.stem
    assert board["schemaVersion"] >= 41, "older than Grafana 12"
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in panels(board):
        assert panel["title"] and panel["description"], panel["id"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"]["uid"] == "${datasource}", panel["title"]
    found = re.findall(r'"uid": "([^"]*)"', path.read_text("utf-8"))
    assert set(found) == {"${datasource}", path.stem}


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_fit_the_grid(path: Path) -> None:
    board = load(path)
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    boxes = [(panel["title"], panel["gridPos"]) for panel in board["panels"]]
    assert all(box["x"] + box["w"] <= 24 for _, box in boxes)
    for (name, a), (other, b) in combinations(boxes, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, f"{name} covers {other}"


# The SDK prefers the second schema; files that Grafana 12 provisions are of the first.
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_board_survives_grafanas_own_model(path: Path) -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    # A key that Grafana's schema does not know, or a value in the wrong place, would be lost.
    register_default_plugins()
    board = load(path)
    model = Dashboard.from_json(json.loads(path.read_text("utf-8")))
    again = json.loads(json.dumps(model, cls=JSONEncoder))
    for link, kept in zip(board["links"], again["links"], strict=True):
        # The model fills in a placement when it is absent.
        kept.pop("placement")
        assert kept == link
    assert again == {**board, "links": again["links"]}


def test_board_queries_parse(tmp_path: Path) -> None:
    queries = [
        {"record": f"hiqcache:query{number}", "expr": expr}
        for number, (_, expr) in enumerate(board_queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": queries}]}), "utf-8")
    run_promtool("check", "rules", path)


def test_operator_board_is_home_and_boards_lie_where_grafana_looks() -> None:
    provisioning = GRAFANA / "provisioning"
    provider = yaml.safe_load((provisioning / "dashboards" / "hiqcache.yml").read_text("utf-8"))
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text("utf-8"))
    folder = Path(provider["providers"][0]["options"]["path"])
    ini = configparser.ConfigParser()
    ini.read(GRAFANA / "grafana.ini", "utf-8")
    home = Path(ini["dashboards"]["default_home_dashboard_path"])
    assert home.parent == folder
    assert (GRAFANA / "dashboards" / home.name).is_file()
    assert str(home) in (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    assert "password" not in {key for section in ini.values() for key in section}
    scrape = yaml.safe_load(CONFIG.read_text("utf-8"))["global"]["scrape_interval"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == scrape
    assert "uid" not in source["datasources"][0]


class Prometheus:
    """A running server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expr: str) -> list[dict[str, Any]]:
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def missing(self, exprs: set[str]) -> list[str]:
        return sorted(expr for expr in exprs if not self.query(expr))


def local_copy(folder: Path, targets: dict[str, str], port: int) -> Path:
    """monitoring/prometheus/ with local targets and a second for every interval."""
    shutil.copytree(PROMETHEUS, folder)
    path = folder / "prometheus.yml"
    config = yaml.safe_load(path.read_text("utf-8"))
    second = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["global"] = {**second, "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        if "scrape_interval" in job:
            job |= second
        for group in job.get("static_configs", []):
            group["targets"] = [targets[name] for name in group["targets"]]
        if job["job_name"] == "hiqcache":
            job["static_configs"].append({"targets": [targets["named"]]})
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    with ExitStack() as stack:
        targets = {
            "sidecar-bf16:9464": stack.enter_context(
                exporter.serving(partial(exporter.sidecar, "bf16"))
            ),
            "sidecar-int8:9464": stack.enter_context(
                exporter.serving(partial(exporter.sidecar, "int8"))
            ),
            "named": stack.enter_context(
                exporter.serving(lambda n: exporter.named(exporter.sidecar("int8", n), "third"))
            ),
            "localhost:9090": f"127.0.0.1:{port}",
        }
        config = local_copy(folder / "copy", targets, port)
        log = stack.enter_context((folder / "log").open("w+"))
        server = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            running = Prometheus(f"127.0.0.1:{port}")
            deadline = time.monotonic() + 30
            while True:
                try:
                    running.query("up")
                    break
                except OSError:
                    log.seek(0)
                    assert server.poll() is None, log.read()
                    assert time.monotonic() < deadline, "Prometheus does not answer"
                    time.sleep(0.2)
            yield running
        finally:
            server.terminate()
            server.wait(timeout=20)


def test_every_rule_and_panel_has_a_series_in_a_real_prometheus(prometheus: Prometheus) -> None:
    exprs = asked_for()
    deadline = time.monotonic() + 30
    while (missing := prometheus.missing(exprs)) and time.monotonic() < deadline:
        time.sleep(1)
    assert not missing


def series_of(prometheus: Prometheus, expr: str, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 30
    while len(found := prometheus.query(expr)) < count and time.monotonic() < deadline:
        time.sleep(1)
    return found


def test_variants_are_beside_each_other(prometheus: Prometheus) -> None:
    # The third is what a sidecar for several engines calls an engine.
    for expr in ("hiqcache_up", "hiqcache_l2_tokens", "hiqcache:hit_ratio_all_tiers:rate5m"):
        found = series_of(prometheus, expr, 3)
        assert {series["metric"]["variant"] for series in found} == {"bf16", "int8", "third"}, expr


def test_healthy_engines_fire_no_alert_and_their_bytes_per_token_are_exact(
    prometheus: Prometheus,
) -> None:
    found = series_of(prometheus, "hiqcache:bytes_per_token:difference", 4)
    assert {
        (series["metric"]["variant"], series["metric"]["direction"], series["value"][1])
        for series in found
    } == {
        (variant, direction, "0")
        for variant in ("int8", "third")
        for direction in ("backup", "restore")
    }
    assert not prometheus.query("ALERTS")
