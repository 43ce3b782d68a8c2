"""The simulator on an experiment's own workload: the same requests, in the same order."""

from __future__ import annotations

from functools import lru_cache

from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.row import Figures, Measurement
from hiqcache.lab.experiment.workload import Workload
from hiqcache.simulate.replay import Prediction, Request, replay


@lru_cache(maxsize=4)
def trace(workload: Workload, seed: int) -> tuple[Request, ...]:
    """A run's requests: a block for the prefix of its group, one for its question."""
    # The arms of a repeat share it, and it takes longer to make than to replay.
    return tuple(
        Request(((f"p{group}", workload.prefix), (f"q{index}", workload.question)), workload.output)
        for index, group in enumerate(workload.order(seed))
    )


def predict(run: Run, geometry: Geometry) -> Prediction:
    """What the run should find, before it is made."""
    capacity = run.deployment.capacity(geometry)
    return replay(
        trace(run.workload, run.seed),
        run.deployment.l1_tokens,
        capacity.tokens if capacity else 0,
        write_back=run.deployment.configuration.policy == "write_back",
        concurrency=run.workload.concurrency,
    )


def predict_row(row: Measurement) -> Prediction:
    """What a stored run of the workload should have found."""
    assert isinstance(row.figures, Figures), "a single prompt has no hit rate"
    chunk = row.figures.chunk
    return replay(
        trace(row.workload, row.seed),
        row.l1_tokens,
        row.capacity_tokens,
        write_back=row.policy == "write_back",
        concurrency=row.workload.concurrency,
        # SGLang's -1: prompts are never cut.
        chunk=chunk if chunk > 0 else row.l1_tokens,
        overlap="--disable-overlap-schedule" not in row.arguments,
    )
