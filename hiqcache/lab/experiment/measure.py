"""One measurement, for `execute`: empty tiers, SGLang's client, counters before and after."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.client import client_arguments, run_client
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.row import Figures
from hiqcache.lab.serving.client import Client

PROBE_TOKENS = 16
"""SGLang publishes its gauges with a batch, and half a minute later when idle: a prompt of this
length makes them current. It is the most that a tier may hold after a flush."""

COUNTERS = (
    *(f"sglang:{name}_tokens_total" for name in ("hicache_backup", "load_back", "evicted")),
    *(f"sglang:{name}_bytes_total" for name in ("hicache_backup", "load_back")),
    "sglang:load_back_duration_seconds_sum",
    "sglang:hicache_backup_duration_seconds_sum",
    "sglang:hicache_dropped_tokens_total",
    "sglang:time_to_first_token_seconds_sum",
    "sglang:time_to_first_token_seconds_count",
)


class Unusable(HiQCacheError):
    """The run ended and its figures must not be used."""


def empty(client: Client, seed: int) -> None:
    """Empty both tiers and see that they are empty.

    Raises
    ------
    Unusable
        L2 holds more than the probe after a flush.
    """
    client.flush()
    held = held_tokens(client, seed)
    if held > PROBE_TOKENS:
        raise Unusable(
            f"L2 holds {held} tokens after a flush, expected at most the {PROBE_TOKENS} of the "
            f"probe: the next run would begin warm"
        )
    client.flush()


def held_tokens(client: Client, seed: int) -> int:
    """Tokens in L2 now, the gauge being made current by a short prompt of its own."""
    draw = random.Random(seed)
    client.ask([draw.randrange(100, 1000) for _ in range(PROBE_TOKENS)], 1)
    return int(client.metrics().get("sglang:hicache_host_used_tokens", 0))


@dataclass(frozen=True)
class Outcome:
    """One run of the workload: figures, the client's own result, and why neither may be used."""

    figures: Figures
    raw: dict[str, Any]
    reason: str | None


def measure(client: Client, run: Run, model: str, geometry: Geometry, log: Path) -> Outcome:
    """Run the workload once.

    Raises
    ------
    HiQCacheError
        The server or the client failed: there are no figures.
    """
    empty(client, run.seed)
    before = client.metrics()
    arguments = client_arguments(client.url, model, run.workload, run.seed)
    raw = run_client(arguments, log)
    after = client.metrics()
    counted = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in COUNTERS}
    chunk = int(client.server_info()["chunked_prefill_size"])
    figures = _figures(raw, counted, chunk)
    if run.deployment.configuration.codec is not None:
        figures = replace(
            figures,
            l2_tokens=int(after["sglang:hicache_host_total_tokens"]),
            l2_used_tokens=held_tokens(client, run.seed + 1),
        )
    return Outcome(figures, raw, _why_unusable(run, figures, raw, geometry))


def _figures(raw: dict[str, Any], counted: dict[str, float], chunk: int) -> Figures:
    def per_token(name: str) -> float | None:
        tokens = counted[f"sglang:{name}_tokens_total"]
        return counted[f"sglang:{name}_bytes_total"] / tokens if tokens else None

    def rate(name: str) -> float | None:
        seconds = counted[f"sglang:{name}_duration_seconds_sum"]
        tokens = counted[f"sglang:{name}_tokens_total"]
        return tokens / seconds / 1e3 if seconds else None

    report = raw["cache_report"]
    device, host = report["device_cached_tokens"] or 0, report["host_cached_tokens"] or 0
    asked = counted["sglang:time_to_first_token_seconds_count"]
    return Figures(
        duration_s=raw["duration"],
        requests=raw["completed"],
        prompt_tokens=report["total_prompt_tokens"],
        l1_hit_tokens=device,
        l2_hit_tokens=host,
        hit_rate=report["total_cached_tokens"] / max(1, report["total_prompt_tokens"]),
        backup_tokens=int(counted["sglang:hicache_backup_tokens_total"]),
        backup_bytes=int(counted["sglang:hicache_backup_bytes_total"]),
        restore_tokens=int(counted["sglang:load_back_tokens_total"]),
        restore_bytes=int(counted["sglang:load_back_bytes_total"]),
        backup_bytes_per_token=per_token("hicache_backup"),
        restore_bytes_per_token=per_token("load_back"),
        backup_tokens_per_ms=rate("hicache_backup"),
        restore_tokens_per_ms=rate("load_back"),
        l1_evicted_tokens=int(counted["sglang:evicted_tokens_total"]),
        dropped_tokens=int(counted["sglang:hicache_dropped_tokens_total"]),
        ttft_mean_ms=raw["mean_ttft_ms"],
        ttft_median_ms=raw["median_ttft_ms"],
        ttft_p99_ms=raw["p99_ttft_ms"],
        ttft_server_mean_ms=(
            1e3 * counted["sglang:time_to_first_token_seconds_sum"] / asked if asked else None
        ),
        tpot_mean_ms=raw["mean_tpot_ms"],
        latency_mean_ms=1e3 * mean(raw["latencies"]),
        output_tokens_per_s=raw["output_throughput"],
        chunk=chunk,
    )


def _why_unusable(run: Run, found: Figures, raw: dict[str, Any], geometry: Geometry) -> str | None:
    wanted = run.workload.requests
    if found.requests != wanted:
        errors = [error for error in raw["errors"] if error]
        return f"{found.requests} of {wanted} requests succeeded: {errors[:1]}"
    if not all(raw["ttfts"]):
        return "an answer without text: its time to the first token is not known"
    capacity = run.deployment.capacity(geometry)
    if capacity is None:
        return None
    if found.l2_tokens != capacity.tokens:
        return f"L2 holds {found.l2_tokens} tokens, expected {capacity.tokens}"
    for name, moved in (
        ("backup", found.backup_bytes_per_token),
        ("restore", found.restore_bytes_per_token),
    ):
        if moved not in (None, capacity.bytes_per_token):
            return f"{name} moved {moved} bytes per token, expected {capacity.bytes_per_token}"
    return None
