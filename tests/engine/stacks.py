"""Every kind of stack on one GPU: cold, from L1, evicted, from L2, then rounds over a full L2.

    python -m tests.engine.stacks OUT.json [--arms off,bf16,int8-compact] [--cases gpt-oss,...]

One arm of all cases is 8 servers, which start at once: about 5 minutes on one H200 with 16 cores.

Small models of the real architectures with random weights, several servers at once. `off` is
SGLang without HiQCache: what fails there is not ours. Under `bf16` every restored row of every pool
and every state must be bit-identical and answers from L2 those from L1; under the other codecs each
row must be what the codec makes of it and within its bound. The outcome is written bit by bit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hiqcache.hybrids import StackGeometry
from hiqcache.lab.serving.client import Client
from hiqcache.provenance import cpu_model, provenance
from tests.engine.conftest import GPU, Probed, importable, probed_server, start_server
from tests.engine.small_models import (
    GEMMA3,
    GPT_OSS,
    GRANITE_HYBRID,
    MELLUM,
    QWEN3,
    QWEN3_NEXT,
    WIDER,
    SmallModel,
)

REAL = Path(os.environ["TEST_MODEL"]) if "TEST_MODEL" in os.environ else None
"""A checkpoint of SmolLM2, which then drafts for itself in the place of random weights."""
GIGABYTES = 1
L1_TOKENS = 8192
PROMPT, MORE, NEW = 1024, 64, 8
DOCUMENTS, OTHERS = 4, 12
ROUNDS, CONVERSATIONS, AT_ONCE = 100, 12, 4
FILL, MOST_FILLS = 1536, 600
READY_SECONDS = 420
LAST_LINES = 60
WRONG = ("wrong_rows", "bound_violations", "unpoisoned_rows", "dirty_padding_bytes")
SPECULATION = (
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)
STATES = ("--max-mamba-cache-size", "64")


@dataclass(frozen=True)
class Case:
    """A stack: its model, and the server options beyond the model's own."""

    name: str
    model: SmallModel
    arguments: tuple[str, ...] = ()
    page_size: int = 1
    draft_layers: int = 0
    drafts: str | None = None


CASES = (
    Case("gpt-oss", GPT_OSS),
    Case("mellum", replace(MELLUM, arguments=()) if GPU else MELLUM),
    Case("gemma3", GEMMA3),
    Case("qwen3-next", QWEN3_NEXT, STATES),
    Case(
        "qwen3-next-extra-buffer",
        QWEN3_NEXT,
        (*STATES, "--mamba-radix-cache-strategy", "extra_buffer"),
        page_size=64,
    ),
    Case("granite-hybrid", GRANITE_HYBRID, STATES),
    Case(
        "qwen3-next-nextn",
        QWEN3_NEXT,
        (*STATES, "--speculative-algorithm", "NEXTN", *SPECULATION),
        draft_layers=1,
        drafts="packed",
    ),
    # Random weights come from one seed, so a model of the same shape drafts what the model says.
    Case(
        "standalone",
        QWEN3,
        ("--speculative-algorithm", "STANDALONE", *SPECULATION),
        drafts="separate",
    ),
)


@dataclass
class Run:
    """One server of one arm, and what has been found of it so far."""

    case: Case
    arm: str
    folder: Path
    out: Path
    ends: float
    smaller: int = 1

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = {"case": self.case.name, "arm": self.arm}
        begin = time.monotonic()
        try:
            with self.server() as (client, probed):
                found["ready_seconds"] = round(time.monotonic() - begin, 1)
                Traffic(self, client, probed, found).all()
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"[:2000]
            found["where"] = traceback.format_exc(limit=-2)[-600:]
        found["seconds"] = round(time.monotonic() - begin, 1)
        found["failures"] = failures(found, self.arm)
        if found["failures"] and self.log.exists():
            found["log"] = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return found

    @property
    def name(self) -> str:
        return f"stack-{self.case.name}-{self.arm}"

    @property
    def log(self) -> Path:
        return self.out / f"{self.name}.log"

    @contextmanager
    def server(self) -> Iterator[tuple[Client, Probed | None]]:
        case = self.case
        arguments = [
            *(() if self.folder == REAL else ("--load-format", "dummy")),
            "--skip-tokenizer-init",
            "--enable-cache-report",
            # Starts sooner; rows are the same.
            "--disable-cuda-graph",
            *("--max-total-tokens", str(L1_TOKENS // self.smaller)),
            *("--hicache-size", str(GIGABYTES)),
            *("--page-size", str(case.page_size)),
            *("--max-running-requests", "4"),
            *("--chunked-prefill-size", "2048"),
            *case.model.arguments,
            *case.arguments,
        ]
        if case.drafts == "separate":
            arguments += ["--speculative-draft-model-path", str(self.folder)]
        delay = {"SGLANG_TEST_HICACHE_H2D_DELAY_CYCLES": "200000"} if GPU else {}
        if self.arm == "off":
            options = ["--enable-hierarchical-cache", *arguments]
            environment = {"HIQCACHE_CODEC": "off", **delay}
            with start_server(str(self.folder), self.log, options, environment) as server:
                server.wait_ready(READY_SECONDS)
                yield server.client, None
            return
        ruin = {"PROBE_RUIN": str(self.ruin)}
        with probed_server(
            str(self.folder), self.out, self.name, self.arm, arguments, {**delay, **ruin}
        ) as probed:
            yield probed.server.client, probed

    @property
    def ruin(self) -> Path:
        """While it is there, the probe ruins the restored rows of the layers that draft."""
        return self.out / f"ruin-{self.case.name}-{self.arm}"


class Traffic:
    """What one server is asked, and what it answered."""

    def __init__(self, run: Run, client: Client, probed: Probed | None, found: dict[str, Any]):
        self.run, self.client, self.probed, self.found = run, client, probed, found
        self.random = random.Random(11)
        self.pool = ThreadPoolExecutor(AT_ONCE)

    def all(self) -> None:
        self.from_both_tiers()
        self.look()
        if self.run.case.drafts and self.probed is not None:
            self.ruined_drafts()
        self.fill()
        self.rounds()
        self.look()
        self.pool.shutdown()

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(100, 40_000) for _ in range(count // self.run.smaller)]

    def ask(self, ids: Sequence[int], new: int = NEW) -> dict[str, Any]:
        last: dict[str, Any] = {}
        request = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0, "max_new_tokens": new, "ignore_eos": True},
            "stream": True,
        }
        for event in self.client._events("/generate", request):
            last = event
        meta = last["meta_info"]
        cached = meta.get("cached_tokens_details") or {}
        return {
            "tokens": last["output_ids"],
            "device": cached.get("device", 0),
            "host": cached.get("host", 0),
            "accepted": meta.get("spec_accept_length"),
        }

    def from_both_tiers(self) -> None:
        """A state lies only where a request ended, so each prompt comes again, longer."""
        prompts = [self.ids(PROMPT) for _ in range(DOCUMENTS)]
        cold = [self.ask(prompt) for prompt in prompts]
        longer = [
            [*prompt, *answer["tokens"], *self.ids(MORE)]
            for prompt, answer in zip(prompts, cold, strict=True)
        ]
        for prompt in longer:
            self.ask(prompt)
        l1 = [self.ask(prompt) for prompt in longer]
        for _ in range(OTHERS):
            self.ask(self.ids(PROMPT), 2)
        l2 = [self.ask(prompt) for prompt in longer]
        self.found["prompt_tokens"] = len(longer[0])
        for name, answers in (("cold", cold), ("l1", l1), ("l2", l2)):
            self.found[name] = {
                key: [answer[key] for answer in answers] for key in ("device", "host", "accepted")
            }
        self.found["answers_of_l2_as_of_l1"] = sum(
            a["tokens"] == b["tokens"] for a, b in zip(l1, l2, strict=True)
        )
        self.longer = longer

    def ruined_drafts(self) -> None:
        """Draft rows that are ruined behind their restore must cost accepted tokens, no answers."""
        self.run.ruin.touch()
        for _ in range(OTHERS):
            self.ask(self.ids(PROMPT), 2)
        answers = [self.ask(prompt, 32) for prompt in self.longer]
        self.run.ruin.unlink()
        for _ in range(OTHERS):
            self.ask(self.ids(PROMPT), 2)
        again = [self.ask(prompt, 32) for prompt in self.longer]
        self.found["accepted_of_32"] = {
            "ruined": [answer["accepted"] for answer in answers],
            "restored": [answer["accepted"] for answer in again],
        }

    def fill(self) -> None:
        """Fill L2, so that the rounds evict from it."""
        asked = 0
        while self.probed is not None and asked < MOST_FILLS and self.time_left() > 60:
            if self.probed.report()["free_tokens"] < FILL * AT_ONCE:
                break
            prompts = [self.ids(FILL) for _ in range(AT_ONCE * 6)]
            list(self.pool.map(lambda prompt: self.ask(prompt, 1), prompts))
            asked += len(prompts)
        self.found["filled_with"] = asked

    def rounds(self) -> None:
        """Turns of conversations that do not fit into L1, several at once."""
        talks = [self.ids(800) for _ in range(CONVERSATIONS)]
        done = device = host = 0

        def turn(talk: list[int]) -> dict[str, Any]:
            talk += self.ids(48)
            answer = self.ask(talk)
            talk += answer["tokens"]
            return answer

        for first in range(0, ROUNDS, AT_ONCE):
            if self.time_left() < 20:
                break
            chosen = [talks[(first + i) % CONVERSATIONS] for i in range(AT_ONCE)]
            answers = list(self.pool.map(turn, chosen))
            done += len(answers)
            device += sum(answer["device"] for answer in answers)
            host += sum(answer["host"] for answer in answers)
        self.found["rounds"] = {"done": done, "from_l1": device, "from_l2": host}

    def look(self) -> None:
        if self.probed is None:
            return
        report = self.probed.report()
        self.found["pools"] = report["pools"]
        self.found["states"] = report["states"]
        self.found["capacity"] = self.capacity(report)
        backed = sum(one["backed_up_states"] for one in report["states"])
        if backed:
            kv = report["pools"]["kv"]
            tokens = kv["backed_up_rows"] / (2 * kv["layers"])
            self.found["tokens_per_state"] = round(tokens / backed, 1)

    def capacity(self, report: dict[str, Any]) -> dict[str, Any]:
        """Slots of each pool, as `hiqcache capacity` says and as they are."""
        case = self.run.case
        geometry = StackGeometry.load(str(self.run.folder))
        device = {name: one["device_tokens"] for name, one in report["pools"].items()}
        said = geometry.capacity(
            self.run.arm,
            GIGABYTES,
            page_size=case.page_size,
            device_slots=(device["kv"], device.get("swa", 0)),
            packed_drafts=case.draft_layers,
            draft=geometry.kv if case.drafts == "separate" else None,
        )
        found = {name: one["tokens"] for name, one in report["pools"].items() if name in said}
        if report["states"]:
            found["state"] = report["states"][0]["slots"]
        return {"said": {name: one.slots for name, one in said.items()}, "found": found}

    def time_left(self) -> float:
        return self.run.ends - time.monotonic()


def failures(found: dict[str, Any], arm: str) -> list[str]:
    """What does not hold, in words; empty if all does."""
    said = []
    if "error" in found:
        said.append(found["error"])
    for tier in ("l1", "l2"):
        key = "device" if tier == "l1" else "host"
        hits = found.get(tier, {}).get(key, [])
        least = 0.9 * found.get("prompt_tokens", 0) - MORE - NEW
        if not hits or min(hits) < least:
            said.append(f"{tier}: hits of {hits}, expected {least:.0f} and more")
    if arm in ("off", "bf16") and found.get("answers_of_l2_as_of_l1", 0) < DOCUMENTS:
        said.append(f"answers of L2 as of L1: {found.get('answers_of_l2_as_of_l1')}")
    for name, pool in found.get("pools", {}).items():
        wrong = [key for key in WRONG if pool[key]]
        wrong += ["differing_rows"] if arm == "bf16" and pool["differing_rows"] else []
        said += [f"{name}: {key} {pool[key]}" for key in wrong]
        said += [f"{name}: nothing restored"] if not pool["restored_rows"] else []
    for state in found.get("states", []):
        said += [f"wrong states: {state['wrong_states']}"] if state["wrong_states"] else []
        said += ["no state restored"] if not state["restored_states"] else []
    capacity = found.get("capacity", {})
    if capacity and capacity["said"] != capacity["found"]:
        said.append(f"capacity: {capacity}")
    accepted = found.get("accepted_of_32")
    if accepted and found["case"] == "standalone":
        ruined, restored = (sum(accepted[key]) for key in ("ruined", "restored"))
        if not ruined < restored:
            said.append(f"ruined drafts cost nothing: {accepted}")
    return said


def plugin(folder: Path) -> dict[str, str]:
    """HiQCache's entry points, where it is on the path but not installed."""
    if any(one.name == "hiqcache" for one in entry_points()):
        return {}
    info = folder / "hiqcache-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hiqcache\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nhiqcache = hiqcache.engine.plugin:register\n"
    )
    root = Path(__file__).parents[2]
    return {"PYTHONPATH": os.pathsep.join([importable(folder)["PYTHONPATH"], str(root)])}


def entry_points() -> Any:
    return importlib.metadata.entry_points(group="sglang.srt.plugins")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outcome", type=Path)
    parser.add_argument("--arms", default="bf16")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES))
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--commit", help="of this code, where there is no repository to ask")
    parser.add_argument("--logs", type=Path, default=Path("out/stacks"), help="folder for logs")
    parser.add_argument("--smaller", type=int, default=1, help="divides every length, for CPUs")
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    outcomes: list[dict[str, Any]] = []
    name = torch.cuda.get_device_name() if GPU else cpu_model()
    about = provenance("cuda" if GPU else "cpu", name)
    origin = {"provenance": about | ({"commit": args.commit} if args.commit else {})}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ.update(plugin(folder))
        out = args.logs.resolve()
        out.mkdir(parents=True, exist_ok=True)
        runs = [
            Run(case, arm, write(case, folder), out, ends - 15, args.smaller)
            for arm in args.arms.split(",")
            for case in CASES
            if case.name in args.cases.split(",")
        ]
        with ThreadPoolExecutor(args.parallel) as pool:
            for done in as_completed([pool.submit(run.outcome) for run in runs]):
                outcomes.append(found := done.result())
                args.outcome.write_text(json.dumps(origin | {"servers": outcomes}, indent=1))
                verdict = "; ".join(found["failures"]) or "holds"
                print(f"{found['case']:<26}{found['arm']:<14}{found['seconds']:>6} s  {verdict}")
    return 1 if any(found["failures"] for found in outcomes) else 0


def write(case: Case, folder: Path) -> Path:
    """The case's model without a tokenizer, as wide as fills L2 in a reasonable time."""
    if case.drafts == "separate" and REAL is not None:
        return REAL
    place = folder / case.name
    place.mkdir(exist_ok=True)
    config = case.model.full_config | (WIDER.get(case.model.name, {}) if GPU else {})
    (place / "config.json").write_text(json.dumps(config))
    return place


if __name__ == "__main__":
    raise SystemExit(main())
