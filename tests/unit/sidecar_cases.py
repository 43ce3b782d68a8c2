"""Engines that misbehave on real sockets, and a sidecar that serves on one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from hiqcache.sidecar.address import Address
from hiqcache.sidecar.app import create_app
from hiqcache.sidecar.figures import Figures, read_figures
from hiqcache.sidecar.serve import listen

RECORDED = Path(__file__).parent / "recorded"
TEXTS = {path.stem: path.read_text() for path in sorted(RECORDED.glob("*.txt"))}
TIMEOUT = 0.5

EVERYTHING = (
    TEXTS["l3"]
    + """\
hiqcache_engine_unencoded_bytes_per_token{dp_rank="0",pool="kv",pp_rank="0",tp_rank="0"} 23040.0
hiqcache_engine_companion_bytes{dp_rank="0",pool="mamba",pp_rank="0",tp_rank="0"} 4000000.0
hiqcache_engine_companion_slots{dp_rank="0",pool="mamba",pp_rank="0",tp_rank="0"} 40.0
hiqcache_engine_inexact_rows_total{dp_rank="0",pool="kv",pp_rank="0",tp_rank="0"} 3.0
sglang:hicache_host_mamba_used_states{engine_type="unified",tp_rank="0"} 7.0
sglang:hicache_host_mamba_total_states{engine_type="unified",tp_rank="0"} 40.0
"""
)
"""A recorded text with what no recording has: recurrent state, and rows that were not exact."""

Labels = tuple[tuple[str, str], ...]


def recorded_figures(name: str) -> Figures:
    return read_figures(TEXTS[name])


def figures_of(lines: str) -> Figures:
    """Of an engine that says these lines, and otherwise nothing known."""
    return read_figures(f"sglang:startup_time_seconds 1\n{lines}\n")


def changed(figures: Figures, **values: Any) -> Figures:
    """The same read with other values; what is computed from them is computed again."""
    read = {f.name: figures.values[f.name] for f in figures.declared() if f.names}
    assert set(values) <= set(read)
    return Figures(read | values, figures.unreadable)


class Handler(BaseHTTPRequestHandler):
    """Leaves the answer to the engine's `behave`."""

    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        try:
            self.server.behave(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


Behaviour = Callable[[Handler], None]


class FakeEngine(ThreadingHTTPServer):
    """An HTTP server on a free port whose behaviour can be changed while it runs."""

    daemon_threads = True
    # Slow answers are still being written when a test ends.
    block_on_close = False

    def __init__(self, behave: Behaviour, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.behave = behave
        self.asked: list[str] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def fake_engine(behave: Behaviour, port: int = 0) -> Iterator[FakeEngine]:
    with FakeEngine(behave, port) as engine:
        # The default of half a second would be most of a test's time.
        thread = threading.Thread(target=engine.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield engine
        finally:
            engine.released.set()
            engine.shutdown()
            thread.join()


def answer(text: str | bytes, status: int = 200, **headers: str) -> Behaviour:
    body = text.encode() if isinstance(text, str) else text

    def behave(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", "text/plain; version=0.0.4")
        handler.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return behave


def late(behave: Behaviour, seconds: float) -> Behaviour:
    def behave_late(handler: Handler) -> None:
        time.sleep(seconds)
        behave(handler)

    return behave_late


def held(behave: Behaviour) -> Behaviour:
    """An answer that comes when the engine is released, at the latest when it ends."""

    def behave_when_released(handler: Handler) -> None:
        handler.server.released.wait()
        behave(handler)

    return behave_when_released


def drip(handler: Handler) -> None:
    """A byte now and then: no single read ever times out."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b"#")
        handler.wfile.flush()
        time.sleep(TIMEOUT / 10)
    handler.close_connection = True


def cut_off(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    handler.wfile.write(TEXTS["traffic"].encode()[:5000])
    handler.close_connection = True


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def not_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\xff this is not HTTP\r\n\r\n")
    handler.close_connection = True


def endless(handler: Handler) -> None:
    """Ends only because the reader hangs up."""
    handler.send_response(200)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    chunk = b"# garbage\n" * 10_000
    while True:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))


@contextmanager
def sidecar(
    addresses: Sequence[Address], timeout: float = TIMEOUT, own: bool = False
) -> Iterator[httpx.Client]:
    """A sidecar on a free port, in a thread, and a client of it; `own`: with process metrics."""
    app = create_app(addresses, timeout, None if own else CollectorRegistry())
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=base, timeout=30, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


def scrape(client: httpx.Client) -> dict[tuple[str, Labels], float]:
    """All series of the sidecar's `/metrics`, which always answers 200."""
    response = client.get("/metrics")
    assert response.status_code == 200
    return series(response.text)


def series(text: str) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def errors(found: dict[tuple[str, Labels], float]) -> dict[str, float]:
    """Failed reads by reason."""
    name = "hiqcache_scrape_errors_total"
    return {dict(labels)["reason"]: value for (n, labels), value in found.items() if n == name}
