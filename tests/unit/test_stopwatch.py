"""Seconds of copies, on a CPU; `tests/gpu` holds the events of a GPU to the same."""

from __future__ import annotations

import time

import torch

from hiqcache.engine.stopwatch import Stopwatch


def test_a_cpu_knows_its_seconds_at_once() -> None:
    watch = Stopwatch(torch.device("cpu"))
    assert watch.finished_seconds() == 0
    for _ in range(2):
        watch.start()
        time.sleep(0.01)
        watch.stop()
    time.sleep(0.05)
    seconds = watch.finished_seconds()
    assert seconds >= 0.02
    assert watch.finished_seconds() == 0, "each second is told once"
