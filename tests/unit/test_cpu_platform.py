"""The reference CPU platform: what it computes in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sglang", reason="the platform is a class of SGLang's")


@pytest.mark.parametrize(
    ("fast", "asked", "given"),
    [
        (False, ("auto", "auto"), ("float32", "bfloat16")),
        (True, ("auto", "auto"), ("auto", "auto")),
        (False, ("float16", "auto"), ("float16", "auto")),
        (False, ("auto", "bfloat16"), ("auto", "bfloat16")),
    ],
)
def test_a_processor_slow_at_bfloat16_computes_in_float32(
    fast: bool,
    asked: tuple[str, str],
    given: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hiqcache.engine.cpu_platform import CpuReferencePlatform

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: fast)
    args = SimpleNamespace(dtype=asked[0], kv_cache_dtype=asked[1])
    CpuReferencePlatform().apply_server_args_defaults(args)
    assert (args.dtype, args.kv_cache_dtype) == given
