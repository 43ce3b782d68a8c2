"""Stages from lines that SGLang 0.5.23 printed on an H200 and on the CPU."""

from __future__ import annotations

import pytest

from hiqcache.pod.stage import Stage, last_stage, last_words

ON_GPU = """\
[2026-11-30 03:39:58] Init torch distributed begin.
[2026-11-30 03:40:00] Load weight begin. avail mem=134.27 GB
[2026-11-30 03:40:00] Load weight end. elapsed=0.20 s, type=Qwen3ForCausalLM, avail mem=119.00 GB
[2026-11-30 03:40:01] Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 8]
[2026-11-30 03:40:48] Capture target prefill CUDA graph end. elapsed=47.69 s, mem usage=20.71 GB
[2026-11-30 03:40:48] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1
[2026-11-30 03:40:51] Capture target decode CUDA graph end. bs=[1, 2, 4, 8], elapsed=2.45 s
[2026-11-30 03:40:51] Allocating kv hierarchical KV host pool: 33909 tokens, 5.00 GB host memory.
[2026-11-30 03:40:53] INFO:     Uvicorn running on http://127.0.0.1:35129 (Press CTRL+C to quit)
[2026-11-30 03:40:55] The server is fired up and ready to roll!
""".splitlines()

ON_CPU = """\
[2026-11-30 06:04:06] Load weight begin. avail mem=19.77 GB
[2026-11-30 06:04:06] Load weight end. elapsed=0.19 s, type=LlamaForCausalLM, avail mem=19.56 GB
[2026-11-30 06:04:09] Allocating kv hierarchical KV host pool: 18336 tokens, 0.42 GB host memory.
[2026-11-30 06:04:09] HiQCache: codec=bf16 transfer=torch (the only transfer for cpu tensors)
[2026-11-30 06:04:11] The server is fired up and ready to roll!
""".splitlines()


@pytest.mark.parametrize(
    ("lines", "stages"),
    [
        (
            ON_GPU,
            [
                Stage.STARTING,
                *[Stage.LOADING] * 2,
                *[Stage.CAPTURING] * 4,
                *(Stage.PINNING, Stage.WARMING, Stage.READY),
            ],
        ),
        (ON_CPU, [Stage.LOADING, Stage.LOADING, Stage.PINNING, Stage.WARMING, Stage.READY]),
    ],
    ids=["GPU", "CPU"],
)
def test_the_stage_after_each_line(lines: list[str], stages: list[Stage]) -> None:
    assert [last_stage(lines[: n + 1]) for n in range(len(lines))] == stages
    assert last_stage([]) == Stage.STARTING


def test_a_rank_that_lags_does_not_turn_the_clock_back() -> None:
    assert last_stage(["Allocating kv hierarchical KV host pool: 1 tokens", ON_GPU[1]]) == (
        Stage.PINNING
    )


def test_last_words_are_the_refusal_where_there_is_one() -> None:
    refusal = "HiQCache stops the start: HIQCACHE_CODEC=int8 encodes a bfloat16 device KV cache"
    noise = [f"line {n}" for n in range(40)]
    # Once for every process that said it.
    assert last_words([*noise, refusal, *noise, refusal]) == [refusal]
    stopped = "HiQCache stops the server: 1 of the tokens and layers that were read from L2 are not"
    assert last_words([*noise, stopped, *noise]) == [stopped]
    check = "failed   model            there is no /models/none: correct --model-path"
    assert last_words([check, ""]) == [check]
    assert last_words(noise) == noise[-12:]
