"""A bit flips in a live server's L2: with `HIQCACHE_VERIFY=full` no answer comes of it."""

from __future__ import annotations

import multiprocessing
from http.client import HTTPException
from pathlib import Path

import pytest

from hiqcache.serving.client import EngineError
from tests.engine.conftest import L1_TOKENS, probed_server
from tests.engine.test_restore import NEW_TOKENS, prompts

pytestmark = pytest.mark.engine

EXIT_SECONDS = 120
ARGUMENTS = ("--hicache-ratio", "4", "--page-size", "16")


@pytest.mark.parametrize("mode", ["full", "off"])
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
        assert server.wait_exit(EXIT_SECONDS) == 3
        sentences = [line for line in server.output().splitlines() if "stops the server" in line]
    assert len(sentences) == 1
    assert sentences[0].startswith(
        "HiQCache stops the server: 1 of the tokens and layers that were"
    )
    assert "HIQCACHE_VERIFY=full" in sentences[0]


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
