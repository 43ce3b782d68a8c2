"""A minute of the soak (`make soak` takes an hour): right rows, nothing left over, no great leak.

How fast memory grows in the first minute says little, so the bound is wide; results/soak has the
long run, and its speed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.probe.hiqcache_probe import WRONG
from tests.engine.soak.soak import soak

pytestmark = pytest.mark.engine

MINUTES, WARM_UP_MINUTES = 1.2, 0.5
LEAK = 150.0
"""Megabytes a minute. A first minute grows by 60 to 100 as allocators fill; requests that left
their rows behind, 6 MB each, would make it 300."""


def test_mixed_traffic_leaves_nothing_wrong_and_nothing_behind(model: str, out: Path) -> None:
    found = soak(
        model,
        out,
        minutes=MINUTES,
        warm_up_minutes=WARM_UP_MINUTES,
        clients=2,
        pause=0.0,
        rounds=0,
    )
    assert all(found["requests"][kind] > 0 for kind in ("document", "conversation", "hang_up"))
    assert found["restored_rows"] > 0
    assert not any(found[name] for name in WRONG), {name: found[name] for name in WRONG}
    assert found["backed_up_tokens"] > found["l2_tokens"], "L2 must have evicted"
    assert found["tracebacks"] == 0
    assert not any(found["left_after_flush"].values()), found["left_after_flush"]
    assert found["memory"]["samples"] >= 10
    assert found["memory"]["megabytes_a_minute"]["slope"] < LEAK
