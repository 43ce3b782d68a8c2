"""Real SGLang servers on the reference CPU platform, with the probe plugin inside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hiqcache.model import smollm2
from hiqcache.serving.server import CPU_ARGUMENTS, CPU_ENVIRONMENT, Server

PROBE = Path(__file__).parent / "probe"
L1_TOKENS = 4096
READY_SECONDS = 300


@dataclass(frozen=True)
class Probed:
    """A running server and what the probe in its scheduler has counted."""

    server: Server
    report_path: Path

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.report_path.read_text())
        return report


@pytest.fixture(scope="session")
def model() -> str:
    return str(smollm2.prepare())


@pytest.fixture(scope="session")
def out() -> Path:
    """Where logs and reports stay for a look after the run."""
    path = Path("out/tests")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def cpu_server(
    model: str, log: Path, arguments: Sequence[str], environment: dict[str, str]
) -> Server:
    return Server(
        model,
        [*CPU_ARGUMENTS, "--max-total-tokens", str(L1_TOKENS), *arguments],
        {**CPU_ENVIRONMENT, **environment},
        log,
    )


@contextmanager
def probed_server(
    model: str, out: Path, name: str, codec: str, arguments: Sequence[str]
) -> Iterator[Probed]:
    """A ready server with the codec and the probe; the log is `out/<name>.log`."""
    report = out / f"{name}.json"
    report.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, (str(PROBE), os.environ.get("PYTHONPATH"))))
    environment = {"HIQCACHE_CODEC": codec, "PROBE_REPORT": str(report), "PYTHONPATH": path}
    arguments = ["--enable-hierarchical-cache", *arguments]
    with cpu_server(model, out / f"{name}.log", arguments, environment) as server:
        server.wait_ready(READY_SECONDS)
        yield Probed(server, report)
