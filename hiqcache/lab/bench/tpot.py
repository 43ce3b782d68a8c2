"""Decode speed while L2 restores run beside it: what a transfer costs the model.

Every arm is a real SGLang server on one GPU; all stay up, one is under load at a time, and the
arms alternate, so that a drift of the machine meets all of them. Under load, a few streams
decode while another client asks, at a fixed pace, for prefixes that have left L1. TPOT is a
stream's time from its first to its last token over the tokens between.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.codec import percentile
from hiqcache.lab.bench.gpu import gpu_origin
from hiqcache.lab.serving.client import Client
from hiqcache.lab.serving.server import Server

L1_TOKENS = 16384
PREFIX_TOKENS = 2048
PREFIXES = 12
STREAMS = 4
STREAM_TOKENS = 384
WORD_LIMIT = 40000
READY_SECONDS = 400


@dataclass(frozen=True)
class Arm:
    """A configuration to compare: HiQCache's variables, none for SGLang's own BF16 HiCache."""

    name: str
    environment: dict[str, str]


@dataclass(frozen=True)
class TpotSpec:
    """What is run: a model, arms, how often, and restores a second under load."""

    model: str
    arms: tuple[Arm, ...]
    rounds: int
    restores_per_second: float
    arguments: tuple[str, ...]
    log_folder: Path
    commit: str | None = None


def run_tpot_bench(spec: TpotSpec) -> Iterator[dict[str, Any]]:
    """One row for each arm, quiet and under restores: TPOT in ms, tokens restored.

    Raises
    ------
    HiQCacheError
        A server failed, or an arm restored nothing under load.
    """
    origin = gpu_origin(spec.commit)
    with ExitStack() as stack:
        servers = _start(spec, stack)
        prompts = _prefixes(seed=0)
        for server in servers.values():
            for prompt in prompts:
                server.client.ask(prompt, 1)
        samples: dict[tuple[str, bool], list[float]] = {}
        restored: dict[tuple[str, bool], int] = {}
        for turn in range(spec.rounds):
            for loaded in (False, True):
                for name in sorted(servers, key=list(servers).index, reverse=turn % 2 == 1):
                    pace = spec.restores_per_second if loaded else 0.0
                    tpots, tokens = _measure(servers[name].client, prompts, pace, turn)
                    samples.setdefault((name, loaded), []).append(median(tpots))
                    restored[name, loaded] = restored.get((name, loaded), 0) + tokens
    for (name, loaded), values in samples.items():
        if loaded and not restored[name, loaded]:
            raise HiQCacheError(f"{name} restored nothing under load: nothing was measured")
        yield {
            "arm": name,
            "under_restores": loaded,
            "tpot_ms": {f"p{s}": 1e3 * percentile(values, s / 100) for s in (20, 50, 80)},
            "samples_ms": [round(1e3 * value, 4) for value in values],
            "restored_tokens": restored[name, loaded],
            "environment": _arm(spec, name).environment,
            "arguments": list(spec.arguments),
            "model": Path(spec.model).name,
            "streams": STREAMS,
            "stream_tokens": STREAM_TOKENS,
            "restores_per_second": spec.restores_per_second if loaded else 0.0,
            "provenance": origin,
        }


def _arm(spec: TpotSpec, name: str) -> Arm:
    return next(arm for arm in spec.arms if arm.name == name)


def _start(spec: TpotSpec, stack: ExitStack) -> dict[str, Server]:
    """Start every arm at once; `--max-total-tokens` gives each the same L1 whatever is free."""
    servers = {}
    for arm in spec.arms:
        server = Server(
            spec.model,
            [
                *("--max-total-tokens", str(L1_TOKENS)),
                "--enable-hierarchical-cache",
                *spec.arguments,
            ],
            arm.environment,
            spec.log_folder / f"tpot-{arm.name}.log",
        )
        servers[arm.name] = stack.enter_context(server)
    for server in servers.values():
        server.wait_ready(READY_SECONDS)
    return servers


def _prefixes(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(100, WORD_LIMIT) for _ in range(PREFIX_TOKENS)] for _ in range(PREFIXES)]


def _measure(
    client: Client, prompts: Sequence[list[int]], pace: float, seed: int
) -> tuple[list[float], int]:
    """TPOT of each stream in seconds, and the tokens that came from L2 meanwhile."""
    rng = random.Random(f"{seed}")
    stop = threading.Event()
    restored = 0

    def restore() -> None:
        nonlocal restored
        due = time.monotonic()
        index = 0
        while not stop.is_set():
            restored += client.ask(prompts[index % len(prompts)], 1).host_tokens
            index += 1
            due += 1 / pace
            stop.wait(max(0.0, due - time.monotonic()))

    def stream(prompt: list[int]) -> float:
        answer = client.ask(prompt, STREAM_TOKENS, ignore_eos=True)
        return (answer.seconds - answer.ttft) / (STREAM_TOKENS - 1)

    fresh = [[rng.randrange(100, WORD_LIMIT) for _ in range(32)] for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS + 1) as pool:
        restorer = pool.submit(restore) if pace else None
        tpots = list(pool.map(stream, fresh))
        stop.set()
        if restorer is not None:
            restorer.result()
    return tpots, restored
