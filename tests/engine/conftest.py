"""Real SGLang servers with the probe plugin inside: on the GPU if there is one, else the CPU.

ATTENTION_BACKEND names the attention backend on a GPU, TEST_MODEL a prepared checkpoint, TEST_OUT
the folder for logs. HIQCACHE_* variables are set by the tests alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hiqcache.cpu_server import CPU_ARGUMENTS, CPU_ENVIRONMENT
from hiqcache.lab.model import smollm2
from hiqcache.lab.serving.server import Server
from tests.engine.probe.hiqcache_probe import rank_path
from tests.engine.warm import WarmServer

PROBE = Path(__file__).parent / "probe"
L1_TOKENS = 2048
READY_SECONDS = 300
REPORT_SECONDS = 60
GPU = torch.cuda.is_available()
GPU_ARGUMENTS = (
    *("--attention-backend", os.environ.get("ATTENTION_BACKEND", "triton")),
    *("--cuda-graph-max-bs-decode", "16"),
    *("--mem-fraction-static", "0.9"),
)


CORE = (
    *("test_identity", "test_restore", "test_fail_closed", "test_sidecar", "test_demo"),
    *("test_architectures", "test_stack"),
)
"""What `make test` runs: one server of each kind. `make test-all` runs the other files too."""
FIRST = (
    *("test_tensor_parallel", "test_quality", "test_identity", "test_experiment"),
    *("test_soak", "test_verify", "test_traffic"),
)
"""Files with few tests that take minutes: begun last, one of them is what everybody waits for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` runs; order the files for `--no-loadscope-reorder`."""
    for item in items:
        if item.path.stem in CORE and item.get_closest_marker("slow") is None:
            item.add_marker("core")
    items.sort(key=lambda item: item.path.stem not in FIRST)


@dataclass(frozen=True)
class Probed:
    """A running server and what the probe in its scheduler has counted."""

    server: Server
    path: Path

    def report(self, rank: int = 0) -> dict[str, Any]:
        """A rank's counts, none older than this call."""
        path = rank_path(self.path, rank)
        deadline = time.monotonic() + REPORT_SECONDS
        first: int | None = None
        while time.monotonic() < deadline:
            if path.exists():
                report: dict[str, Any] = json.loads(path.read_text())
                # The write that is under way now may have begun before this call.
                first = report["writes"] if first is None else first
                if report["writes"] >= first + 2:
                    return report
            time.sleep(0.1)
        raise AssertionError(f"the probe wrote nothing to {path} for {REPORT_SECONDS} s")


@pytest.fixture(scope="session")
def model() -> str:
    return os.environ.get("TEST_MODEL") or str(smollm2.prepare())


@pytest.fixture(scope="session")
def out() -> Path:
    """Where logs and reports stay for a look after the run."""
    path = Path(os.environ.get("TEST_OUT", "out/tests"))
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def start_server(
    model: str,
    log: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    cold: bool = False,
) -> Server:
    """A server of the demo model with an L1 that a few documents overflow.

    `cold` starts it as users do; else, on a CPU, it is forked (tests/engine/warm.py).
    """
    device_arguments = GPU_ARGUMENTS if GPU else CPU_ARGUMENTS
    device_environment = {} if GPU else CPU_ENVIRONMENT
    kind = Server if cold or GPU else WarmServer
    return kind(
        model,
        [*device_arguments, "--max-total-tokens", str(L1_TOKENS), *arguments],
        {**device_environment, **environment},
        log,
    )


def importable(folder: Path) -> dict[str, str]:
    """The variable that lets a server import from a folder, before what it could anyway."""
    paths = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def probed_server(
    model: str,
    out: Path,
    name: str,
    codec: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Probed]:
    """A ready server with the codec and the probe; the log is `out/<name>.log`."""
    report = out / f"{name}.json"
    report.unlink(missing_ok=True)
    variables = {"HIQCACHE_CODEC": codec, "PROBE_REPORT": str(report), **importable(PROBE)}
    arguments = ["--enable-hierarchical-cache", *arguments]
    with start_server(
        model, out / f"{name}.log", arguments, {**variables, **(environment or {})}
    ) as server:
        server.wait_ready(READY_SECONDS)
        yield Probed(server, report)
