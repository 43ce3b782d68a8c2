"""What `hybrids` reads from a config.json, against SGLang's own reading of the same file."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

from hiqcache.budget import KV, STATE, SWA, TOKENS_PER_STATE
from hiqcache.errors import UsageError
from hiqcache.hybrids import StackGeometry
from tests.engine.pools import sglang_context
from tests.engine.small_models import (
    GEMMA3,
    GPT_OSS,
    GRANITE_HYBRID,
    MELLUM,
    QWEN3_NEXT,
    SMALL,
    WIDER,
    SmallModel,
)

pytestmark = pytest.mark.engine

FALCON_H1 = SmallModel(
    "falcon-h1",
    {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "num_hidden_layers": 3,
        "head_dim": 16,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 32,
        "mamba_n_groups": 2,
        "mamba_d_conv": 4,
        "mamba_d_ssm": 128,
        "mamba_expand": 2,
    },
)
NEMOTRON_H = SmallModel(
    "nemotron-h",
    {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*-M",
        "num_hidden_layers": 6,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 32,
        "n_groups": 2,
        "conv_kernel": 4,
    },
)
LFM2 = SmallModel(
    "lfm2",
    {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "conv_L_cache": 3,
    },
)
QWEN3_NEXT_80B = SmallModel(
    "qwen3-next-80b",
    QWEN3_NEXT.config
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "layer_types": None,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
)


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    from sglang.srt.runtime_context import get_parallel

    with sglang_context(), get_parallel().override(attn_tp_size=1):
        yield


def config_class(kind: str) -> Any:
    from sglang.srt import configs

    return {
        "qwen3_next": configs.Qwen3NextConfig,
        "granitemoehybrid": configs.GraniteMoeHybridConfig,
        "falcon_h1": configs.FalconH1Config,
        "nemotron_h": configs.NemotronHConfig,
        "lfm2": configs.Lfm2Config,
    }[kind]


@pytest.mark.parametrize(
    "model",
    [QWEN3_NEXT, QWEN3_NEXT_80B, GRANITE_HYBRID, FALCON_H1, NEMOTRON_H, LFM2],
    ids=lambda model: model.name,
)
def test_states_are_as_large_as_sglang_makes_them(model: SmallModel) -> None:
    config = config_class(model.config["model_type"])(**model.full_config)
    params = config.mamba2_cache_params
    expected = len(params.layers) * (
        prod(params.shape.temporal) * params.dtype.temporal.itemsize
        + sum(prod(conv) for conv in params.shape.conv) * params.dtype.conv.itemsize
    )
    stack = StackGeometry.from_config(model.full_config, model.name)
    assert stack.state is not None
    assert stack.state.bytes() == expected
    assert stack.kv.layers == len(config.full_attention_layer_ids)
    assert stack.windows is None
    assert {pool.name for pool in stack.pools("int8-compact")} == {KV, STATE}


@pytest.mark.parametrize("model", [GPT_OSS, MELLUM], ids=lambda model: model.name)
def test_windows_are_told_from_full_attention(model: SmallModel) -> None:
    from sglang.srt.configs.model_config import get_hybrid_layer_ids
    from transformers import PretrainedConfig

    config = PretrainedConfig(**model.full_config)
    windows, full = get_hybrid_layer_ids(model.config["architectures"], config)
    stack = StackGeometry.from_config(model.full_config, model.name)
    assert stack.windows is not None
    assert (stack.kv.layers, stack.windows.layers) == (len(full), len(windows))
    assert {pool.name for pool in stack.pools("int8-compact")} == {KV, SWA}


def test_a_plain_model_is_a_stack_of_one() -> None:
    stack = StackGeometry.from_config(GEMMA3.full_config, "gemma3")
    assert stack.windows is None and stack.state is None
    assert stack.kv.layers == 6


def test_a_model_without_attention_is_no_stack() -> None:
    config = SMALL | LFM2.config | {"layer_types": ["conv"] * 4}
    with pytest.raises(UsageError, match="no layer of full attention"):
        StackGeometry.from_config(config, "convolutions")


def test_capacity_is_within_the_size_and_follows_the_rule() -> None:
    stack = StackGeometry.from_config(QWEN3_NEXT_80B.full_config, "qwen3-next-80b")
    held = stack.capacity("int8-compact", 64)
    assert held[KV].slot_bytes == 12 * 2 * 528
    assert held[KV].slots / held[STATE].slots == pytest.approx(TOKENS_PER_STATE, rel=0.01)
    total = sum(pool.bytes for pool in held.values())
    assert 64e9 - held[STATE].slot_bytes < total <= 64e9 + held[STATE].slot_bytes + 20_000
    # More tokens and more states than rows as they are leave room for.
    plain = stack.capacity("bf16", 64)
    assert all(held[name].slots > plain[name].slots for name in held)
    # A separate draft is paid for by the tokens.
    draft = StackGeometry.from_config(SMALL | WIDER["qwen3"] | {"num_hidden_layers": 4}, "draft").kv
    less = stack.capacity("int8-compact", 64, draft=draft)
    assert less[KV].slots < held[KV].slots and less[STATE].slots < held[STATE].slots
