"""What doctor names as the largest L2 starts, with the pools of two ranks."""

from __future__ import annotations

import multiprocessing
import socket

import pytest

from hiqcache.pod.checks.memory import RESERVE_BYTES, Memory, largest_size, process_bytes
from hiqcache.pod.plan import Plan
from tests.engine.conftest import READY_SECONDS
from tests.engine.two_ranks import RANKS, build

pytestmark = pytest.mark.engine

CODEC = {"HIQCACHE_CODEC": "int8"}
ROUNDS = 10


def plan(ranks: int) -> Plan:
    return Plan.parse(("--enable-hierarchical-cache", "--tp-size", str(ranks)), CODEC)


def test_pools_of_two_ranks_start_at_the_largest_size_ten_times() -> None:
    processes = process_bytes(plan(RANKS))
    left = 2_200_000_000
    memory = Memory(RESERVE_BYTES + processes + left, None, None, None)
    size = largest_size(plan(RANKS), memory)
    assert size == 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    arguments = (port, RESERVE_BYTES + left, size, ROUNDS, answers)
    ranks = [context.Process(target=build, args=(rank, *arguments)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(READY_SECONDS)
    assert [rank.exitcode for rank in ranks] == [0] * RANKS
    outcomes = dict(answers.get() for _ in ranks)
    for rank in range(RANKS):
        sizes = outcomes[rank][:ROUNDS]
        assert all(isinstance(each, int) and each >= 0.999e9 for each in sizes), sizes
    # Without the shared look the second rank is refused: that is what this is about.
    assert isinstance(outcomes[0][ROUNDS], int)
    assert "L2 needs 1.00 GB" in str(outcomes[1][ROUNDS])
