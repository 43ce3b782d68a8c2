"""What doctor names as the largest L2 starts, on real servers.

A file of its own, which runs by itself: it takes all the memory that is free.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hiqcache.pod.checks.memory import Memory, largest_size
from hiqcache.pod.plan import Plan
from tests.engine.conftest import GPU, probed_server
from tests.engine.divisible import divisible
from tests.engine.tensor_parallel import tp_environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CODEC = {"HIQCACHE_CODEC": "int8"}
STARTS = 3


def plan(ranks: int) -> Plan:
    return Plan.parse(("--enable-hierarchical-cache", "--tp-size", str(ranks)), CODEC)


@pytest.mark.skipif(GPU, reason="doctor's estimate of the processes is for the CPU")
@pytest.mark.parametrize("ranks", [1, 2])
def test_servers_start_at_the_largest_size_three_times(ranks: int, model: str, out: Path) -> None:
    served = str(divisible(Path(model), out / "divisible")) if ranks > 1 else model
    for start in range(STARTS):
        size = largest_size(plan(ranks), Memory.read())
        assert size, "this machine has no room for an L2"
        arguments = ("--hicache-size", str(size), "--tp-size", str(ranks))
        name = f"largest-{ranks}-{start}"
        with probed_server(served, out, name, "int8", arguments, tp_environment(ranks)) as probed:
            for rank in range(ranks):
                assert probed.report(rank)["buffer_bytes"] >= size * 0.999e9
