"""Real SGLang fits an encoded L2 to the memory that is free, which may not change meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiqcache.capacity import automatic, bytes_per_token
from hiqcache.geometry import Geometry
from hiqcache.pod.checks.memory import RESERVE_BYTES, Memory
from tests.engine.case import Case
from tests.engine.conftest import L1_TOKENS, probed_server

pytestmark = pytest.mark.engine

MIRRORS = 1.5
"""Automatic sizing stops at 2 by itself; below that, memory is what limits."""


def tight() -> Case:
    """Automatic sizing with a fraction of this machine's memory that L2 mirrors L1 in, at most."""
    mirror = (L1_TOKENS + 1) * bytes_per_token(Geometry.load("smollm2-135m"), "int8-compact")
    # The server's own processes will have taken some more of it when it sizes its pool.
    budget = Memory.read().available - RESERVE_BYTES
    fraction = min(1.0, MIRRORS * mirror / budget)
    sizing = ("--hicache-host-memory-fraction", f"{fraction:.9f}")
    return Case("int8-compact", "write_through", "page_first", 1, sizing)


def test_automatic_sizing_counts_records_not_bf16_rows(model: str, out: Path) -> None:
    case = tight()
    with probed_server(model, out, "auto", case.codec, case.arguments) as probed:
        report = probed.report()
    capacity = case.capacity(report)
    assert report["tokens"] == capacity.tokens
    as_bf16 = automatic(
        Geometry.load("smollm2-135m"),
        "bf16",
        report["device_tokens"],
        report["auto_budget_bytes"],
        fraction=float(case.sizing[1]),
    )
    assert capacity.tokens < 2 * report["device_tokens"], "the budget must be what limits"
    assert capacity.tokens > 1.8 * as_bf16.tokens
