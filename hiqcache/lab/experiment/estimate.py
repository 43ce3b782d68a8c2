"""How long an experiment will take, said before its servers start; for `invocation`.

Arithmetic on what this machine does in a moment: prefills are bound by matrix products, decoding by
reading the weights. Good to a factor of two, which is what somebody who waits wants to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.predict import predict

START_SECONDS = 45
"""From a server's start to its first answer."""

PART_OF_PEAK = 0.5
"""What prefills reach of the speed of one large product."""

BYTES = 2
"""Of a weight: BF16."""

SIDE = 1024
COPIED = 2**26
PROBE_SECONDS = 0.2


@dataclass(frozen=True)
class Machine:
    """Products and additions per second, and bytes read per second."""

    flops: float
    bandwidth: float

    @classmethod
    def measure(cls, device: str) -> Machine:
        """Look for a fraction of a second.

        Parameters
        ----------
        device
            As torch names it: `cpu` or `cuda`.
        """
        import torch

        slow = device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        matrix = torch.ones(SIDE, SIDE, dtype=torch.float32 if slow else torch.bfloat16).to(device)
        block = torch.ones(COPIED, dtype=torch.uint8).to(device)

        def wait() -> None:
            if device != "cpu":
                torch.cuda.synchronize()

        products = _rate(lambda: matrix @ matrix, wait)
        return cls(2 * SIDE**3 * products, COPIED * _rate(lambda: block.clone(), wait))


def _rate(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """How often per second it is done."""
    work()
    wait()
    done, begin = 0, time.monotonic()
    while time.monotonic() - begin < PROBE_SECONDS:
        work()
        wait()
        done += 1
    return done / (time.monotonic() - begin)


def weights(model: str) -> int | None:
    """Parameters of the model, if its weights are in a folder here."""
    folder = Path(model)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) // BYTES or None


def seconds(
    runs: Sequence[Run], geometry: Geometry, parameters: int, machine: Machine, *, warm_up: bool
) -> float:
    """Servers one after the other, each with its runs."""
    tokens = steps = 0.0
    servers = {run.deployment.name: run.deployment for run in runs}
    for run in runs:
        found = predict(run, geometry)
        tokens += found.prompt_tokens * (1 - found.hit_rate)
        shape = run.workload
        steps += shape.requests * shape.output / min(shape.requests, shape.concurrency)
    if warm_up:
        tokens += sum(1.5 * deployment.l1_tokens for deployment in servers.values())
    prefill = tokens * 2 * parameters / (PART_OF_PEAK * machine.flops)
    decode = steps * BYTES * parameters / machine.bandwidth
    return len(servers) * START_SECONDS + prefill + decode


def announcement(
    runs: Sequence[Run], geometry: Geometry, model: str, device: str, *, warm_up: bool
) -> str:
    """One line: what will be done, and about how long it will take."""
    servers = len({run.deployment.name for run in runs})
    requests = sum(run.workload.requests for run in runs)
    line = f"{len(runs)} runs on {servers} servers, {requests:,} requests"
    parameters = weights(model)
    if parameters is None:
        return f"{line}; without weights in a folder here there is no estimate of the time"
    time_ = seconds(runs, geometry, parameters, Machine.measure(device), warm_up=warm_up)
    return f"{line}: about {max(1, round(time_ / 60))} minutes on this machine"
