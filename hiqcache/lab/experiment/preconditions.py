"""Before the run: whether this workload can tell the arms apart; `hiqcache experiment run`."""

from __future__ import annotations

from collections.abc import Sequence

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.plan import Run
from hiqcache.lab.experiment.predict import predict

LEAST_GAP = 0.03
"""Hit rate between BF16 and a codec under the same policy; the simulator is that good."""


def refuse_workloads_that_show_nothing(runs: Sequence[Run], geometry: Geometry) -> None:
    """Refuse runs of A and B whose workload shows nothing, before a server starts.

    A needs prefixes that overflow L1: else nothing is ever restored. B also needs a working set
    that the smallest L2 does not hold, and a predicted hit rate that differs between BF16 and
    some codec. The curve runs on both sides of these limits on purpose.

    Raises
    ------
    UsageError
        Names the working set, the pools and what would do.
    """
    for experiment in ("a", "b"):
        chosen = [run for run in runs if run.experiment == experiment and not run.repeat]
        if chosen:
            _refuse(experiment, chosen, geometry)


def _refuse(experiment: str, runs: Sequence[Run], geometry: Geometry) -> None:
    workload, l1 = runs[0].workload, runs[0].deployment.l1_tokens
    capacities = {
        run.deployment.configuration.record: capacity.tokens
        for run in runs
        if (capacity := run.deployment.capacity(geometry)) is not None
    }
    if not capacities:
        return
    sizes = (
        f"{workload.groups} prefixes of {workload.prefix} tokens ({workload.prefix_set:,}; "
        f"{workload.working_set:,} with questions and answers)"
    )
    per_group = workload.working_set // workload.groups
    if workload.prompts < 2:
        raise UsageError(
            f"experiment {experiment} cannot tell its arms apart: no prefix is asked for twice; "
            f"use --prompts 2 or more"
        )
    if workload.prefix_set <= l1:
        raise UsageError(
            f"experiment {experiment} cannot tell its arms apart: {sizes} fit in an L1 of {l1:,} "
            f"tokens, so that L2 is never read; use more than {l1 // workload.prefix} groups"
        )
    if experiment == "a":
        return
    # BF16 counts even where it is not among the arms: results can be added to in parts.
    first = runs[0].deployment
    least = first.sizing.capacity(geometry, "bf16", l1, first.page).tokens
    most = max(capacities.values())
    if least == most:
        return
    if workload.working_set <= least:
        raise UsageError(
            f"experiment b cannot tell its arms apart: {sizes} fit in BF16's L2, "
            f"{least:,} tokens; use more than {least // per_group} groups"
        )
    rates = {run.deployment.name: predict(run, geometry).hit_rate for run in runs}
    gaps = [
        abs(rates[one.deployment.name] - rates[other.deployment.name])
        for one in runs
        for other in runs
        if one.deployment.configuration.policy == other.deployment.configuration.policy
        and one.deployment.configuration.record == "bf16" != other.deployment.configuration.record
    ]
    if max(gaps, default=1.0) < LEAST_GAP:
        raise UsageError(
            f"experiment b cannot tell its arms apart: {sizes} are predicted to hit alike, "
            f"{max(rates.values()):.1%} at most, in L2s of {least:,} and {most:,} tokens; use a "
            f"working set between the two"
        )
