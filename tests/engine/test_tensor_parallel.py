"""Two real ranks: each keeps the records of its own heads, restores them, and nothing locks up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hiqcache.lab.quality.passes import COLD, L1, L2
from hiqcache.lab.quality.prompt import Prompt
from hiqcache.lab.quality.proof import why_invalid
from hiqcache.sidecar.figures import read_figures
from tests.engine.case import prompts as documents
from tests.engine.conftest import GPU, probed_server
from tests.engine.divisible import divisible
from tests.engine.l3 import FILE, PAGE, l3_server, pages, settled, whole_pages
from tests.engine.probe.hiqcache_probe import WRONG
from tests.engine.soak.traffic import Traffic
from tests.engine.tensor_parallel import (
    Served,
    agreement,
    by_rank,
    prompts_of,
    rank_rows,
    serve,
    sizes_of,
    tp_environment,
    why_wrong,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(GPU and torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

CODEC = "int8-compact"
BYTES = {1: 30 * 2 * (4 * 64 + 4 * 2 + 8), 2: 30 * 2 * (2 * 64 + 2 * 2 + 12)}
"""Layers x (K and V) x (values + scales + padding to 16 bytes) of 4 heads, and of 2."""
COUNT, TOKENS = 2, (400, 500)
LARGEST_KL = 0.003
"""Nats: 0.0013 to 0.0016 measured, on CPU ranks and on two H200s."""

LEAST_TOP1 = 0.97
SOAK_SECONDS = 30
STUCK_SECONDS = 300


@pytest.fixture(scope="module")
def wide_model(model: str, out: Path) -> Path:
    return divisible(Path(model), out / "divisible")


@pytest.fixture(scope="module")
def prompts(wide_model: Path) -> list[Prompt]:
    return prompts_of(wide_model, COUNT, TOKENS)


@pytest.fixture(scope="module")
def one(wide_model: Path, prompts: list[Prompt], out: Path) -> Served:
    return serve(wide_model, out, 1, CODEC, prompts)


@pytest.fixture(scope="module")
def two(wide_model: Path, prompts: list[Prompt], out: Path) -> Served:
    return serve(wide_model, out, 2, CODEC, prompts)


@pytest.mark.parametrize("tp", [1, 2])
def test_each_rank_keeps_and_restores_its_own_heads(
    tp: int, one: Served, two: Served, wide_model: Path, prompts: list[Prompt]
) -> None:
    served = {1: one, 2: two}[tp]
    rows = rank_rows(served, wide_model, sizes_of(prompts))
    assert len(rows) == tp
    assert [row["bytes_per_token"] for row in rows] == [BYTES[tp]] * tp
    assert why_wrong(rows) is None
    assert why_invalid({"arm": served.outcomes}) is None, "restored means restored"


def test_the_sidecar_shows_one_rank(two: Served) -> None:
    figures = read_figures(two.metrics)
    tokens = two.by_rank("sglang:load_back_tokens_total")
    assert set(tokens) == {"0", "1"}, "SGLang counts in both ranks"
    assert figures.restore_tokens == tokens["0"], "and the sidecar must not add them up"
    assert figures.bytes_per_token == figures.restore_bytes_per_token == BYTES[2]
    assert figures.l2_bytes_max == two.reports[0]["buffer_bytes"]


def test_answers_are_those_of_one_rank_but_for_summation(one: Served, two: Served) -> None:
    computed = agreement(one.outcomes[COLD], two.outcomes[COLD])
    restored = agreement(two.outcomes[L1], two.outcomes[L2])
    for found in (computed, restored):
        assert found["positions"] >= 100
        assert 0 < found["mean_kl"] < LARGEST_KL
        assert found["top1_agreement"] > LEAST_TOP1


def test_a_pool_that_is_too_small_locks_no_rank_up(wide_model: Path, out: Path) -> None:
    arguments = (
        *("--tp-size", "2"),
        *("--max-total-tokens", "1536"),
        # Less than L1: backups fail for want of host slots all the time.
        *("--hicache-ratio", "0.5"),
        *("--chunked-prefill-size", "256"),
    )
    name, environment = "tp2-soak", tp_environment(2) | {"HIQCACHE_VERIFY": "full"}
    with (
        ThreadPoolExecutor(1) as pool,
        probed_server(str(wide_model), out, name, CODEC, arguments, environment) as probed,
    ):
        traffic = Traffic(probed.server.client, seed=1)
        # A rank that waits for the other for good shows as a timeout here.
        pool.submit(traffic.run, SOAK_SECONDS, 2, 0.0).result(SOAK_SECONDS + STUCK_SECONDS)
        assert probed.server.client.ask("And now?", 2).token_ids
        reports = [probed.report(rank) for rank in range(2)]
        metrics = probed.server.client.metrics_text()
        log = probed.server.output()
    assert sum(traffic.requests.values()) >= 4
    assert "Traceback" not in log
    assert reports[0]["backed_up_rows"] == reports[1]["backed_up_rows"] > 0
    assert reports[0]["restored_rows"] == reports[1]["restored_rows"]
    for report in reports:
        assert not any(report[name] for name in WRONG)
    found = by_rank(metrics, "hiqcache_engine_mismatches_total")
    assert found == {"0": 0, "1": 0}, "each rank looked, and found nothing"


def test_each_rank_has_its_own_pages_in_l3(wide_model: Path, out: Path, tmp_path: Path) -> None:
    arguments = ("--tp-size", "2", *FILE)
    environment = tp_environment(2) | {
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path),
        "HIQCACHE_VERIFY": "full",
    }
    text = documents(1)[0][:2000]
    with l3_server(str(wide_model), out, "tp2-l3", "int8", arguments, **environment) as served:
        computed = served.ask(text)
        stored = settled(lambda: len(pages(tmp_path)))
        answers = []
        for _ in range(2):
            served.forget()
            answers.append(served.ask(text))
        assert sum(served.bad_pages().values()) == 0
    for answer in answers:
        assert answer.storage_tokens == whole_pages(computed) * PAGE
    assert answers[0].token_ids == answers[1].token_ids
    for rank in range(2):
        files = [path for path in pages(tmp_path) if path.name.endswith(f"_{rank}_2.bin")]
        assert len(files) == stored / 2 >= whole_pages(computed)
