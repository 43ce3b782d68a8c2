"""A whole quality run on real servers: start the arms, make their passes, keep the outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hiqcache.lab.fleet import Arm, Fleet, Launch
from hiqcache.lab.progress import Clock, progress
from hiqcache.lab.quality.arms import OTHER_BACKEND, OTHER_CHUNKS, Sizes
from hiqcache.lab.quality.passes import Outcomes, make_fillers, run_passes
from hiqcache.lab.quality.prompt import Prompt
from hiqcache.lab.serving.client import Client


@dataclass(frozen=True, kw_only=True)
class ServedSpec:
    """What is run.

    Parameters
    ----------
    side_by_side
        All servers up at once, on one GPU; else one after another.
    """

    prompts: Sequence[Prompt]
    sizes: Sizes
    arms: Sequence[Arm]
    launch: Launch
    side_by_side: bool

    def describe(self) -> dict[str, Any]:
        """What to keep with the results."""
        return {
            "l1_tokens": self.sizes.l1_tokens,
            "l2_tokens": self.sizes.l2_tokens,
            "arms": {arm.name: list(arm.arguments) for arm in self.arms},
            "side_by_side": self.side_by_side,
            "arguments": list(self.launch.arguments),
        }


def run_served(spec: ServedSpec) -> dict[str, Outcomes]:
    """Every arm's outcomes by its name.

    Raises
    ------
    HiQCacheError
        A server failed or refused.
    """
    fillers = make_fillers(spec.prompts, spec.sizes.filler_tokens)

    def passes(arm: Arm, client: Client, clock: Clock) -> Outcomes:
        every = arm.name not in (OTHER_CHUNKS, OTHER_BACKEND)
        return run_passes(client, spec.prompts, fillers, every_pass=every, note=clock.note)

    fleet = Fleet(spec.launch, spec.arms, side_by_side=spec.side_by_side)
    if not spec.side_by_side:
        outcomes = {}
        with fleet:
            for arm in spec.arms:
                with progress(f"{arm.name}: start SGLang"):
                    client = fleet.client(arm)
                with progress(f"{arm.name}: ask") as clock:
                    outcomes[arm.name] = passes(arm, client, clock)
        return outcomes
    with progress("start all servers and ask them") as clock, fleet:
        clients = {arm.name: fleet.client(arm) for arm in spec.arms}
        with ThreadPoolExecutor(len(clients)) as pool:
            waiting = {
                arm.name: pool.submit(passes, arm, clients[arm.name], clock) for arm in spec.arms
            }
            return {name: future.result() for name, future in waiting.items()}
