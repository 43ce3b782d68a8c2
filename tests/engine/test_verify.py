"""A bit flips in a live server's L2: with `HIQCACHE_VERIFY=full` no answer comes of it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from http.client import HTTPException
from pathlib import Path

import pytest

from hiqcache.errors import IntegrityError
from hiqcache.lab.serving.client import EngineError
from tests.engine.case import NEW_TOKENS, prompts
from tests.engine.conftest import GPU, L1_TOKENS, probed_server

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
EXIT_SECONDS = 120
ARGUMENTS = ("--hicache-ratio", "4", "--page-size", "16")


# What the flip does to an answer is shown where a server starts in seconds.
@pytest.mark.parametrize("mode", ["full", "off"] if GPU else ["full"])
def test_a_flipped_bit_becomes_an_answer_only_with_verification_off(
    mode: str, model: str, out: Path, tmp_path: Path
) -> None:
    flip = tmp_path / "flip"
    variables = {"HIQCACHE_VERIFY": mode, "PROBE_FLIP": str(flip)}
    texts = prompts(6)
    name = f"verify-{mode}"
    with probed_server(model, out, name, "int8", ARGUMENTS, variables) as probed:
        client, server = probed.server.client, probed.server
        answers = [client.ask(text, NEW_TOKENS) for text in texts]
        assert sum(a.prompt_tokens for a in answers) > L1_TOKENS
        # Untouched, everything comes back, and nothing is found.
        assert client.ask(texts[0], NEW_TOKENS).host_tokens > 0
        assert f"verify={mode}" in server.output()
        found = client.metrics().get("hiqcache_engine_mismatches_total")
        assert found == (0 if mode == "full" else None)
        flip.touch()
        if mode == "off":
            answer = client.ask(texts[1], NEW_TOKENS)
            assert answer.host_tokens > 0 and len(answer.token_ids) == NEW_TOKENS
            assert not flip.exists(), "the probe flipped its bit"
            assert server.exit_code() is None
            assert probed.report()["wrong_rows"] == 1, "and sees what came of it"
            return
        with pytest.raises((EngineError, OSError, HTTPException)):
            client.ask(texts[1], NEW_TOKENS)
        assert not flip.exists(), "the probe flipped its bit"
        assert server.wait_exit(EXIT_SECONDS) == IntegrityError.exit_code
        sentences = [line for line in server.output().splitlines() if "stops the server" in line]
    assert len(sentences) == 1
    assert sentences[0].startswith(
        "HiQCache stops the server: 1 of the tokens and layers that were"
    )
    assert "HIQCACHE_VERIFY=full" in sentences[0]


HOOKED = """
import types
import torch
from hiqcache.config import Config
from hiqcache.engine.hooks import install

install(Config(codec="int8", verify="full"))
from sglang.srt.managers.scheduler_components import batch_result_processor as results
from sglang.srt.managers.tokenizer_manager import SignalHandler
from sglang.srt.runtime_context import get_parallel
from tests.engine.pools import encoded_pool, sglang_context

prefill = results.SchedulerBatchResultProcessor.process_batch_result_prefill
slots = torch.arange(8)
computed = types.SimpleNamespace(copy_done=None)
with sglang_context(), get_parallel().override(attn_tp_size=1):
    pool = encoded_pool(Config(codec="int8", verify="full"), "page_first", page_size=4)
    pool.backup_from_device_all_layer(None, slots, slots, "kernel")
    try:
        prefill(object(), object(), computed)
    except AttributeError:
        print("on into SGLang", flush=True)
    pool.transfer.v.host[1][3, 7] ^= 4
    for layer in range(pool.layer_num):
        pool.load_to_device_per_layer(None, slots, slots, layer, "kernel")
    try:
        prefill(object(), object(), computed)
    except SystemExit as stop:
        print("the scheduler ends with", stop.code, flush=True)
children = [types.SimpleNamespace(exitcode=code) for code in (None, 86)]
watchdog = types.SimpleNamespace(_processes=children)
launcher = types.SimpleNamespace(_subprocess_watchdog=watchdog)
SignalHandler.running_phase_sigquit_handler(types.SimpleNamespace(tokenizer_manager=launcher))
print("unreached")
"""


def test_the_hooks_stop_the_scheduler_and_give_the_launcher_its_code() -> None:
    """In a process of its own: hooks stay."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOOKED],
        cwd=ROOT,
        env=os.environ | {"SGLANG_PLATFORM": "hiqcache_cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["on into SGLang", "the scheduler ends with 86"], done.stderr
    assert done.returncode == 86
    assert "HiQCache stops the server: 1 of the tokens and layers" in done.stderr


def sum_over_two(rank: int, path: str) -> None:
    import torch

    from hiqcache.engine.verification import of_all_ranks

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )
    group = torch.distributed.group.WORLD
    assert of_all_ranks(0, group) == 0
    assert of_all_ranks(3 * rank, group) == 3, "the rank without a mismatch must hear of it"
    torch.distributed.destroy_process_group()


def test_ranks_tell_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = str(tmp_path / "meeting")
    ranks = [context.Process(target=sum_over_two, args=(rank, path)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]
