"""The running pod, as a user sees it: ports, chat, metrics, containers."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from hiqcache.lab.serving.server import free_port
from hiqcache.lab.workload.documents import load_documents

from .compose import PROJECT, Compose
from .docker import Engine

CPU = "cpu"
VARIANTS = ("bf16", "int8")
READY_SECONDS = 300
SIGTERM = 128 + 15
"""How a server or a sidecar ends that was asked to."""
SECRETS = {
    "GRAFANA_PASSWORD": "grafana-b1c7e1f0",
    "HF_TOKEN": "hf_9d2e77aa",
    "API_KEY": "key-5f0c3a91",
}
SERVICES = (
    *(f"cpu-server-{variant}" for variant in VARIANTS),
    *(f"cpu-sidecar-{variant}" for variant in VARIANTS),
    "prometheus",
)
L1_TOKENS = 2_048
DOCUMENTS = 3
"""Of about 1,000 tokens each: more than L1 holds."""

T = TypeVar("T")


def variables() -> dict[str, str]:
    """What `.env` would hold: secrets, and ports that are free here."""
    ports = ("BF16", "INT8", "BF16_SIDECAR", "INT8_SIDECAR")
    return {
        "GRAFANA_PASSWORD": SECRETS["GRAFANA_PASSWORD"],
        "HF_TOKEN": SECRETS["HF_TOKEN"],
        "HIQCACHE_CPU_L1_TOKENS": str(L1_TOKENS),
        "HIQCACHE_CPU_SERVER_ARGS": f"--api-key {SECRETS['API_KEY']}",
        **{f"HIQCACHE_{name}_PORT": str(free_port()) for name in ports},
        "PROMETHEUS_PORT": str(free_port()),
        "GRAFANA_PORT": str(free_port()),
    }


def wait_for(what: str, probe: Callable[[], T | None], seconds: float) -> T:
    """Ask until there is an answer.

    Raises
    ------
    AssertionError
        None came in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"{what}: not in {seconds:.0f} s"
        time.sleep(0.5)


def get(url: str, timeout: float = 20) -> str:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        text: str = answer.read().decode()
    return text


class Pod:
    """The project's containers under the profile `cpu`, without Grafana."""

    def __init__(self, engine: Engine, compose: Compose) -> None:
        self.engine = engine
        self.compose = compose

    def up(self) -> None:
        self.compose.run((CPU,), "up", "--detach", "--no-build", *SERVICES)
        for service in SERVICES:
            wait_for(f"{service} healthy", lambda name=service: self.healthy(name), READY_SECONDS)

    def healthy(self, service: str) -> bool | None:
        """True, or None while it is not; a restarted container is not taken for a healthy one."""
        state = self.state(service)
        assert state["RestartCount"] == 0, self.log(service)[-4000:]
        return True if state["State"]["Health"]["Status"] == "healthy" else None

    def name(self, service: str) -> str:
        return f"{PROJECT}-{service}-1"

    def state(self, service: str) -> dict[str, Any]:
        return self.engine.inspect(self.name(service))

    def log(self, service: str) -> str:
        return self.engine.run("logs", self.name(service))

    def port(self, variable: str) -> int:
        return int(self.compose.variables[variable])

    def client(self, variant: str) -> OpenAI:
        port = self.port(f"HIQCACHE_{variant.upper()}_PORT")
        return OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key=SECRETS["API_KEY"], timeout=120
        )

    def sidecar(self, variant: str, path: str) -> str:
        port = self.port(f"HIQCACHE_{variant.upper()}_SIDECAR_PORT")
        return get(f"http://127.0.0.1:{port}{path}")

    def metrics(self, variant: str) -> dict[str, float]:
        """The sidecar's samples without labels, by name."""
        families = text_string_to_metric_families(self.sidecar(variant, "/metrics"))
        return {s.name: s.value for family in families for s in family.samples if not s.labels}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """A PromQL query, answered by the pod's Prometheus."""
        query = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port('PROMETHEUS_PORT')}/api/v1/query?{query}"
        found: list[dict[str, Any]] = json.loads(get(url))["data"]["result"]
        return found

    def evict_and_replay(self, variant: str) -> None:
        """Ask about documents that overflow L1, then ask again."""
        client = self.client(variant)
        for document in load_documents()[:DOCUMENTS] * 2:
            client.completions.create(
                model="default",
                prompt=f"{document.text}\n\nQuestion: {document.questions[0]}\nAnswer:",
                max_tokens=4,
                temperature=0,
            )
