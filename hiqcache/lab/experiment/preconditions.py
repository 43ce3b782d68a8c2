"""Before the run: whether this workload can tell the arms apart; `hiqcache experiment run`."""

from __future__ import annotations

from collections.abc import Sequence

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.offer import LEAST_GAP, best_gap, offers
from hiqcache.lab.experiment.plan import Run


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
    if workload.prompts < 2:
        raise UsageError(
            f"experiment {experiment} cannot tell its arms apart: no prefix is asked for twice; "
            f"use --prompts 2 or more"
        )
    reason = _reason(experiment, runs, geometry, max(capacities.values()))
    if reason is None:
        return
    sizes = (
        f"{workload.groups} prefixes of {workload.prefix} tokens ({workload.prefix_set:,}; "
        f"{workload.working_set:,} with questions and answers)"
    )
    found = [offer.options for offer in offers(runs, geometry)]
    advice = (
        f"what would do: {', or '.join(found)}"
        if found
        else f"use longer prefixes, or an L1 smaller than {l1:,} tokens"
    )
    raise UsageError(
        f"experiment {experiment} cannot tell its arms apart: {sizes} {reason}; {advice}"
    )


def _reason(experiment: str, runs: Sequence[Run], geometry: Geometry, most: int) -> str | None:
    """What is wrong with the workload, to be read behind its sizes."""
    workload, l1 = runs[0].workload, runs[0].deployment.l1_tokens
    if workload.prefix_set <= l1:
        return f"fit in an L1 of {l1:,} tokens, so that L2 is never read"
    if experiment == "a":
        return None
    # BF16 counts even where it is not among the arms: results can be added to in parts.
    first = runs[0].deployment
    least = first.sizing.capacity(geometry, "bf16", l1, first.page).tokens
    if least == most:
        return None
    if workload.working_set <= least:
        return f"fit in BF16's L2, {least:,} tokens"
    if best_gap(runs, geometry) < LEAST_GAP:
        return f"are predicted to hit alike in L2s of {least:,} and {most:,} tokens"
    return None
