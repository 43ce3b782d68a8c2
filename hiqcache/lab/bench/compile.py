"""Kernels of many pools compiled at once, in processes; the transfer bench does so before it times.

Each takes tens of seconds on one core. The processes leave them in Triton's cache on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from hiqcache.transfer.launch import load
from hiqcache.transfer.plan import Plan

MOST_PROCESSES = 12


def compile_all(plans: Iterable[Plan]) -> None:
    """Compile both kernels of each plan, each once.

    Raises
    ------
    UsageError
        One does not compile or load on this GPU.
    """
    wanted = list(dict.fromkeys(plans))
    processes = min(len(wanted), os.cpu_count() or 1, MOST_PROCESSES)
    # Not forked: CUDA does not survive it.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, wanted))


def _compile(plan: Plan) -> None:
    load(plan, (1, 1, 1), torch.device("cuda"))
