"""What the sidecar adds to a read of an engine's own `/metrics`, and how many reads it serves."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.serving.server import free_port
from hiqcache.provenance import cpu_model, provenance

WARM_UP = 10
START_SECONDS = 20
STOP_SECONDS = 10
CPU_SECONDS = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ScrapeBench:
    """A result with everything needed to repeat it.

    Parameters
    ----------
    engine_bytes
        The size of the engine's `/metrics`.
    engine, sidecar
        A read of the engine's `/metrics`, and of the sidecar's, which reads the engine's;
        measured in turns.
    added_p50_ms
        The difference of the two medians.
    scrapes_per_second, seconds
        One after the other over one connection, for so long.
    cpu_ms
        CPU time of the sidecar's process for one of them.
    """

    provenance: dict[str, str]
    source: str
    engine_bytes: int
    repeats: int
    engine: Percentiles
    sidecar: Percentiles
    added_p50_ms: float
    seconds: float
    scrapes_per_second: float
    cpu_ms: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_scrape_bench(
    engine: str | None, text: Path | None, repeats: int, seconds: float
) -> ScrapeBench:
    """Measure a sidecar of its own beside a running engine, or beside a recorded text.

    Parameters
    ----------
    engine
        The base address of a running engine, or None.
    text
        Without an engine: a file that holds what an engine's `/metrics` said.

    Raises
    ------
    HiQCacheError
        The engine cannot be read through the sidecar, or a process does not start.
    """
    with ExitStack() as stack:
        source = "a running engine"
        if engine is None:
            assert text is not None, "an engine or a text"
            engine, source = stack.enter_context(_served(text)), "a recorded text"
        sidecar = stack.enter_context(_sidecar(engine))
        client = stack.enter_context(httpx.Client(timeout=30, trust_env=False))

        def read(base: str) -> str:
            response = client.get(f"{base}/metrics")
            response.raise_for_status()
            return response.text

        try:
            if "hiqcache_up 1.0" not in read(sidecar):
                raise HiQCacheError(f"the sidecar gets no SGLang metrics from {engine}")
            size = len(read(engine).encode())
            for _ in range(WARM_UP):
                read(engine), read(sidecar)
            turns = [(_ms(read, engine), _ms(read, sidecar)) for _ in range(repeats)]
            count, took, cpu = _closed_loop(lambda: read(sidecar), seconds)
        except httpx.HTTPError as error:
            raise HiQCacheError(f"{engine} is not reachable: {error}") from error
    direct, through = (Percentiles.of(column) for column in zip(*turns, strict=True))
    return ScrapeBench(
        provenance=provenance("cpu", cpu_model()),
        source=source,
        engine_bytes=size,
        repeats=repeats,
        engine=direct,
        sidecar=through,
        added_p50_ms=through.p50_ms - direct.p50_ms,
        seconds=took,
        scrapes_per_second=count / took,
        cpu_ms=1e3 * cpu / count,
    )


def _ms(read: Callable[[str], str], base: str) -> float:
    begin = time.perf_counter()
    read(base)
    return 1e3 * (time.perf_counter() - begin)


def _closed_loop(scrape: Callable[[], str], seconds: float) -> tuple[int, float, float]:
    """Scrapes, seconds, and CPU seconds of the sidecar between the first and the last."""
    first = last = _cpu_seconds(scrape())
    count, begin = 0, time.perf_counter()
    while (took := time.perf_counter() - begin) < seconds:
        last = _cpu_seconds(scrape())
        count += 1
    return count, took, last - first


def _cpu_seconds(text: str) -> float:
    found = CPU_SECONDS.search(text)
    assert found, "the sidecar exports its own CPU time"
    return float(found[1])


@contextmanager
def _served(text: Path) -> Iterator[str]:
    """The text on `/metrics` of a plain web server in a process of its own."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "metrics").write_bytes(text.read_bytes())
        arguments = ["-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", folder]
        with _process(arguments, subprocess.DEVNULL):
            base = f"http://127.0.0.1:{port}"
            _wait(base)
            yield base


@contextmanager
def _sidecar(engine: str) -> Iterator[str]:
    port = free_port()
    arguments = ["-m", "hiqcache.cli", "sidecar", "--engine", engine, "--port", str(port)]
    with _process(arguments, None):
        base = f"http://127.0.0.1:{port}"
        _wait(base)
        yield base


@contextmanager
def _process(arguments: Sequence[str], errors: int | None) -> Iterator[None]:
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        yield
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _wait(base: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            httpx.get(f"{base}/", trust_env=False)
            return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise HiQCacheError(f"nothing listens on {base}") from None
            time.sleep(0.05)
