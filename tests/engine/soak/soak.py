"""A soak of one server: speed, warm-up, traffic, speed again, and what all of it showed."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from hiqcache.provenance import cpu_model, provenance
from tests.engine.conftest import GPU, Probed, probed_server
from tests.engine.probe.hiqcache_probe import WRONG
from tests.engine.soak import speed
from tests.engine.soak.processes import Sample, Sampler
from tests.engine.soak.traffic import Traffic
from tests.engine.soak.trend import trend

CODEC = "int8-compact"
L1 = 1536
ARGUMENTS = (
    *("--max-total-tokens", str(L1)),
    # A working set of some 4,000 tokens, and unique prompts on top: every backup evicts.
    *("--hicache-ratio", "1.5"),
    *("--hicache-write-policy", "write_through"),
    *("--chunked-prefill-size", "256"),
)
SETTLE_SECONDS = 60
WORDS = (100, 40_000)
SHORTEST, FULL_AFTER, NEW_LENGTHS = 20, 70, 40
"""Tokens of the shortest of those prompts; lengths that fill caches of 64; and lengths after."""

KEPT = 120
"""Samples of memory in the result, thinned out evenly."""


def soak(
    model: str,
    out: Path,
    *,
    minutes: float,
    warm_up_minutes: float,
    clients: int,
    pause: float,
    rounds: int,
    name: str = "soak",
    seed: int = 0,
) -> dict[str, Any]:
    """Run it; the server's log is `out/<name>.log`.

    Parameters
    ----------
    minutes, warm_up_minutes
        Of traffic, the warm-up included: memory's trend is taken after it.
    clients, pause
        Clients that ask at once, and their mean seconds between two requests.
    rounds
        Of the speed probe, before and after; 0 leaves it out.
    """
    origin = provenance("cuda" if GPU else "cpu", _device())
    with probed_server(model, out, name, CODEC, ARGUMENTS) as probed:
        client, pid = probed.server.client, probed.server.pid
        speed.work(client, pid)
        before = speed.measure(client, pid, rounds)
        traffic = Traffic(client, seed)
        with Sampler(pid, probed.path) as sampler:
            traffic.run(60 * minutes, clients, pause)
        report, metrics = probed.report(), client.metrics()
        after = speed.measure(client, pid, rounds)
        growth = growth_by_new_lengths(probed)
        client.flush()
        held = left(probed)
        log = probed.server.output()
    samples = [sample for sample in sampler.samples if sample.minutes >= warm_up_minutes]
    return {
        "provenance": origin,
        "codec": CODEC,
        "arguments": list(ARGUMENTS),
        "minutes": minutes,
        "warm_up_minutes": warm_up_minutes,
        "clients": clients,
        "mean_pause_s": pause,
        "requests": dict(traffic.requests),
        "tokens": dict(traffic.tokens),
        "l2_tokens": report["tokens"],
        "l2_used_tokens": metrics["sglang:hicache_host_used_tokens"],
        "backed_up_tokens": metrics["sglang:hicache_backup_tokens_total"],
        "restored_tokens": metrics["sglang:load_back_tokens_total"],
        "restored_rows": report["restored_rows"],
        **{name: report[name] for name in WRONG},
        "tracebacks": log.count("Traceback"),
        "left_after_flush": held,
        "memory": _memory(samples),
        "heap_megabytes_of_new_lengths": growth,
        "speed": speed.compare(before, after) if rounds else None,
    }


def growth_by_new_lengths(probed: Probed) -> float:
    """Megabytes of the scheduler's heap that `NEW_LENGTHS` prompts of lengths never seen cost.

    A cache that keeps something for each length it has met, without a bound, keeps it for these;
    one with a bound is full by then.
    """
    draw = random.Random(0)

    def ask(lengths: range) -> int:
        for length in lengths:
            probed.server.client.ask([draw.randrange(*WORDS) for _ in range(length)], 1)
        return int(probed.report()["heap_bytes"])

    before = ask(range(SHORTEST, SHORTEST + FULL_AFTER))
    after = ask(range(SHORTEST + FULL_AFTER, SHORTEST + FULL_AFTER + NEW_LENGTHS))
    return (after - before) / 1e6


def left(probed: Probed) -> dict[str, float]:
    """What runs or is held once all is answered and flushed; nothing may be.

    SGLang brings its gauges up to date some time after the last request.
    """
    names = ("num_running_reqs", "num_queue_reqs", "num_used_tokens")
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        metrics, report = probed.server.client.metrics(), probed.report()
        found = {name: metrics[f"sglang:{name}"] for name in names}
        found["host_slots"] = report["tokens"] - report["free_tokens"]
        if not any(found.values()) or time.monotonic() > deadline:
            return found


def _memory(samples: list[Sample]) -> dict[str, Any]:
    """Trends in megabytes per minute, of all processes and of each role."""
    minutes = [sample.minutes for sample in samples]

    def megabytes_a_minute(values: list[float]) -> dict[str, float]:
        line = trend(minutes, [value / 1e6 for value in values])
        return {"slope": line.slope, "standard_error": line.error}

    step = max(1, len(samples) // KEPT)
    return {
        "samples": len(samples),
        "megabytes_a_minute": megabytes_a_minute([s.total for s in samples]),
        "megabytes_a_minute_by_role": {
            name: megabytes_a_minute([s.resident.get(name, 0) for s in samples])
            for name in samples[0].resident
        },
        "scheduler_heap_megabytes_a_minute": megabytes_a_minute([s.heap for s in samples]),
        "minutes_resident_and_heap_megabytes": [
            [round(s.minutes, 2), round(s.total / 1e6, 1), round(s.heap / 1e6, 1)]
            for s in samples[::step]
        ],
    }


def _device() -> str:
    if not GPU:
        return cpu_model()
    import torch

    name: str = torch.cuda.get_device_name()
    return name
