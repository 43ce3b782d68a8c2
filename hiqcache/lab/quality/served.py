"""A whole quality run on real servers: start the arms, make their passes, keep the outcomes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiqcache.lab.demo.stage import Stage, stage
from hiqcache.lab.quality.arm import Arm, Pools, make_server
from hiqcache.lab.quality.passes import Outcomes, make_fillers, run_passes
from hiqcache.lab.quality.prompt import Prompt

READY_SECONDS = 900


@dataclass(frozen=True)
class ServedSpec:
    """What is run.

    Parameters
    ----------
    l1_tokens
        The least size of L1; None for the smallest that the prompts fit into.
    side_by_side
        All servers up at once, on one GPU; else one after another.
    arguments
        SGLang's arguments for every arm.
    """

    model: str
    prompts: tuple[Prompt, ...]
    arms: tuple[Arm, ...]
    gpu: bool
    l1_tokens: int | None
    side_by_side: bool
    arguments: tuple[str, ...]
    log_folder: Path

    def describe(self) -> dict[str, Any]:
        """What to keep with the results."""
        pools = Pools.fit(self.prompts, self.l1_tokens)
        return {
            "l1_tokens": pools.l1_tokens,
            "l2_tokens": pools.l2_tokens,
            "arms": {arm.name: list(arm.arguments) for arm in self.arms},
            "side_by_side": self.side_by_side,
            "arguments": list(self.arguments),
        }


def run_served(spec: ServedSpec) -> dict[str, Outcomes]:
    """Every arm's outcomes by its name.

    Raises
    ------
    HiQCacheError
        A server failed or refused.
    """
    pools = Pools.fit(spec.prompts, spec.l1_tokens)
    fillers = make_fillers(spec.prompts, pools.filler_tokens)
    servers = {
        arm.name: make_server(
            arm, spec.model, pools, spec.gpu, spec.arguments, spec.log_folder.resolve()
        )
        for arm in spec.arms
    }

    def passes(arm: Arm, current: Stage) -> Outcomes:
        client = servers[arm.name].client
        return run_passes(client, spec.prompts, fillers, arm.every_pass, current.note)

    if not spec.side_by_side:
        outcomes = {}
        for arm in spec.arms:
            with servers[arm.name] as server:
                with stage(f"{arm.name}: start SGLang"):
                    server.wait_ready(READY_SECONDS)
                with stage(f"{arm.name}: ask") as current:
                    outcomes[arm.name] = passes(arm, current)
        return outcomes
    with ExitStack() as stack, ThreadPoolExecutor(len(spec.arms)) as pool:
        names = ", ".join(servers)
        with stage(f"start SGLang: {names}"):
            for server in servers.values():
                stack.enter_context(server)
            for server in servers.values():
                server.wait_ready(READY_SECONDS)
        with stage("ask all servers") as current:
            waiting = {arm.name: pool.submit(passes, arm, current) for arm in spec.arms}
            return {name: future.result() for name, future in waiting.items()}
