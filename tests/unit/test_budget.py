"""How --hicache-size is shared among a stack's pools, by the rule and by a given split."""

from __future__ import annotations

import pytest

from hiqcache.budget import (
    KV,
    STATE,
    SWA,
    TOKENS_PER_STATE,
    Pool,
    dead_memory,
    parse_split,
    shares,
    slots,
    write_split,
)
from hiqcache.config import Config
from hiqcache.errors import UsageError

# Qwen3-Next-80B: 12 attention layers of 2 heads of 256, 36 states of 2 MB and a convolution.
TOKENS = Pool(KV, 12 * 2 * 528, device_slots=400_000)
STATES = Pool(STATE, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2), device_slots=300)


def test_one_pool_gets_everything() -> None:
    assert shares(8, [Pool(KV, 82_944)]) == {KV: 8}
    assert slots(8, 82_944) == 96_451
    assert slots(8, 82_944, page_size=64) == 96_512


def test_a_pool_pays_for_what_rides_on_it() -> None:
    got = shares(8, [Pool(KV, 12_480, rider_bytes=12_480)])
    assert got == {KV: 4}


@pytest.mark.parametrize("tokens_per_state", [64, TOKENS_PER_STATE, 8192])
def test_states_follow_tokens(tokens_per_state: int) -> None:
    got = shares(64, [TOKENS, STATES], tokens_per_state=tokens_per_state)
    assert sum(got.values()) == pytest.approx(64)
    tokens, states = slots(got[KV], TOKENS.bytes), slots(got[STATE], STATES.bytes)
    assert tokens / states == pytest.approx(tokens_per_state, rel=0.02)


def test_windows_keep_the_devices_ratio_whatever_their_records_take() -> None:
    pools = [Pool(KV, 18_432, device_slots=100_000), Pool(SWA, 5_000, device_slots=80_000)]
    got = shares(4, [*pools, STATES])
    tokens, windows = (slots(got[pool.name], pool.bytes) for pool in pools)
    assert windows / tokens == pytest.approx(0.8, rel=1e-4)


def test_a_given_split_overrides_both_rules() -> None:
    pools = [TOKENS, Pool(SWA, 5_000), STATES]
    given = {KV: 0.5, SWA: 0.2, STATE: 0.3}
    assert shares(10, pools, split=given) == pytest.approx({KV: 5, SWA: 2, STATE: 3})
    with pytest.raises(UsageError, match="names the pools kv, swa, state, but this model has kv;"):
        shares(10, [TOKENS], split=given)


@pytest.mark.parametrize(
    "text",
    [
        "kv=0.8",
        "kv=0.8,state=0.3",
        "kv=0.8,mamba=0.2",
        "kv=0.5,kv=0.5",
        "kv=1,state=0",
        "kv=nan,state=0.2",
        "kv",
        "",
    ],
)
def test_a_split_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"HIQCACHE_SPLIT=.* parts of kv, swa, state that add up"):
        Config.from_env({"HIQCACHE_CODEC": "int8", "HIQCACHE_SPLIT": text})


def test_the_environment_sets_the_rule() -> None:
    given = {"HIQCACHE_SPLIT": "kv=0.8, state=0.2", "HIQCACHE_TOKENS_PER_STATE": "256"}
    config = Config.from_env({"HIQCACHE_CODEC": "int8", **given})
    assert config.split == {KV: 0.8, STATE: 0.2}
    assert config.tokens_per_state == 256
    assert Config.from_env({"HIQCACHE_CODEC": "int8"}).tokens_per_state == TOKENS_PER_STATE


def test_dead_memory_is_named_with_a_split_that_is_not() -> None:
    # SGLang's split of 4 GB by the device's bytes, where L1's tokens were kept few.
    said = dead_memory([TOKENS, STATES], {KV: 2_704, STATE: 310})
    assert said is not None
    assert said.startswith("2,704 tokens are too few for 310 states, of which under 1% will be")
    advised = parse_split(said.partition("HIQCACHE_SPLIT=")[2].split()[0])
    assert advised is not None
    got = shares(4, [TOKENS, STATES], split=advised)
    held = {pool.name: slots(got[pool.name], pool.bytes) for pool in (TOKENS, STATES)}
    assert dead_memory([TOKENS, STATES], held) is None
    # And the other way about, as people report it: 565 states beside 2.68 million tokens.
    said = dead_memory([TOKENS, STATES], {KV: 2_680_000, STATE: 565})
    assert said is not None
    assert said.startswith("565 states are too few for 2,680,000 tokens, of which about 43%")


def test_a_written_split_can_be_read() -> None:
    for parts in ({KV: 0.99999, STATE: 0.00001}, {KV: 1 / 3, SWA: 1 / 3, STATE: 1 / 3}):
        assert parse_split(write_split(parts)) == pytest.approx(parts, abs=2e-4)
