"""Seconds of copies on a GPU: known once the work is done, and asked for without waiting."""

from __future__ import annotations

import pytest
import torch

from hiqcache.engine.stopwatch import Stopwatch

pytestmark = pytest.mark.gpu
CYCLES = 2_000_000_000


def test_seconds_come_when_the_work_is_done() -> None:
    watch = Stopwatch(torch.device("cuda"))
    for _ in range(3):
        torch.cuda.synchronize()
        watch.start()
        torch.cuda._sleep(CYCLES)
        watch.stop()
        assert watch.finished_seconds() == 0, "the GPU still sleeps"
        torch.cuda.synchronize()
        # No clock of a GPU is faster than 4 GHz.
        assert watch.finished_seconds() > CYCLES / 4e9
        assert watch.finished_seconds() == 0, "each second is told once"
