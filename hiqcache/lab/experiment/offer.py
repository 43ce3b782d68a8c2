"""A workload that can tell the arms apart, for whoever asked for one that cannot; `preconditions`.

Each is tried on the simulator before it is offered: the same requests through the same pools.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hiqcache.capacity import bytes_per_token
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.configuration import Sizing
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.predict import predict
from hiqcache.lab.experiment.workload import Workload

SHARES = (0.6, 0.75, 0.9)
"""Parts of the working set that BF16's L2 holds in what is tried."""

MOST_GROUPS = 256
"""More are not replayed in other pools: fewer groups are offered for them."""

LEAST_GAP = 0.03
"""Hit rate between BF16 and a codec under the same policy; the simulator is that good."""


@dataclass(frozen=True)
class Offer:
    """Options of `hiqcache experiment run` and what they would show.

    Parameters
    ----------
    options
        As they are typed.
    gap
        The largest difference of predicted hit rates between BF16 and a codec.
    tokens
        The working set.
    """

    options: str
    gap: float
    tokens: int


def best_gap(runs: Sequence[Run], geometry: Geometry) -> float:
    """The largest predicted difference between BF16 and a codec of one policy; 1 without any."""
    first = {
        (run.deployment.configuration.policy, run.deployment.configuration.record): run
        for run in reversed(runs)
    }
    rates = {key: predict(run, geometry).hit_rate for key, run in first.items()}
    gaps = [
        abs(rate - rates[policy, "bf16"])
        for (policy, record), rate in rates.items()
        if record not in (None, "bf16") and (policy, "bf16") in rates
    ]
    return max(gaps, default=1.0)


def offers(runs: Sequence[Run], geometry: Geometry) -> list[Offer]:
    """What would do, the smallest working set first: more or fewer groups, or other pools."""
    found = []
    for kind in (_by_groups(runs, geometry), _by_pools(runs, geometry)):
        good = [offer for offer in kind if offer.gap >= LEAST_GAP]
        if good:
            found.append(max(good, key=lambda offer: offer.gap))
    return sorted(found, key=lambda offer: offer.tokens)


def _by_groups(runs: Sequence[Run], geometry: Geometry) -> Iterator[Offer]:
    """The pools as asked for, and a working set that overflows BF16's L2."""
    first = runs[0].deployment
    least = first.sizing.capacity(geometry, "bf16", first.l1_tokens, first.page).tokens
    shape = runs[0].workload
    for share in SHARES:
        groups = round(least / share / shape.group_tokens)
        if groups > 0 and groups * shape.prefix > first.l1_tokens:
            workload = shape.with_groups(groups)
            yield _offer(f"--groups {groups}", [_with(run, workload) for run in runs], geometry)


def _by_pools(runs: Sequence[Run], geometry: Geometry) -> Iterator[Offer]:
    """The workload as asked for, and an L2 that BF16 overflows."""
    shape = runs[0].workload
    if shape.groups > MOST_GROUPS:
        return
    per_token = bytes_per_token(geometry, "bf16")
    # All requests in flight have to fit into L1.
    least_l1 = shape.concurrency * (shape.prefix + shape.question + shape.output)
    for l1 in {max(least_l1, shape.working_set // part) for part in (4, 8)}:
        if shape.prefix_set <= l1:
            continue
        for share in SHARES:
            size = int(share * shape.working_set) * per_token
            yield _offer(
                f"--l1-tokens {l1} --l2-bytes {size}",
                [_with(run, shape, l1, Sizing(budget_bytes=size)) for run in runs],
                geometry,
            )


def _offer(options: str, runs: Sequence[Run], geometry: Geometry) -> Offer:
    return Offer(options, best_gap(runs, geometry), runs[0].workload.working_set)


def _with(run: Run, workload: Workload, l1: int | None = None, sizing: Sizing | None = None) -> Run:
    deployment = run.deployment
    if l1 is not None and sizing is not None:
        deployment = replace(deployment, l1_tokens=l1, sizing=sizing)
    return replace(run, workload=workload, deployment=deployment)
