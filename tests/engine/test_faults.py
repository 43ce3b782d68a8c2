"""Faults, one by one, on one real server: docs/faults.md says what must come of each.

The tests run in the order of the file, and the last one kills the server.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hiqcache.lab.experiment.measure import Unusable, empty
from hiqcache.lab.serving.client import Client
from hiqcache.lab.workload.documents import load_documents
from tests.engine.conftest import Probed, probed_server
from tests.engine.probe.hiqcache_probe import WRONG
from tests.engine.soak.processes import role, tree
from tests.engine.soak.soak import left
from tests.engine.soak.traffic import hang_up

pytestmark = pytest.mark.engine

L1 = 1536
CODEC = "int8-compact"
LAYER_DELAY = 0.02
NEW_TOKENS = 4
DEATH_SECONDS = 30
ARGUMENTS = (
    *("--max-total-tokens", str(L1)),
    *("--hicache-ratio", "1.2"),
    # An eviction from L1 has to find room in L2 at that moment.
    *("--hicache-write-policy", "write_back"),
    *("--chunked-prefill-size", "256"),
)


@pytest.fixture(scope="module")
def delay(out: Path) -> Iterator[Path]:
    """Restores are slow while this file says how slow."""
    path = out / "faults.delay"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def probed(model: str, out: Path, delay: Path) -> Iterator[Probed]:
    environment = {"PROBE_DELAY": str(delay)}
    with probed_server(model, out, "faults", CODEC, ARGUMENTS, environment) as probed:
        yield probed


def excerpts(count: int, skip: int = 0) -> list[str]:
    """Beginnings of documents, about 300 tokens each."""
    documents = load_documents()[skip : skip + count]
    return [document.text[: len(document.text) // 3] for document in documents]


def nothing_is_wrong(probed: Probed) -> None:
    report = probed.report()
    assert report["restored_rows"] > 0
    assert not any(report[name] for name in WRONG), {name: report[name] for name in WRONG}
    assert "Traceback" not in probed.server.output()


def test_a_full_host_pool_evicts_its_oldest_and_serves(probed: Probed) -> None:
    client = probed.server.client
    texts = excerpts(12)
    for text in texts:
        client.ask(text, NEW_TOKENS)
    report = probed.report()
    asked = sum(client.ask(text, NEW_TOKENS).prompt_tokens for text in texts[:1])
    assert report["tokens"] - report["free_tokens"] > report["tokens"] - asked, "L2 is full"
    assert client.ask(texts[-5], NEW_TOKENS).host_tokens > 0, "what came last is still there"
    assert client.ask(texts[0], NEW_TOKENS).token_ids
    nothing_is_wrong(probed)


def test_a_restore_that_is_late_is_waited_for(probed: Probed, delay: Path) -> None:
    client = probed.server.client
    client.flush()
    texts = excerpts(8)
    for text in texts:
        client.ask(text, NEW_TOKENS)
    delay.write_text(str(LAYER_DELAY))
    restored = sum(client.ask(text, NEW_TOKENS).host_tokens for text in texts[2:5])
    delay.unlink()
    report = probed.report()
    assert restored > 0
    assert report["delayed_layers"] >= report["layers"]
    nothing_is_wrong(probed)


def test_slots_wanted_while_a_late_restore_runs_are_not_taken_from_it(
    probed: Probed, delay: Path
) -> None:
    client = probed.server.client
    texts = excerpts(12)
    delay.write_text(str(LAYER_DELAY))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: client.ask(text, NEW_TOKENS), texts * 2))
    delay.unlink()
    assert sum(answer.host_tokens for answer in answers) > 0
    nothing_is_wrong(probed)


def test_a_client_that_hangs_up_leaves_no_slot_taken(probed: Probed, delay: Path) -> None:
    client = probed.server.client
    texts = excerpts(8)
    delay.write_text(str(LAYER_DELAY))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda text: hang_up(client, text), texts * 2))
    delay.unlink()
    assert client.ask(texts[0], NEW_TOKENS).token_ids, "the server goes on"
    client.flush()
    held = left(probed)
    assert not any(held.values()), held
    nothing_is_wrong(probed)


def test_a_flush_that_leaves_l2_warm_stops_an_experiment(probed: Probed) -> None:
    client = probed.server.client
    client.ask(excerpts(1)[0], NEW_TOKENS)
    # Under write_back a prefix is in L2 once others have pushed it out of L1.
    for text in excerpts(8, skip=1):
        client.ask(text, NEW_TOKENS)
    lazy = Client(client.url)
    lazy.flush = lambda: None  # type: ignore[method-assign]
    with pytest.raises(Unusable, match="after a flush"):
        empty(lazy, seed=1)
    empty(client, seed=1)


def test_a_killed_scheduler_is_seen_from_outside(probed: Probed) -> None:
    server = probed.server
    (scheduler,) = [p for p in tree(server.pid) if role(p).startswith("scheduler")]
    os.kill(scheduler.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEATH_SECONDS
    while server.exit_code() is None and server.client.healthy():
        assert time.monotonic() < deadline, "it still says that it is well"
        time.sleep(0.2)
    # Dead it must end, not linger: a restart policy looks at the exit code.
    assert server.wait_exit(DEATH_SECONDS) != 0
