"""Decode speed while L2 restores run beside it, for `hiqcache bench tpot`.

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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.fleet import Arm, Fleet, Launch, Pools
from hiqcache.lab.row import Row, origin
from hiqcache.lab.serving.client import Client

L1_TOKENS = 16384
PREFIX_TOKENS = 2048
PREFIXES = 12
STREAMS = 4
STREAM_TOKENS = 384
WORD_LIMIT = 40000


@dataclass(frozen=True, kw_only=True)
class TpotSpec:
    """What is run.

    Parameters
    ----------
    codec, programs
        HiQCache's arms, one for each number of thread blocks; SGLang's own BF16 HiCache is
        always beside them.
    rounds
        Measurements of each arm, quiet and under restores.
    restores_per_second
        What the other client asks for under load.
    """

    launch: Launch
    codec: str
    programs: tuple[int, ...]
    rounds: int
    restores_per_second: float
    commit: str | None = None


@dataclass(frozen=True, kw_only=True)
class TpotRow(Row):
    """An arm, quiet or under restores: TPOT in milliseconds, tokens restored."""

    arm: str
    under_restores: bool
    tpot_ms: dict[str, float]
    samples_ms: list[float]
    restored_tokens: int
    environment: dict[str, str]
    arguments: list[str]
    model: str
    streams: int
    stream_tokens: int
    restores_per_second: float
    provenance: dict[str, Any]


def run_tpot_bench(spec: TpotSpec) -> Iterator[TpotRow]:
    """One row for each arm, quiet and under restores.

    Raises
    ------
    HiQCacheError
        A server failed, or an arm restored nothing under load.
    """
    provenance = origin(spec.commit)
    arms = {arm.name: arm for arm in make_arms(spec)}
    with Fleet(spec.launch, list(arms.values()), side_by_side=True) as fleet:
        clients = {name: fleet.client(arm) for name, arm in arms.items()}
        prompts = _prefixes(seed=0)
        for client in clients.values():
            for prompt in prompts:
                client.ask(prompt, 1)
        samples: dict[tuple[str, bool], list[float]] = {}
        restored: dict[tuple[str, bool], int] = {}
        for turn in range(spec.rounds):
            for loaded in (False, True):
                for name in reversed(arms) if turn % 2 else arms:
                    pace = spec.restores_per_second if loaded else 0.0
                    tpots, tokens = _measure(clients[name], prompts, pace, turn)
                    samples.setdefault((name, loaded), []).append(1e3 * median(tpots))
                    restored[name, loaded] = restored.get((name, loaded), 0) + tokens
    for (name, loaded), values in samples.items():
        if loaded and not restored[name, loaded]:
            raise HiQCacheError(f"{name} restored nothing under load: nothing was measured")
        found = Percentiles.of(values)
        yield TpotRow(
            arm=name,
            under_restores=loaded,
            tpot_ms={"p20": found.p20_ms, "p50": found.p50_ms, "p80": found.p80_ms},
            samples_ms=[round(value, 4) for value in values],
            restored_tokens=restored[name, loaded],
            environment={"HIQCACHE_CODEC": str(arms[name].codec), **arms[name].environment},
            arguments=list(spec.launch.arguments),
            model=Path(spec.launch.model).name,
            streams=STREAMS,
            stream_tokens=STREAM_TOKENS,
            restores_per_second=spec.restores_per_second if loaded else 0.0,
            provenance=provenance,
        )


def make_arms(spec: TpotSpec) -> list[Arm]:
    """SGLang's BF16, and the codec with each number of thread blocks; all with the same L1."""
    pools = Pools(l1_tokens=L1_TOKENS, l2=())
    return [
        Arm(name="sglang-bf16", codec="off", pools=pools),
        *(
            Arm(
                name=f"{spec.codec}-{programs}",
                codec=spec.codec,
                pools=pools,
                environment={"HIQCACHE_PROGRAMS": str(programs)},
            )
            for programs in spec.programs
        ),
    ]


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
