"""Carry a plan out for `invocation`: each run's figures are on disk before the next begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.client import client_arguments, run_client
from hiqcache.lab.experiment.crossover import measure_crossover
from hiqcache.lab.experiment.measure import measure
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.row import RAW, ROWS, Figures, Measurement, Single
from hiqcache.lab.experiment.workload import Workload
from hiqcache.lab.fleet import Fleet
from hiqcache.lab.progress import Clock
from hiqcache.lab.row import Store
from hiqcache.lab.serving.client import Client


@dataclass(frozen=True, kw_only=True)
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


def execute(session: Session, runs: Sequence[Run], fleet: Fleet, clock: Clock) -> int:
    """Carry out the runs in order; returns how many failed or may not be used."""
    unusable = 0
    warm: set[str] = set()
    number = len(session.store.read(ROWS))
    for place, run in enumerate(runs, 1):
        clock.note(f"{run.name}, {place} of {len(runs)}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        figures: Figures | Single | None = None
        raw: dict[str, Any] | None = None
        try:
            client = fleet.client(run.deployment.arm(session.geometry))
            if session.warm_up and run.deployment.name not in warm:
                _warm_up(session, run, client)
                warm.add(run.deployment.name)
            if run.experiment == "crossover":
                figures, reason = measure_crossover(client, run)
            else:
                found = measure(client, run, session.model, session.geometry, session.log)
                figures, raw, reason = found.figures, found.raw, found.reason
        except HiQCacheError as error:
            reason = " ".join(str(error).split())
        unusable += reason is not None
        row = _row(session, run, fleet, figures=figures, reason=reason, started=started, run=number)
        session.store.add(ROWS, row)
        if raw is not None:
            session.store.add(RAW, {"run": number} | raw)
        number += 1
    return unusable


def _warm_up(session: Session, run: Run, client: Client) -> None:
    """Traffic of the measured shape that overflows L1, with prompts of its own."""
    shape = run.workload
    groups = max(2, -(-3 * run.deployment.l1_tokens // (2 * shape.prefix)))
    workload = Workload(groups, 2, shape.prefix, shape.question, shape.output, shape.concurrency)
    run_client(client_arguments(client.url, session.model, workload, run.seed + 2), session.log)


def _row(session: Session, planned: Run, fleet: Fleet, **measured: Any) -> Measurement:
    deployment = planned.deployment
    configuration, arm = deployment.configuration, deployment.arm(session.geometry)
    capacity = deployment.capacity(session.geometry)
    return Measurement(
        experiment=planned.experiment,
        arm=deployment.name,
        codec=configuration.codec,
        policy=configuration.policy,
        layout=configuration.layout,
        repeat=planned.repeat,
        seed=planned.seed,
        workload=planned.workload,
        geometry=Path(session.geometry.name).name,
        load_format=session.load_format,
        l1_tokens=deployment.l1_tokens,
        page_size=deployment.page,
        capacity_tokens=capacity.tokens if capacity else 0,
        capacity_bytes=capacity.bytes_allocated if capacity else 0,
        gpu=fleet.gpu(arm),
        arguments=fleet.launch.arguments_of(arm),
        invocation=session.invocation,
        valid=measured["reason"] is None,
        **measured,
    )
