"""The demo's plan: pools that the two codecs must fill differently."""

from __future__ import annotations

import io

import pytest

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.demo.plan import make_plan
from hiqcache.lab.progress import progress
from hiqcache.lab.workload.documents import load_documents


def words(text: str) -> int:
    return len(text.split())


def test_bf16_overflows_what_the_codec_holds() -> None:
    geometry = Geometry.load("smollm2-135m")
    plan = make_plan(load_documents()[:14], geometry, words, new_tokens=12)
    assert plan.l1_tokens < plan.l2_tokens(geometry, "bf16") < plan.working_set
    assert plan.working_set <= plan.l2_tokens(geometry, "int8-compact")


@pytest.mark.parametrize("codec", ["bf16", "int8", "int8-compact"])
def test_the_ratio_gives_the_tokens_of_the_budget(codec: str) -> None:
    geometry = Geometry.load("smollm2-135m")
    for documents in range(6, 43):
        plan = make_plan(load_documents()[:documents], geometry, words, new_tokens=12)
        tokens = int(plan.l1_tokens * plan.ratio(geometry, codec))
        assert tokens == plan.l2_tokens(geometry, codec)


def test_the_replay_asks_everything_once_in_another_order() -> None:
    plan = make_plan(load_documents()[:14], Geometry.load("qwen3-8b"), words, new_tokens=12)
    assert sorted(plan.replay_order) == list(range(14))
    assert plan.replay_order != tuple(range(14))


def test_a_geometry_that_cannot_show_it_is_refused() -> None:
    # One KV head of 8: 16 bytes of BF16, and the record, a multiple of 16, is 16 bytes too.
    geometry = Geometry("tiny", layers=2, kv_heads=1, head_dim=8, v_head_dim=8)
    with pytest.raises(UsageError, match="tiny has 1 KV heads of 8"):
        make_plan(load_documents()[:6], geometry, words, new_tokens=12)


def test_a_clock_says_how_it_ended() -> None:
    log = io.StringIO()
    with progress("works", log) as clock:
        clock.note("half of it")
    with pytest.raises(RuntimeError), progress("breaks", log):
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), progress("waits", log):
        raise KeyboardInterrupt
    first, second, third = log.getvalue().splitlines()
    assert first.endswith("works: half of it")
    assert second.endswith("breaks FAILED")
    assert third.endswith("waits (interrupted)")
