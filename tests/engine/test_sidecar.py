"""A live SGLang, the sidecar, a real Prometheus and a real browser, while prompts are replayed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from hiqcache.capacity import bytes_per_token
from hiqcache.geometry import Geometry
from hiqcache.lab.serving.server import Server, free_port
from tests.engine.case import prompts
from tests.engine.chromium import Browser, chromium
from tests.engine.conftest import READY_SECONDS, start_server
from tests.unit.monitoring_files import RECORDING, asked_for
from tests.unit.sidecar_cases import scrape

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("error")]

CODEC = "int8"
DOCUMENTS = 6
NEW_TOKENS = 4
SECONDS = 30
# Rates of copy durations; pages of L3, recurrent state and `exact`, which this server has not.
NOT_HERE = "busy_second|duration_seconds:p99|_l3_|companion|l2_states|inexact"
COPIES_TIMED = "hiqcache_(?:backup|restore)_duration_seconds_count"
ARGUMENTS = (
    "--enable-hierarchical-cache",
    *("--hicache-ratio", "4.5"),
    *("--hicache-mem-layout", "layer_first"),
    *("--chunked-prefill-size", "512"),
)
PROMETHEUS = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}/*.yml"]
scrape_configs:
  - job_name: hiqcache
    static_configs: [{{targets: ["{target}"], labels: {{variant: int8}}}}]
"""


@dataclass(frozen=True)
class Live:
    """Everything that runs. The browser has the page open all the time."""

    server: Server
    sidecar: httpx.Client
    prometheus: str
    browser: Browser

    def figures(self) -> dict[str, float]:
        """The sidecar's series without labels, and hits as `hits_<tier>`."""
        found = scrape(self.sidecar)
        plain = {
            name.removeprefix("hiqcache_"): v for (name, labels), v in found.items() if not labels
        }
        for (name, labels), value in found.items():
            if name == "hiqcache_hit_tokens_total":
                plain[f"hits_{dict(labels)['tier']}"] = value
        return plain

    def l2_tokens(self) -> str:
        """Tokens in L2 as the page writes them."""
        figures = self.figures()
        return f"{figures['l2_tokens']:,.0f} of {figures['l2_tokens_max']:,.0f}"

    def query(self, expression: str) -> list[float]:
        """Prometheus's current values."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/query?{query}") as response:
            result = json.load(response)["data"]["result"]
        return [float(series["value"][1]) for series in result]

    def field(self, name: str) -> str:
        """What the page shows."""
        shown: str = self.browser.evaluate(
            f"document.querySelector('[data-field=\"{name}\"]')?.textContent ?? ''"
        )
        return shown


@contextmanager
def running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
        assert process.poll() is None, f"{command[0]} ended: {log.read_text()[-2000:]}"
    finally:
        process.terminate()
        process.wait(SECONDS)


def eventually(check: Callable[[], object], what: str) -> None:
    """Counters are put out a moment after the answer, and scrapes come once a second."""
    deadline = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def live(model: str, out: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    program = shutil.which("prometheus")
    assert program, "this test needs Prometheus: apt-get install prometheus"
    folder = tmp_path_factory.mktemp("live")
    port, web = free_port(), free_port()
    server = start_server(model, out / "sidecar-engine.log", ARGUMENTS, {"HIQCACHE_CODEC": CODEC})
    sidecar = [*(sys.executable, "-m", "hiqcache.cli", "sidecar"), "--engine", server.client.url]
    config = folder / "prometheus.yml"
    config.write_text(PROMETHEUS.format(target=f"127.0.0.1:{port}", rules=RECORDING.parent))
    prometheus = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{web}",
        "--log.level=warn",
    ]
    base, metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{web}"
    with ExitStack() as stack:
        stack.enter_context(server)
        log = out / "sidecar.log"
        stack.enter_context(running([*sidecar, "--port", str(port)], log))
        stack.enter_context(running(prometheus, out / "sidecar-prometheus.log"))
        browser = stack.enter_context(chromium(folder / "profile"))
        client = stack.enter_context(httpx.Client(base_url=base, trust_env=False, timeout=30))
        eventually(lambda: answers(f"{base}/healthz"), "the sidecar")
        eventually(lambda: answers(f"{metrics}/-/ready"), "Prometheus")
        assert client.get("/readyz").status_code == 503, "the engine has only just been started"
        browser.size(1200, 900)
        browser.open(base)
        browser.wait("document.querySelector('.problems li')?.textContent.includes('Engine down')")
        server.wait_ready(READY_SECONDS)
        yield Live(server, client, metrics, browser)
        assert "Traceback" not in log.read_text()
        assert browser.console == []


def test_figures_follow_the_traffic_everywhere(live: Live, out: Path) -> None:
    eventually(lambda: live.field("state") == "up", "the page sees the engine come up")
    assert live.sidecar.get("/readyz").status_code == 200
    before = live.figures()
    assert before["restore_tokens_total"] == 0
    assert "l2_bytes_per_token_restore" not in before
    assert live.field("restored") == "0"
    assert "highest 1.0/s" not in live.browser.evaluate("document.body.innerText")

    texts = prompts(DOCUMENTS)
    asked = [live.server.client.ask(text, NEW_TOKENS) for text in texts * 2]
    sent = sum(answer.prompt_tokens for answer in asked)
    eventually(
        lambda: live.figures()["prompt_tokens_total"] - before["prompt_tokens_total"] == sent,
        f"{sent} prompt tokens are counted",
    )
    after = live.figures()

    size = bytes_per_token(Geometry.load("smollm2-135m"), CODEC)
    assert size == 15_360
    for kind in ("configured", "backup", "restore"):
        assert after[f"l2_bytes_per_token_{kind}"] == size
    assert after["l2_bytes_max"] == after["l2_tokens_max"] * size

    device = sum(answer.device_tokens for answer in asked)
    host = sum(answer.host_tokens for answer in asked)
    assert after["hits_device"] - before["hits_device"] == device
    assert after["hits_host"] - before["hits_host"] == host > 0
    engine = live.server.client.metrics()
    cached = sum(v for name, v in engine.items() if name.startswith("sglang:cached_tokens_total"))
    assert after["hits_device"] + after["hits_host"] == cached
    assert after["restore_tokens_total"] == engine["sglang:load_back_tokens_total"] >= host
    assert after["restore_bytes_total"] == after["restore_tokens_total"] * size

    restored = after["restore_tokens_total"]
    # SGLang counts a restore while the request runs and its hits when it is done.
    eventually(
        lambda: live.query("hiqcache_restore_tokens_total") == [restored],
        f"Prometheus has {restored} restored tokens",
    )
    eventually(
        lambda: live.query('hiqcache_hit_tokens_total{tier="host"}') == [after["hits_host"]],
        f"Prometheus has {after['hits_host']} host hits",
    )
    assert live.query("hiqcache_restore_bytes_total / hiqcache_restore_tokens_total") == [size]

    eventually(lambda: live.field("restored") == f"{restored:,.0f}", "the page shows restores")
    eventually(
        lambda: live.field("hit_host") == f"{after['hits_host']:,.0f}", "the page shows host hits"
    )
    assert live.field("bytes_per_token") == "15,360"
    # SGLang brings this gauge up to date some time after the last request.
    eventually(lambda: live.field("l2_tokens") == live.l2_tokens(), "the page shows L2")
    unencoded = after["l2_bytes_max"] // (30 * 2 * 3 * 64 * 2)
    assert f"tokens as {CODEC}. BF16 would hold {unencoded:,.0f} in" in live.field("headline")
    assert live.browser.evaluate("document.querySelectorAll('.problems li').length") == 0
    assert live.browser.evaluate("document.querySelectorAll('svg path[d^=M]').length") == 4
    live.browser.screenshot(out / "status-page.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_a_phone(live: Live, out: Path, dark: bool) -> None:
    live.browser.size(390, 844, dark=dark)
    assert live.browser.evaluate("document.documentElement.scrollWidth") == 390
    live.browser.screenshot(out / f"status-page-phone-{'dark' if dark else 'light'}.png")
    live.browser.size(1200, 900)


def test_every_rule_and_panel_gives_a_series(live: Live) -> None:
    """All but the speeds of copies, which SGLang does not time on a CPU, and L3's pages."""
    exprs = {expr for expr in asked_for() if not re.search(NOT_HERE, expr)}
    assert len(exprs) > 50
    eventually(lambda: all(map(live.query, exprs)), "every query gives a series")
    histograms = [name for expr in asked_for() for name in re.findall(COPIES_TIMED, expr)]
    assert histograms and all(map(live.query, histograms)), "and the histograms are there, empty"


def test_a_killed_engine_is_said_so_everywhere(live: Live, out: Path) -> None:
    live.server.stop()
    down = "document.querySelector('.problems li')?.textContent"
    eventually(lambda: "Engine down since" in (live.browser.evaluate(down) or ""), "the page")
    assert live.field("state") == "down"
    assert live.browser.evaluate("document.title") == "HiQCache: look at engine"
    figures = live.figures()
    assert figures["up"] == 0
    assert not {"restore_tokens_total", "l2_tokens", "hits_host"} & set(figures)
    assert live.sidecar.get("/readyz").status_code == 503
    eventually(lambda: live.query("hiqcache_up") == [0.0], "Prometheus")
    assert live.query("hiqcache_restore_tokens_total") == [], "nothing stale"
    live.browser.screenshot(out / "status-page-down.png")
