"""What Prometheus finds at a sidecar, made up but consistent.

Serves text over HTTP for a real Prometheus. Counters grow with each scrape, so that rates exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

REASONS = ("timeout", "connect", "status", "parse")
DROPS = ("host_pressure", "write_through_unbacked_eviction")
FAULTS = ("foreign", "damaged", "unreadable")
TIERS = ("device", "host", "storage")
# Bytes of K and V of one token in all 36 layers of Qwen3-8B: rows of 2048, records of 1152.
BYTES_PER_TOKEN = {"bf16": 147456, "int8": 82944}
POOL = {"bf16": ("none", "", "", ""), "int8": ("int8", "fused", "page_first", "1")}

# name: its type, and the value of each label set after `n` scrapes.
Samples = dict[str, tuple[str, dict[str, float]]]

# What only HiQCache's pool knows: absent from stock SGLang.
CODECS_OWN = (
    "hiqcache_l2_tokens_max_unencoded",
    "hiqcache_pool_tokens_max",
    "hiqcache_pool_bytes",
    "hiqcache_companion_bytes",
    "hiqcache_companion_slots",
    "hiqcache_inexact_rows_total",
    "hiqcache_l2_bytes_per_token_configured",
    "hiqcache_staging_bytes",
    "hiqcache_backup_records_total",
    "hiqcache_restore_records_total",
    "hiqcache_encode_seconds_total",
    "hiqcache_decode_seconds_total",
    "hiqcache_nonfinite_heads_total",
    "hiqcache_l3_bad_pages_total",
    "hiqcache_memory_bytes",
    "hiqcache_memory_limit_bytes",
)


def sidecar(variant: str, n: int) -> Samples:
    """Every metric that a sidecar exports for one engine without a name."""
    size = BYTES_PER_TOKEN[variant]
    codec, transfer, layout, page_size = POOL[variant]
    pool = f'codec="{codec}",transfer="{transfer}",layout="{layout}",page_size="{page_size}"'
    backed_up, restored = 300 * n, 200 * n
    samples: Samples = {
        "hiqcache_up": ("gauge", {"": 1}),
        "hiqcache_scrape_duration_seconds": ("gauge", {"": 0.004}),
        "hiqcache_scrape_errors_total": ("counter", {f'reason="{r}"': 0 for r in REASONS}),
        "hiqcache_pool_info": ("gauge", {pool: 1}),
        "hiqcache_l2_bytes_per_token_configured": ("gauge", {"": size}),
        "hiqcache_l2_bytes_per_token_backup": ("gauge", {"": size}),
        "hiqcache_l2_bytes_per_token_restore": ("gauge", {"": size}),
        "hiqcache_sidecar_unreadable_figures_total": ("counter", {'figure="l2_tokens"': 0}),
        "hiqcache_l2_tokens_max_unencoded": ("gauge", {"": 8_000_000_000 // 147456}),
        "hiqcache_pool_tokens_max": ("gauge", {'pool="kv"': 8_000_000_000 // size}),
        "hiqcache_pool_bytes": ("gauge", {'pool="kv"': 8_000_000_000}),
        "hiqcache_pool_restore_tokens_total": (
            "counter",
            {'pool="kv"': restored, 'pool="mamba"': n},
        ),
        "hiqcache_companion_bytes": ("gauge", {'pool="mamba"': 1e9}),
        "hiqcache_companion_slots": ("gauge", {'pool="mamba"': 100}),
        "hiqcache_l2_states": ("gauge", {"": 7}),
        "hiqcache_l2_states_max": ("gauge", {"": 100}),
        "hiqcache_inexact_rows_total": ("counter", {"": 0}),
        "hiqcache_l2_tokens": ("gauge", {"": 30_000}),
        "hiqcache_l2_tokens_max": ("gauge", {"": 8_000_000_000 // size}),
        "hiqcache_l2_bytes": ("gauge", {"": 30_000 * size}),
        "hiqcache_l2_bytes_max": ("gauge", {"": 8_000_000_000}),
        "hiqcache_prompt_tokens_total": ("counter", {"": 1000 * n}),
        "hiqcache_hit_tokens_total": (
            "counter",
            {f'tier="{tier}"': 200 * n * (tier != "storage") for tier in TIERS},
        ),
        "hiqcache_hit_rate": ("gauge", {"": 0.4}),
        "hiqcache_backup_tokens_total": ("counter", {"": backed_up}),
        "hiqcache_backup_bytes_total": ("counter", {"": backed_up * size}),
        "hiqcache_restore_tokens_total": ("counter", {"": restored}),
        "hiqcache_restore_bytes_total": ("counter", {"": restored * size}),
        "hiqcache_restore_operations_total": ("counter", {"": n}),
        "hiqcache_backup_records_total": ("counter", {"": backed_up * 72}),
        "hiqcache_restore_records_total": ("counter", {"": restored * 72}),
        "hiqcache_encode_seconds_total": ("counter", {"": 0.004 * n}),
        "hiqcache_decode_seconds_total": ("counter", {"": 0.003 * n}),
        "hiqcache_nonfinite_heads_total": ("counter", {"": 0}),
        "hiqcache_l3_bad_pages_total": ("counter", {f'reason="{f}"': 0 for f in FAULTS}),
        "hiqcache_memory_bytes": ("gauge", {"": 23e9}),
        "hiqcache_memory_limit_bytes": ("gauge", {"": 32e9}),
        "hiqcache_dropped_tokens_total": ("counter", {f'reason="{d}"': n for d in DROPS}),
        "hiqcache_evicted_tokens_total": ("counter", {"": 500 * n}),
        "hiqcache_generated_tokens_total": ("counter", {"": 40 * n}),
        "hiqcache_running_requests": ("gauge", {"": 2}),
        "hiqcache_queued_requests": ("gauge", {"": 0}),
        "hiqcache_staging_bytes": ("gauge", {"": 9_437_184}),
    }
    if variant == "bf16":
        # Stock SGLang: what the codec states does not exist.
        for name in CODECS_OWN:
            del samples[name]
    for name, seconds in (
        ("hiqcache_backup_duration_seconds", 0.004),
        ("hiqcache_restore_duration_seconds", 0.003),
        ("hiqcache_ttft_seconds", 0.3),
    ):
        buckets = {f'le="{edge}"': n * (seconds <= edge) for edge in (0.001, 0.005, 0.01, 0.4, 1.0)}
        samples[f"{name}_bucket"] = ("untyped", {**buckets, 'le="+Inf"': n})
        samples[f"{name}_sum"] = ("untyped", {"": seconds * n})
        samples[f"{name}_count"] = ("untyped", {"": n})
    return samples


def named(samples: Samples, engine: str) -> Samples:
    """The same from a sidecar that watches several engines and names each."""
    label = f'engine="{engine}"'
    return {
        name: (kind, {f"{label},{labels}" if labels else label: v for labels, v in values.items()})
        for name, (kind, values) in samples.items()
        if not name.startswith("hiqcache_scrape_")
    }


def text_of(samples: Samples) -> str:
    """Prometheus' text format."""
    lines = []
    for name, (kind, values) in samples.items():
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(
            f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
            for labels, value in values.items()
        )
    return "\n".join(lines) + "\n"


@contextmanager
def serving(samples: Callable[[int], Samples]) -> Iterator[str]:
    """Serve `samples(n)` at the n-th scrape; yields the address."""
    scrapes = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal scrapes
            scrapes += 1
            body = text_of(samples(scrapes)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
