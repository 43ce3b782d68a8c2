"""The last line of refusals, on real device pools: what only the buffers can tell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hiqcache.engine
from hiqcache.engine.companions import COMPANIONS
from tests.engine.pools import sglang_context

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def device_pool() -> Iterator[Any]:
    """Builds SGLang's own device pools in this process, on the reference platform."""
    os.environ["SGLANG_PLATFORM"] = "hiqcache_cpu"
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    def build(
        dtype: torch.dtype = torch.bfloat16,
        head_dim: int = 64,
        layer_num: int = 2,
        **options: Any,
    ) -> Any:
        return MHATokenToKVPool(
            size=64,
            page_size=1,
            dtype=dtype,
            head_num=3,
            head_dim=head_dim,
            layer_num=layer_num,
            device="cpu",
            enable_memory_saver=False,
            **options,
        )

    yield build


def refusal(pool: Any, **overrides: Any) -> str:
    from hiqcache.engine.refusals import Refusal, refuse_pool

    arguments = {"layout": "page_first", "label": "kv", "codec": "int8"}
    info = pool.get_device_pool_infos()[0].buffer_info
    try:
        refuse_pool(info, **(arguments | overrides))
    except Refusal as refused:
        return str(refused)
    return ""


def test_a_plain_pool_is_taken(device_pool: Any) -> None:
    for layout in ("layer_first", "page_first"):
        assert refusal(device_pool(), layout=layout) == ""
        assert refusal(device_pool(torch.float16), layout=layout) == ""
    assert refusal(device_pool(v_head_dim=32)) == ""
    for label in ("full", "swa", "draft", "draft_swa"):
        assert refusal(device_pool(), label=label) == ""


@pytest.mark.parametrize(
    ("options", "overrides", "words"),
    [
        ({}, {"label": "cross"}, "'cross' KV pool"),
        ({"layer_num": 0}, {}, "the 'kv' pool of this model has none"),
        ({}, {"layout": "page_head"}, "layer_first and page_first, got page_head"),
        ({"dtype": torch.float32}, {}, "or float16 device KV cache, got torch.float32"),
        (
            {"dtype": torch.float8_e4m3fn},
            {},
            "float16 device KV cache, got torch.uint8 (quantised)",
        ),
        ({"head_dim": 60}, {}, "multiple of 8, got K heads of 60"),
        ({"v_head_dim": 20}, {}, "multiple of 8, got V heads of 20"),
        ({"kv_cache_layout": "hnd"}, {}, "NHD device layout"),
    ],
)
def test_other_pools_are_refused_by_name(
    device_pool: Any, options: dict[str, Any], overrides: dict[str, Any], words: str
) -> None:
    assert words in refusal(device_pool(**options), **overrides)


@pytest.mark.parametrize(
    ("backend", "extra", "words"),
    [
        ("nixl", None, "backend file, dynamic, mooncake, got nixl"),
        ("hf3fs", "{}", "backend file, dynamic, mooncake, got hf3fs"),
        ("sim", None, "backend file, dynamic, mooncake, got sim"),
        ("dynamic", '{"interface_v1": 1}', "got interface_v1 in .* set it to 0"),
        ("dynamic", "{interface", "expected JSON, or @ and a file of options"),
        ("dynamic", "@missing.json", "expected JSON, or @ and a file of options"),
    ],
)
def test_other_l3_backends_are_refused_by_name(backend: str, extra: str | None, words: str) -> None:
    from hiqcache.engine.options import Refusal, refuse_l3

    with pytest.raises(Refusal, match=words):
        refuse_l3(backend, extra, "int8")


def test_tested_l3_backends_are_taken() -> None:
    from hiqcache.engine.options import refuse_l3

    refuse_l3("file", None, "int8")
    refuse_l3("file", '{"prefetch_threshold": 16}', "int8")
    refuse_l3("dynamic", '{"module_path": "a", "class_name": "B", "backend_name": "c"}', "int8")


def test_verification_is_refused_over_pipeline_stages() -> None:
    from hiqcache.engine.options import Refusal, refuse_verification

    refuse_verification(SimpleNamespace(pp_size=2), "off")
    refuse_verification(SimpleNamespace(pp_size=1), "full")
    with pytest.raises(Refusal, match="HIQCACHE_VERIFY=full supports one .* got --pp-size 2"):
        refuse_verification(SimpleNamespace(pp_size=2), "full")


def test_device_layouts_that_sglang_builds_elsewhere_are_refused(device_pool: Any) -> None:
    """Vectorised rows need an AMD card, scales and relocation a quantised or a unified pool."""
    from msgspec.structs import replace
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVScaleBuffers, KVScaleLayout

    from hiqcache.engine.refusals import Refusal, refuse_pool

    info = device_pool().get_device_pool_infos()[0].buffer_info
    scales = KVScaleBuffers(k=info.buffers.k, v=info.buffers.v, layout=KVScaleLayout.TOKEN)
    for changed, words in (
        (
            {"buffers": replace(info.buffers, layout=KVBufferLayout.VECTORIZED_5D)},
            "NHD device layout (token, head, dim), got vectorized_5d",
        ),
        (
            {"buffers": replace(info.buffers, layout=KVBufferLayout.PAGED_NHD)},
            "NHD device layout (token, head, dim), got paged_nhd",
        ),
        ({"scales": scales}, "got torch.bfloat16 with scales"),
        ({"transfer_buffers": lambda: None}, "relocatable device KV pools, whose rows move"),
    ):
        with pytest.raises(Refusal) as refused:
            refuse_pool(
                replace(info, **changed),
                layout="page_first",
                label="kv",
                codec="int8",
            )
        assert words in str(refused.value)
        assert "HIQCACHE_CODEC=off" in str(refused.value)


def host_pools() -> list[type]:
    from importlib import import_module
    from inspect import isabstract

    from sglang.srt.mem_cache.pool_host.base import HostKVCache

    for name in ("dsa", "mamba", "mha", "mha_mxfp8", "minimax_m3_nvfp4", "mla", "qsa", "unified"):
        import_module(f"sglang.srt.mem_cache.pool_host.{name}")
    kinds, found = [HostKVCache], []
    while kinds:
        kinds += (kind := kinds.pop()).__subclasses__()
        if kind.__module__.startswith("sglang") and not isabstract(kind):
            found.append(kind)
    return found


def hook(target: str) -> Any:
    """The function that HiQCache puts there."""
    from hiqcache.config import Config
    from hiqcache.engine.hooks import all_hooks

    found = [one for one in all_hooks(Config(codec="int8")) if one.target.endswith(target)]
    assert len(found) == 1
    return found[0].function


def test_every_host_pool_of_sglang_but_the_listed_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = host_pools()
    assert len(kinds) > 10
    companions = {kind for kind in kinds if kind.__name__ in COMPANIONS}
    for kind in set(kinds) - companions:
        # Both ways in: the pools' common constructor, and the finished cache.
        pool = object.__new__(kind)
        with pytest.raises(SystemExit):
            hook("HostKVCache.__init__")(pool)
        assert f"SGLang's {kind.__name__}, which would store" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            hook("create_tree_cache")(cache_with(pool), None)
        assert f"SGLang's {kind.__name__}, which would store" in capsys.readouterr().err


def test_the_listed_companions_are_sglangs_own_classes() -> None:
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost
    from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost

    kinds = (MambaPoolHost, MHATokenToKOnlyPoolHost, QSAIndexerPoolHost)
    assert {kind.__name__ for kind in kinds} == set(COMPANIONS)
    for kind in kinds:
        hook("HostKVCache.__init__")(object.__new__(kind))
    # A class that only has the name is a stranger.
    stranger = type("MambaPoolHost", (), {})()
    with pytest.raises(SystemExit):
        hook("HostKVCache.__init__")(stranger)


def cache_with(*pools: Any) -> Any:
    """A prefix cache of SGLang's with these host pools, or without an L2."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    cache = object.__new__(UnifiedRadixCache)
    if pools:
        entries = [
            SimpleNamespace(host_pool=pool, name=SimpleNamespace(value="kv")) for pool in pools
        ]
        cache.cache_controller = SimpleNamespace(mem_pool_host=SimpleNamespace(entries=entries))
    return cache


def test_a_finished_cache_must_have_encoded_pools_and_none_but_companions_beside_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    from hiqcache.engine.host_pool import EncodedHostPool

    ours, state, rows = (
        object.__new__(kind) for kind in (EncodedHostPool, MambaPoolHost, MLATokenToKVPoolHost)
    )
    state.size, state.size_per_token = 3, 64
    with sglang_context():
        hook("create_tree_cache")(cache_with(ours, ours, state), None)
    hook("HostKVCache.__init__")(ours)
    for cache, words in (
        (cache_with(ours, state, rows), "SGLang's MLATokenToKVPoolHost, which would store"),
        (cache_with(state), "SGLang's MambaPoolHost, which would store"),
        (cache_with(), "SGLang built a UnifiedRadixCache without one"),
    ):
        with pytest.raises(SystemExit) as stopped:
            hook("create_tree_cache")(cache, None)
        assert stopped.value.code == 1
        said = capsys.readouterr().err
        assert said.startswith("HiQCache stops the start: ") and said.count("\n") == 1
        assert words in said and "HIQCACHE_CODEC=off" in said


def test_l3_is_refused_for_a_stack_while_the_server_runs() -> None:
    from hiqcache.engine.host_pool import EncodedHostPool

    def pool(name: str, drafts: int = 0) -> Any:
        one = object.__new__(EncodedHostPool)
        one.name, one.layer_num, one.target_layer_num = name, 2 + drafts, 2
        return one

    attach = hook("UnifiedRadixCache.attach_storage_backend")
    for cache, names in (
        (cache_with(pool("kv"), pool("swa")), "kv, swa"),
        (cache_with(pool("kv", drafts=1)), "kv"),
    ):
        done, said = attach(lambda *_, **__: (True, ""), cache, "file")
        assert not done
        assert f"one pool without draft layers, got {names}: attach no storage" in said
    assert attach(lambda *_, **__: (True, ""), cache_with(pool("kv")), "file") == (True, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_hierarchical_cache": False}, "add --enable-hierarchical-cache"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2: expected one of auto, bf16"),
        ({"kv_cache_dtype": "fp4_e2m1"}, "--kv-cache-dtype fp4_e2m1: expected one of auto, bf16"),
        ({"radix_cache_backend": "mine"}, "--radix-cache-backend mine, which puts a cache without"),
        ({"enable_flexkv": True}, "--enable-flexkv True, which puts a cache without"),
        (
            {"speculative_algorithm": "DFLASH"},
            "EAGLE, EAGLE3, NEXTN, NGRAM, STANDALONE, got DFLASH",
        ),
        (
            {"speculative_algorithm": "EAGLE", "hicache_storage_backend": "file"},
            "L3 beside draft layers, got --speculative-algorithm EAGLE and",
        ),
        (
            {"hicache_io_backend": "direct", "hicache_mem_layout": "page_first"},
            "layer_first and page_first, got page_first_direct",
        ),
        ({"enable_unified_memory": True}, "does not support --enable-unified-memory"),
        ({"disaggregation_mode": "prefill"}, "got --disaggregation-mode prefill: remove it"),
        ({"disaggregation_mode": "decode"}, "got --disaggregation-mode decode: remove it"),
    ],
    ids=str,
)
def test_arguments_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    from sglang.srt.server_args import ServerArgs

    from hiqcache.engine.options import Refusal, refuse_arguments

    taken = {"model_path": "dummy", "enable_hierarchical_cache": True}
    refuse_arguments(ServerArgs(**taken), "int8")
    with pytest.raises(Refusal) as refused:
        refuse_arguments(ServerArgs(**(taken | options)), "int8")
    assert words in str(refused.value)
    assert str(refused.value).endswith("or set HIQCACHE_CODEC=off to run without HiQCache")


def test_a_checkpoint_that_asks_for_fp8_kv_is_refused_before_its_weights_load(
    tmp_path: Path,
) -> None:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import ServerArgs

    from hiqcache.engine.options import Refusal, refuse_checkpoint
    from hiqcache.engine.refusals import model_folder

    scheme = {"type": "float", "num_bits": 8, "strategy": "tensor"}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    args = ServerArgs(model_path=str(tmp_path))
    model = ModelConfig(str(tmp_path))
    folder = model_folder(model)
    assert folder == tmp_path
    with pytest.raises(Refusal, match="kv_cache_scheme of 8-bit floats.*--kv-cache-dtype bfloat16"):
        refuse_checkpoint(args, model.hf_config.to_dict(), folder, "int8")
    overruled = ServerArgs(model_path=str(tmp_path), kv_cache_dtype="bfloat16")
    refuse_checkpoint(overruled, model.hf_config.to_dict(), folder, "int8")


def test_doctor_reads_the_arguments_with_sglangs_names_and_defaults() -> None:
    import argparse
    from dataclasses import fields

    from sglang.srt.server_args import ServerArgs

    from hiqcache.engine.options import OTHER_NAMES, Options

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    theirs = {action.dest: action for action in parser._actions}
    resolved = ServerArgs(model_path="dummy")
    for field in fields(Options):
        ours = field.default
        assert ours in (theirs[field.name].default, getattr(resolved, field.name)), field.name
        names = {name for name, meant in OTHER_NAMES.items() if meant == field.name}
        names.add(f"--{field.name.replace('_', '-')}")
        assert names == set(theirs[field.name].option_strings)


def test_the_types_of_rows_are_the_codecs() -> None:
    from hiqcache.codec.row import SIXTEEN_BIT_ROWS
    from hiqcache.engine.options import DEVICE_KV

    assert " or ".join(str(dtype).removeprefix("torch.") for dtype in SIXTEEN_BIT_ROWS) == DEVICE_KV


SMALL = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


@pytest.mark.parametrize(
    ("config", "one_pool", "words"),
    [
        ({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}, False, ""),
        ({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}, False, ""),
        (
            {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"},
            False,
            "layers of GptOssForCausalLM in a pool of their own: remove --hicache-storage-backend",
        ),
        ({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}, True, ""),
        (
            {
                "architectures": ["MiMoV2FlashForCausalLM"],
                "model_type": "mimo_v2_flash",
                "hybrid_layer_pattern": [1, 0, 1, 0],
            },
            False,
            "layers of MiMoV2FlashForCausalLM in a pool of their own: remove --hicache-storage",
        ),
        (
            {
                "architectures": ["Qwen3NextForCausalLM"],
                "model_type": "qwen3_next",
                "layer_types": ["linear_attention", "full_attention"] * 2,
            },
            False,
            "Qwen3NextForCausalLM has recurrent state in a pool of its own: remove --hicache-st",
        ),
        (
            {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "layer_types": None},
            False,
            "Lfm2ForCausalLM has recurrent state in a pool of its own: remove --hicache-storage",
        ),
        (
            {
                "architectures": ["DeepseekV2ForCausalLM"],
                "model_type": "deepseek_v2",
                "kv_lora_rank": 32,
                "q_lora_rank": None,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
            },
            False,
            "got MLA attention (DeepseekV2ForCausalLM): use another model",
        ),
    ],
    ids=lambda value: value["architectures"][0] if isinstance(value, dict) else None,
)
def test_mla_is_refused_before_weights_load_and_other_pools_with_l3(
    config: dict[str, Any], one_pool: bool, words: str, tmp_path: Path
) -> None:
    from sglang.srt.configs.model_config import ModelConfig

    (tmp_path / "config.json").write_text(json.dumps(SMALL | config))
    model = ModelConfig(str(tmp_path), disable_hybrid_swa_memory=one_pool)
    said = model_refusal(model, "file")
    assert bool(said) == bool(words)
    assert words in said
    assert model_refusal(model, None) == (said if "MLA" in words else "")
    layer_first = model_refusal(model, None, "layer_first")
    assert ("--hicache-mem-layout page_first alone, got" in layer_first) == ("state" in words)


def model_refusal(model: Any, backend: str | None, layout: str = "page_first") -> str:
    from hiqcache.engine.refusals import Refusal, refuse_model

    try:
        refuse_model(model, backend, layout, "int8")
    except Refusal as refused:
        return str(refused)
    return ""


def test_a_release_without_what_the_hooks_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache import device_pool_info

    from hiqcache.config import Config
    from hiqcache.engine.hooks import all_hooks
    from hiqcache.errors import HiQCacheError

    # As in 0.5.22, where a host pool is built from the device pool itself.
    monkeypatch.delattr(device_pool_info, "MHABufferInfo")
    monkeypatch.delitem(sys.modules, "hiqcache.engine.refusals", raising=False)
    monkeypatch.delattr(hiqcache.engine, "refusals", raising=False)
    with pytest.raises(
        HiQCacheError,
        match=r"SGLang 0\.5\.23 lacks what HiQCache attaches to \(cannot import name "
        r"'MHABufferInfo'.* install the SGLang",
    ):
        all_hooks(Config(codec="int8"))


def test_a_size_that_fits_is_named() -> None:
    from hiqcache.engine.refusals import Refusal, refuse_memory

    gib = 1 << 30
    refuse_memory(8 * 10**9, 8 * 10**9, 10 * gib)
    with pytest.raises(Refusal, match=r"8\.00 GB .* 5\.90 GB are free after the 10 GiB .* 5 or"):
        refuse_memory(8 * 10**9, 5_900_000_000, 10 * gib)
    with pytest.raises(Refusal, match="give the machine or container more memory"):
        refuse_memory(8 * 10**9, -gib, 10 * gib)
