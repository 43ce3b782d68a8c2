"""Pages belong to the weights that made them, on real servers, by every way to change weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.case import prompts
from tests.engine.l3 import FILE, NEW_TOKENS, PAGE, L3Server, l3_server, pages, settled
from tests.engine.other_weights import (
    from_disk,
    from_distributed,
    from_tensor,
    other_checkpoint,
)

pytestmark = pytest.mark.engine

NAME = ("--served-model-name", "one-name-for-all")
CODEC = "bf16"
"""Loses nothing: what is restored answers as what was in L1."""
SAME = 0.01


@dataclass(frozen=True)
class Answer:
    """Where a prompt's KV came from, and the first token's log probability."""

    cached: dict[str, int]
    prompt_tokens: int
    logprob: float

    @property
    def whole(self) -> int:
        return (self.prompt_tokens - 1) // PAGE * PAGE


class Server:
    """One server, its two checkpoints and the folder of its L3."""

    def __init__(self, l3: L3Server, folder: Path, mine: Path, other: Path) -> None:
        self.l3, self.folder, self.mine, self.other = l3, folder, mine, other

    def ask(self, text: str, **fields: str) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        body = {"text": text, "sampling_params": sampling, "return_logprob": True, **fields}
        status, answer = self.l3.admin("POST", "/generate", body)
        assert status == 200, answer
        meta = json.loads(answer)["meta_info"]
        found = meta.get("cached_tokens_details") or {}
        cached = {tier: count for tier, count in found.items() if isinstance(count, int) and count}
        return Answer(cached, meta["prompt_tokens"], meta["output_token_logprobs"][0][0])

    def hit(self, text: str) -> Answer:
        """Asked once more: the rest of the prompt is computed from L1, as it is from L3."""
        answer = self.ask(text)
        assert answer.cached == {"device": answer.whole}
        return answer

    def stored(self) -> int:
        return settled(lambda: len(pages(self.folder)))

    def restored(self, text: str, **fields: str) -> Answer:
        """Asked with empty L1 and L2."""
        self.stored()
        self.l3.forget()
        return self.ask(text, **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("l3-weights")


@pytest.fixture(scope="module")
def other(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_checkpoint(Path(model), tmp_path_factory.mktemp("checkpoint") / "other")


@pytest.fixture(scope="module")
def server(model: str, other: Path, out: Path, folder: Path) -> Iterator[Server]:
    variables = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder)}
    arguments = (*FILE, *NAME)
    with l3_server(model, out, "l3-weights", CODEC, arguments, **variables) as served:
        yield Server(served, folder, Path(model), other)


@pytest.mark.parametrize("update", [from_disk, from_tensor, from_distributed])
def test_after_an_update_pages_of_the_old_weights_miss(
    update: Callable[[L3Server, Path], None], server: Server
) -> None:
    text = prompts(3)[(from_disk, from_tensor, from_distributed).index(update)]
    server.ask(text)
    mine = server.hit(text)
    before = server.restored(text)
    assert before.cached == {"storage": before.whole}
    assert before.logprob == pytest.approx(mine.logprob, abs=SAME)
    update(server.l3, server.other)
    assert server.ask(text).cached == {}
    other = server.hit(text)
    assert abs(other.logprob - mine.logprob) > 10 * SAME, "these weights answer something else"
    # Pages of the new weights are theirs, and those of the old ones are still there for them.
    again = server.restored(text)
    assert again.cached == {"storage": again.whole}
    assert again.logprob == pytest.approx(other.logprob, abs=SAME)
    update(server.l3, server.mine)
    back = server.ask(text)
    assert back.cached == {"storage": back.whole}
    assert back.logprob == pytest.approx(mine.logprob, abs=SAME)


def test_without_empty_caches_l3_is_left_alone_until_they_are(server: Server) -> None:
    known, fresh = prompts(5)[3:]
    before = server.ask(known)
    stored = server.stored()
    from_disk(server.l3, server.other, flush=False)
    server.ask(fresh)
    server.l3.forget()
    assert len(pages(server.folder)) == stored, "written under no name or the wrong one"
    assert server.ask(known).cached == {}
    from_disk(server.l3, server.mine)
    assert server.ask(known).cached == {"storage": before.whole}


def test_another_salt_misses(server: Server) -> None:
    text = prompts(6)[5]
    mine = server.ask(text, cache_salt="tenant-a")
    assert server.restored(text, cache_salt="tenant-b").cached == {}
    assert server.ask(text).cached == {}
    assert server.restored(text, cache_salt="tenant-a").cached == {"storage": mine.whole}


def test_a_restart_with_other_weights_misses_and_the_path_does_not_matter(
    server: Server, out: Path, tmp_path: Path
) -> None:
    text, unknown = prompts(7)[0], prompts(7)[6]
    # Stored by the weights of `server.mine` alone, and by both.
    server.ask(unknown)
    server.stored()
    elsewhere = shutil.copytree(server.other, tmp_path / "elsewhere")
    variables = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(server.folder)}
    arguments = (*FILE, *NAME)
    with l3_server(
        str(elsewhere), out, "l3-weights-restart", CODEC, arguments, **variables
    ) as served:
        restarted = Server(served, server.folder, server.mine, server.other)
        assert restarted.ask(unknown).cached == {}
        answer = restarted.ask(text)
        assert answer.cached == {"storage": answer.whole}
