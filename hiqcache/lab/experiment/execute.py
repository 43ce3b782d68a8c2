"""Carry a plan out: each run's figures are on disk before the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.client import client_arguments, run_client
from hiqcache.lab.experiment.crossover import measure_crossover
from hiqcache.lab.experiment.measure import measure
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.servers import Endpoint, Servers
from hiqcache.lab.experiment.store import Store
from hiqcache.lab.experiment.workload import Workload


class Progress(Protocol):
    """What is told how far the plan has come; tqdm's bar is one."""

    def set_description(self, desc: str) -> None: ...

    def update(self, n: int) -> object: ...


@dataclass(frozen=True)
class Session:
    """What all runs of an invocation have in common.

    Parameters
    ----------
    model
        What the client takes tokenizer and name from.
    load_format
        `dummy` for random weights; goes with every row.
    invocation
        Index of this invocation's line in `provenance.jsonl`.
    warm_up
        Whether a server's first run is preceded by traffic that is not counted, so that SGLang
        has compiled what it compiles on demand.
    """

    model: str
    geometry: Geometry
    load_format: str | None
    store: Store
    log: Path
    invocation: int
    warm_up: bool


def execute(session: Session, runs: Sequence[Run], servers: Servers, progress: Progress) -> int:
    """Carry out the runs in order; returns how many failed or may not be used."""
    unusable = 0
    warm: set[str] = set()
    for run in runs:
        progress.set_description(run.name)
        raw = None
        started = datetime.now(UTC).isoformat(timespec="seconds")
        endpoint = None
        try:
            endpoint = servers.endpoint(run.deployment)
            if session.warm_up and run.deployment.name not in warm:
                _warm_up(session, run, endpoint)
                warm.add(run.deployment.name)
            if run.experiment == "crossover":
                figures, raw = measure_crossover(endpoint.client, run)
            else:
                figures, raw = measure(
                    endpoint.client, run, session.model, session.geometry, session.log
                )
        except HiQCacheError as error:
            figures = {"valid": False, "reason": " ".join(str(error).split())}
        unusable += not figures["valid"]
        session.store.add(_identity(session, run, endpoint) | {"started": started} | figures, raw)
        progress.update(run.workload.requests)
    return unusable


def _warm_up(session: Session, run: Run, endpoint: Endpoint) -> None:
    """Traffic of the measured shape that overflows L1, with prompts of its own."""
    shape = run.workload
    groups = max(2, -(-3 * run.deployment.l1_tokens // (2 * shape.prefix)))
    workload = Workload(groups, 2, shape.prefix, shape.question, shape.output, shape.concurrency)
    arguments = client_arguments(endpoint.client.url, session.model, workload, run.seed + 2)
    run_client(arguments, session.log)


def _identity(session: Session, run: Run, endpoint: Endpoint | None) -> dict[str, Any]:
    deployment = run.deployment
    capacity = deployment.capacity(session.geometry)
    return {
        "experiment": run.experiment,
        "arm": deployment.name,
        "codec": deployment.arm.codec,
        "policy": deployment.arm.policy,
        "layout": deployment.arm.layout,
        "repeat": run.repeat,
        "seed": run.seed,
        "workload": asdict(run.workload),
        "geometry": Path(session.geometry.name).name,
        "load_format": session.load_format,
        "l1_tokens": deployment.l1_tokens,
        "page_size": deployment.page_size,
        "capacity_tokens": capacity.tokens if capacity else 0,
        "capacity_bytes": capacity.bytes_allocated if capacity else 0,
        "gpu": endpoint.gpu if endpoint else None,
        "arguments": list(endpoint.arguments) if endpoint else None,
        "invocation": session.invocation,
    }
