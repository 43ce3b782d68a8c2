"""A hybrid in 4 GB of L2: what stock SGLang restores at the best of five splits, and HiQCache.

    python -m tests.engine.hybrid_budget OUT.json [--minutes 9]

Stock SGLang shares `--hicache-size` by the bytes of the device's pools, so `--max-total-tokens` and
`--max-mamba-cache-size` choose its split; HiQCache shares by bytes as stored. The traffic is the
same: long prompts that do not fit, then each again, longer, the last ones first. What counts is
tokens from L2 in that second pass. One H200, seven servers at once, random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hiqcache.lab.serving.client import Client
from hiqcache.provenance import provenance
from tests.engine.conftest import start_server
from tests.engine.small_models import QWEN3_NEXT
from tests.engine.stacks import READY_SECONDS, plugin

GIGABYTES = 4
PROMPT, MORE, NEW, PROMPTS, AT_ONCE = 12_288, 64, 8, 180, 4
# A state takes as much as some 3,000 tokens of BF16, as in Qwen3-Next-80B.
WIDE = {
    "num_key_value_heads": 1,
    "head_dim": 256,
    "linear_num_value_heads": 16,
    "max_position_embeddings": 32_768,
}
SPLITS = ((32_768, 64), (65_536, 48), (98_304, 48), (131_072, 40), (196_608, 32))
"""Tokens and states of the device, for stock SGLang: from many states in L2 to few."""
PER_STATE = PROMPT // 2
"""A prompt's end and its answer's end: two states for each prompt."""


@dataclass(frozen=True)
class Arm:
    name: str
    codec: str
    tokens: int
    states: int


ARMS = (
    *(Arm(f"stock-{tokens}-{states}", "off", tokens, states) for tokens, states in SPLITS),
    Arm("bf16", "bf16", 65_536, 48),
    Arm("int8-compact", "int8-compact", 65_536, 48),
)


@contextmanager
def served(arm: Arm, folder: Path, logs: Path) -> Iterator[Client]:
    arguments = [
        *("--enable-hierarchical-cache", "--load-format", "dummy", "--skip-tokenizer-init"),
        *("--enable-cache-report", "--disable-cuda-graph"),
        *("--max-total-tokens", str(arm.tokens), "--max-mamba-cache-size", str(arm.states)),
        *("--hicache-size", str(GIGABYTES), "--max-running-requests", "4"),
        *("--chunked-prefill-size", "8192"),
    ]
    environment = {"HIQCACHE_CODEC": arm.codec}
    if arm.codec != "off":
        environment["HIQCACHE_TOKENS_PER_STATE"] = str(PER_STATE)
    log = logs / f"budget-{arm.name}.log"
    with start_server(str(folder), log, arguments, environment) as server:
        server.wait_ready(READY_SECONDS)
        yield server.client


def ask(client: Client, ids: list[int]) -> tuple[list[int], dict[str, int]]:
    request = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True},
        "stream": True,
    }
    last: dict[str, Any] = {}
    for event in client._events("/generate", request):
        last = event
    return last["output_ids"], last["meta_info"].get("cached_tokens_details") or {}


def measure(arm: Arm, folder: Path, logs: Path, ends: float) -> dict[str, Any]:
    chance = random.Random(3)
    found: dict[str, Any] = {"arm": arm.name, "tokens": arm.tokens, "states": arm.states}
    try:
        with served(arm, folder, logs) as client, ThreadPoolExecutor(AT_ONCE) as pool:
            prompts = [
                [chance.randrange(100, 40_000) for _ in range(PROMPT)] for _ in range(PROMPTS)
            ]
            answers = list(pool.map(lambda prompt: ask(client, prompt)[0], prompts))
            again = [
                [*prompt, *answer, *(chance.randrange(100, 40_000) for _ in range(MORE))]
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
            hits = []
            for prompt in reversed(again):
                if time.monotonic() > ends:
                    found["cut_short_after"] = len(hits)
                    break
                hits.append(ask(client, prompt)[1])
            found["from_l1"] = sum(hit.get("device", 0) for hit in hits)
            found["from_l2"] = sum(hit.get("host", 0) for hit in hits)
            found["prompts_from_l2"] = sum(hit.get("host", 0) > 0 for hit in hits)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:1500]
    log = logs / f"budget-{arm.name}.log"
    if log.exists():
        lines = log.read_text(errors="replace").splitlines()
        found["pools"] = [line for line in lines if "hierarchical" in line or "HiQCache: " in line][
            :8
        ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outcome", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--logs", type=Path, default=Path("out/stacks"))
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes - 20
    args.logs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "provenance": provenance("cuda", torch.cuda.get_device_name()),
        "traffic": {"prompts": PROMPTS, "tokens": PROMPT, "gigabytes": GIGABYTES},
        "arms": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(plugin(Path(scratch)))
        folder = Path(scratch, "model")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(QWEN3_NEXT.full_config | WIDE))
        with ThreadPoolExecutor(len(ARMS)) as pool:
            runs = [pool.submit(measure, arm, folder, args.logs.resolve(), ends) for arm in ARMS]
            for done in as_completed(runs):
                found["arms"].append(row := done.result())
                print(row["arm"], row.get("from_l2"), row.get("error", ""), flush=True)
                args.outcome.write_text(json.dumps(found, indent=1))
    restored = {row["arm"]: row.get("from_l2", 0) for row in found["arms"]}
    best = max(count for name, count in restored.items() if name.startswith("stock"))
    found["int8_compact_over_best_stock"] = restored["int8-compact"] / best if best else None
    args.outcome.write_text(json.dumps(found, indent=1))
    print("int8-compact over the best stock split:", found["int8_compact_over_best_stock"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
