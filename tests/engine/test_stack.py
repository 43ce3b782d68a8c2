"""Stacks of several pools, put together by SGLang's own assembler and moved by its own engine."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.config import Config
from hiqcache.engine import families
from tests.engine.pools import DEVICE_TOKENS, device_pool, forget_metrics, sglang_context

pytestmark = pytest.mark.engine

CODECS = ("bf16", "int8-compact")
WINDOW_TOKENS = 32
POISON = 0x7FA5


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    with sglang_context():
        yield


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The codec that SGLang's assembler builds its pools with."""
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler

    from hiqcache.engine.host_pool import EncodedHostPool

    forget_metrics()
    monkeypatch.setattr(EncodedHostPool, "config", Config(codec=request.param))
    monkeypatch.setattr(
        hybrid_pool_assembler, "get_mha_host_pool_cls", lambda info: EncodedHostPool
    )
    return get_codec(request.param)


def swa_pool() -> Any:
    """Two layers of full attention, three of windows with other heads."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    return SWAKVPool(
        size=DEVICE_TOKENS,
        size_swa=WINDOW_TOKENS,
        page_size=1,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=64,
        swa_head_num=3,
        swa_head_dim=32,
        swa_v_head_dim=32,
        swa_attention_layer_ids=[0, 2, 3],
        full_attention_layer_ids=[1, 4],
        device="cpu",
    )


def swa_group(drafts: int = 0) -> Any:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_hybrid_swa_group

    pool = swa_pool()
    packed = tuple(device_pool(heads=3, head_dim=32, layers=1) for _ in range(drafts))
    return build_hybrid_swa_group(
        page_size=1,
        full_kv_pool=pool.full_kv_pool,
        swa_kv_pool=pool.swa_kv_pool,
        full_layer_mapping={1: 0, 4: 1},
        swa_layer_mapping={0: 0, 2: 1, 3: 2},
        use_mla=False,
        mtp_swa_device_pools=packed,
    )


def kv_group(drafts: int) -> Any:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_kv_only_group

    pool = device_pool(layers=3)
    return build_kv_only_group(
        page_size=1,
        kv_pool=pool,
        full_layer_mapping={layer: layer for layer in range(3)},
        use_mla=False,
        mtp_draft_device_pools=tuple(device_pool(layers=1) for _ in range(drafts)),
    )


def hybrid_group(drafts: int) -> Any:
    """Attention in layers 3 and 7 of eight: a draft's layer is asked for before the first."""
    from sglang.srt.mem_cache.hybrid_cache.host_pool_config import prepare_host_pool_config
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_host_pool_group

    pool = device_pool(layers=2)
    config = prepare_host_pool_config(
        decls=pool.host_pool_decls(),
        full_layer_mapping={3: 0, 7: 1},
        transfer_layer_id_max=8,
        transfer_page_size=1,
        packed_draft_device_pools=tuple(device_pool(layers=1) for _ in range(drafts)),
    )
    return build_host_pool_group(config=config)


def params_of(cache: Any, **changed: Any) -> Any:
    """What SGLang's assembler is given: the device's pools."""
    fields = {
        "token_to_kv_pool_allocator": SimpleNamespace(get_kvcache=lambda: cache),
        "req_to_token_pool": object(),
        "mtp_draft_device_pools": (),
        "mtp_draft_mamba_pools": (),
        "sidecar_draft_device_pools": (),
        "page_size": 1,
    }
    return SimpleNamespace(**(fields | changed))


def hybrid_pools(drafts: int = 0) -> dict[str, Any]:
    """A model with attention in two layers and state in six, and its packed drafts."""
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool

    states = MambaStateBufferInfo(
        temporal=torch.zeros(6, 9, 4, 16, 16),
        conv=(torch.zeros(6, 9, 96, 3, dtype=torch.bfloat16),),
    )
    info = SimpleNamespace(buffer_info=states, layer_ids=(0, 1, 2, 4, 5, 6))
    requests = object.__new__(HybridReqToTokenPool)
    requests.mamba_pool = SimpleNamespace(
        size=8, host_capacity_tokens=None, get_device_pool_infos=lambda: (info,)
    )
    cache = object.__new__(HybridLinearKVPool)
    cache.full_kv_pool = device_pool(layers=2)
    packed = tuple(device_pool(layers=1) for _ in range(drafts))
    return {
        "cache": cache,
        "req_to_token_pool": requests,
        "mtp_draft_device_pools": packed,
    }


def fill(pools: list[Any]) -> None:
    generator = torch.Generator().manual_seed(5)
    for pool in pools:
        for buffers in (pool.device_k_buffers, pool.device_v_buffers):
            for buffer in buffers:
                buffer.copy_(torch.randn(buffer.shape, generator=generator))


def through_l2(group: Any, layers: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Back up 12 tokens of each pool and restore them elsewhere, as SGLang's controller does.

    Returns the slots of each pool: those backed up, and those restored to.
    """
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.l2_transfer import L2TransferEngine

    controller = object.__new__(HybridCacheController)
    controller.mem_pool_host, controller.transfer_layer_id_max = group, layers
    generator = torch.Generator().manual_seed(7)
    slots = {}
    for entry in group.entries:
        device = torch.randperm(entry.device_pool.size, generator=generator)
        host = torch.randperm(entry.host_pool.size, generator=generator)[:12]
        slots[entry.name] = host, device[:12], device[12:24]
    engine = L2TransferEngine("kernel")
    for direction in ("backup", "restore"):
        part = 1 if direction == "backup" else 2
        anchor, *others = group.entries
        moved = [
            PoolTransfer(
                name=other.name,
                host_indices=slots[other.name][0],
                device_indices=slots[other.name][part],
            )
            for other in others
        ]
        arguments = slots[anchor.name][0], slots[anchor.name][part], moved
        if direction == "backup":
            engine.submit_device_to_host(controller._l2_transfers(*arguments))
            for entry in group.entries:
                poison(entry.host_pool, slots[entry.name][2])
        else:
            engine.submit_host_to_device(
                controller._l2_load_transfers(*arguments), transfer_layer_id_max=layers
            )
    return {str(name.value): (before, after) for name, (_, before, after) in slots.items()}


def poison(pool: Any, slots: torch.Tensor) -> None:
    for buffers in (pool.device_k_buffers, pool.device_v_buffers):
        for buffer in buffers:
            buffer.view(torch.int16)[slots] = POISON


def check_rows(pool: Any, codec: Any, before: torch.Tensor, after: torch.Tensor) -> int:
    """Every restored row is what the codec makes of the row that was backed up."""
    rows = 0
    for layout, buffers in (
        (pool.k_layout, pool.device_k_buffers),
        (pool.v_layout, pool.device_v_buffers),
    ):
        assert len(buffers) == pool.layer_num
        for buffer in buffers:
            expected = codec.decode(codec.encode(buffer[before], layout), layout)
            assert torch.equal(buffer[after].view(torch.int16), expected.view(torch.int16))
            rows += len(after)
    return rows


@pytest.mark.parametrize("drafts", [0, 1])
def test_both_pools_of_a_windowed_model_are_encoded_and_come_back(codec: Any, drafts: int) -> None:
    group = swa_group(drafts)
    full, swa = (group.get_pool(name) for name in group.entry_map)
    assert [full.name, swa.name] == ["kv", "swa"]
    assert (swa.layer_num, swa.drafts) == (3 + drafts, drafts)
    for pool, layers, heads, dim in ((full, 2, 2, 64), (swa, 3 + drafts, 3, 32)):
        records = sum(codec.layout(side, heads, dim).record_bytes for side in ("k", "v"))
        assert pool.size_per_token == layers * records
    # Twice the device's tokens each, SGLang's default ratio, and a page of padding.
    assert (full.size, swa.size) == (2 * DEVICE_TOKENS + 1, 2 * WINDOW_TOKENS + 1)
    fill([full, swa])
    slots = through_l2(group, layers=5)
    for pool in (full, swa):
        assert check_rows(pool, codec, *slots[pool.name]) == 24 * pool.layer_num


@pytest.mark.parametrize("drafts", [1, 2, 4])
@pytest.mark.parametrize("make", [kv_group, hybrid_group])
def test_packed_drafts_come_back_with_the_model(codec: Any, drafts: int, make: Any) -> None:
    """Four drafts over three layers: SGLang asks for the deepest ones beside the last layer."""
    group = make(drafts)
    pool = group.anchor_entry.host_pool
    assert pool.drafts == drafts
    assert pool.storage_format_tag.partition("bfloat16-")[2].startswith(
        f"{pool.target_layer_num}+{drafts}x3x64"
    )
    begun = []
    begin = pool.transfer.begin_restore
    pool.transfer.begin_restore = lambda *slots: (begun.append(1), begin(*slots))
    fill([pool])
    slots = through_l2(group, layers=3 if make is kv_group else 8)
    assert check_rows(pool, codec, *slots["kv"]) == 24 * pool.layer_num
    assert len(begun) == 1


def test_each_pool_has_its_own_series(codec: Any) -> None:
    from prometheus_client import REGISTRY

    group = swa_group()
    pools = [group.get_pool(name) for name in group.entry_map]
    fill(pools)
    through_l2(group, layers=5)
    for pool in pools:
        labels = {"pool": pool.name, **families.rank_labels()}

        def value(name: str, labels: dict[str, str] = labels) -> float | None:
            return REGISTRY.get_sample_value(f"hiqcache_engine_{name}", labels)

        assert value("pool_tokens") == pool.size
        assert value("bytes_per_token") == pool.size_per_token
        assert value("pool_bytes") == pool.k_buffer.nbytes + pool.v_buffer.nbytes
        assert value("restore_operations_total") == 1
        records = 12 * 2 * pool.layer_num
        assert value("backup_records_total") == records
        assert value("restore_records_total") == records


def test_state_beside_the_pool_is_counted_and_left_alone(
    codec: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from prometheus_client import REGISTRY
    from sglang.srt.mem_cache.hicache_storage import PoolName

    from hiqcache.engine.companions import announce_companions, companions

    pool = state_pool(hybrid_pools()["req_to_token_pool"], ratio=2.0)
    found = companions([SimpleNamespace(name=PoolName.MAMBA, host_pool=pool), *kv_group(0).entries])
    (state,) = found
    assert (state.name, state.slots) == ("mamba", 17)
    assert state.slot_bytes == 6 * (4 * 16 * 16 * 4 + 96 * 3 * 2)
    assert state.bytes == pool.temporal_buffer.nbytes + sum(one.nbytes for one in pool.conv_buffer)
    with caplog.at_level("INFO", logger="hiqcache.engine.companions"):
        announce_companions(found)
    assert "mamba (recurrent state and convolution windows, MambaPoolHost) 17 slots of" in (
        caplog.text
    )
    labels = {"pool": "mamba", **families.rank_labels()}
    assert REGISTRY.get_sample_value("hiqcache_engine_companion_bytes", labels) == state.bytes
    assert REGISTRY.get_sample_value("hiqcache_engine_companion_slots", labels) == 17


def state_pool(requests: Any, *, ratio: float = 0.0, gigabytes: float = 0.0) -> Any:
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    (info,) = requests.mamba_pool.get_device_pool_infos()
    return MambaPoolHost(
        info.buffer_info,
        ratio,
        gigabytes,
        device_capacity=8,
        layout="page_first",
        pin_memory=False,
    )


def test_the_budget_knows_what_every_pool_will_take(codec: Any) -> None:
    """Against the pools that SGLang then builds: windows, packed and separate drafts, state."""
    from hiqcache.engine.stack import stack_of

    cache = swa_pool()
    full, swa = stack_of(params_of(cache), codec)
    group = swa_group()
    for pool, name in ((full, "kv"), (swa, "swa")):
        assert pool.name == name
        assert (pool.slot_bytes, pool.rider_bytes) == (group_pool(group, name).size_per_token, 0)
    assert (full.device_slots, swa.device_slots) == (DEVICE_TOKENS, WINDOW_TOKENS)

    (kv,) = stack_of(params_of(device_pool(layers=3)), codec)
    assert kv.slot_bytes == group_pool(kv_group(0), "kv").size_per_token
    draft = device_pool(layers=2)
    (kv,) = stack_of(params_of(device_pool(layers=3), sidecar_draft_device_pools=(draft,)), codec)
    assert kv.rider_bytes * 3 == kv.slot_bytes * 2

    made = hybrid_pools(drafts=1)
    kv, state = stack_of(params_of(made.pop("cache"), **made), codec)
    assert kv.slot_bytes == group_pool(hybrid_group(1), "kv").size_per_token
    assert state.slot_bytes == state_pool(made["req_to_token_pool"], ratio=1.0).size_per_token


def group_pool(group: Any, name: str) -> Any:
    return next(entry.host_pool for entry in group.entries if entry.host_pool.name == name)


@pytest.mark.parametrize("split", [None, {"kv": 0.25, "swa": 0.75}])
def test_a_size_is_shared_by_bytes_as_stored(
    codec: Any, split: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the slot, and with the whole within the size but for SGLang's page of padding."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_hybrid_swa_group

    from hiqcache.budget import shares, slots
    from hiqcache.engine.host_pool import EncodedHostPool
    from hiqcache.engine.stack import stack_of, total_bytes

    cache = swa_pool()
    pools = stack_of(params_of(cache), codec)
    parts = shares(0.002, pools, split=split)
    monkeypatch.setattr(EncodedHostPool, "shares", parts)
    group = build_hybrid_swa_group(
        page_size=1,
        full_kv_pool=cache.full_kv_pool,
        swa_kv_pool=cache.swa_kv_pool,
        full_layer_mapping={1: 0, 4: 1},
        swa_layer_mapping={0: 0, 2: 1, 3: 2},
        use_mla=False,
        # SGLang's own shares, which do not count.
        kv_host_size=0.001,
        swa_host_size=0.001,
    )
    held = {pool.name: group_pool(group, pool.name) for pool in pools}
    assert {name: pool.size for name, pool in held.items()} == {
        pool.name: slots(parts[pool.name], pool.slot_bytes) for pool in pools
    }
    taken = sum(pool.k_buffer.nbytes + pool.v_buffer.nbytes for pool in held.values())
    assert taken == total_bytes(pools, parts, 1)
    assert taken <= 2_000_000 + sum(pool.slot_bytes for pool in pools)
    if split is None:
        assert held["swa"].size / held["kv"].size == pytest.approx(0.5, rel=0.01)


def test_state_gets_its_part_of_the_size(codec: Any, caplog: pytest.LogCaptureFixture) -> None:
    from sglang.srt.mem_cache.hicache_storage import PoolName

    from hiqcache.budget import shares
    from hiqcache.engine.stack import stack_of, warn_of_dead_memory

    made = hybrid_pools()
    pools = stack_of(params_of(made.pop("cache"), **made), codec)
    config = Config(codec=codec.name, tokens_per_state=16)
    parts = shares(0.01, pools, tokens_per_state=16)
    state = state_pool(made["req_to_token_pool"], gigabytes=parts["state"])

    def entries(tokens: int) -> list[Any]:
        return [
            SimpleNamespace(name=PoolName.KV, host_pool=SimpleNamespace(size=tokens)),
            SimpleNamespace(name=PoolName.MAMBA, host_pool=state),
        ]

    with caplog.at_level("WARNING", logger="hiqcache.engine.stack"):
        warn_of_dead_memory(config, pools, entries(16 * state.size))
        assert not caplog.text
        warn_of_dead_memory(config, pools, entries(state.size))
    assert f"{state.size:,} tokens are too few for {state.size:,} states" in caplog.text
    assert "HIQCACHE_SPLIT=kv=" in caplog.text


def test_a_separate_draft_has_a_pool_of_its_own_and_comes_back(codec: Any) -> None:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_full_draft_pools

    group = kv_group(0)
    controller = SimpleNamespace(mem_pool_host=group, transfer_layer_id_max=3, page_size=1)
    specs, entries = build_full_draft_pools(
        draft_kv_pool=device_pool(heads=2, head_dim=32, layers=2),
        tree_cache=SimpleNamespace(cache_controller=controller),
    )
    assert len(specs) == len(entries) == 1
    group.add_entry(entries[0])
    kv, draft = (entry.host_pool for entry in group.entries)
    assert (draft.name, draft.size, draft.layer_num) == ("draft", kv.size, 2)
    fill([kv, draft])
    slots = through_l2(group, layers=3)
    for pool in (kv, draft):
        assert check_rows(pool, codec, *slots[pool.name]) == 24 * pool.layer_num


def test_the_hook_shares_a_size_before_the_stack_is_built(
    codec: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a draft beside the model, whose rows the model's part pays for."""
    from sglang.srt.runtime_context import get_context

    from hiqcache.engine.hooks import all_hooks
    from hiqcache.engine.host_pool import EncodedHostPool

    hooks = {hook.target.rpartition(".")[2]: hook for hook in all_hooks(Config(codec=codec.name))}
    within_budget = hooks["attach_hybrid_pool_to_unified_cache"].function
    state_within_budget = hooks["build_mamba_host_pool"].function
    monkeypatch.setattr(EncodedHostPool, "shares", {})
    made = hybrid_pools()
    params = params_of(
        made.pop("cache"), **made, sidecar_draft_device_pools=(device_pool(layers=2),)
    )
    cache = SimpleNamespace(
        cache_controller=SimpleNamespace(mem_pool_host=SimpleNamespace(entries=[]))
    )
    seen: dict[str, float] = {}

    def build(cache: Any, params: Any) -> None:
        seen.update(EncodedHostPool.shares)
        seen["asked"] = state_within_budget(lambda *, host_size: host_size, host_size=0.5)

    try:
        get_context().override("test", hicache_size=2)
        monkeypatch.setattr("hiqcache.engine.stack.dead_memory", lambda *_, **__: None)
        within_budget(build, cache, params)
        # Rows and the draft's are of one shape and number of layers, so each gets half.
        kv = seen["kv"] * 2 + seen["state"]
        assert kv == pytest.approx(2)
        assert seen["asked"] == seen["state"]
        get_context().override("test", hicache_size=2_000)
        with pytest.raises(SystemExit):
            within_budget(build, cache, params)
        assert "L2 needs 2000" in capsys.readouterr().err
    finally:
        get_context().override("test", hicache_size=0)
