"""Tensor parallelism on real ranks: one model at TP 1 and TP 2, restored and not.

    python -m tests.engine.tensor_parallel --out results/tensor-parallel

On a machine with two GPUs this takes a few minutes; without a GPU the ranks are two CPU
processes. The outcome is `FOLDER/<device>.json`; the exit code is 1 if a rank's bytes or rows
are not as they must be.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hiqcache.capacity import by_ratio
from hiqcache.geometry import Geometry
from hiqcache.lab.model import smollm2
from hiqcache.lab.quality.arms import FILL, PAGE, Sizes
from hiqcache.lab.quality.passes import COLD, L1, L2, Outcomes, make_fillers, run_passes
from hiqcache.lab.quality.prompt import Prompt, longest
from hiqcache.lab.quality.proof import why_invalid
from hiqcache.lab.quality.row import compare_answers, compare_readings
from hiqcache.lab.quality.setup import Text, choose_prompts
from hiqcache.lab.row import origin
from tests.engine.conftest import GPU, probed_server
from tests.engine.divisible import divisible
from tests.engine.probe.hiqcache_probe import WRONG

ARMS = ((1, "int8-compact"), (2, "int8-compact"), (2, "bf16"))
"""Ranks and codec of each server. Under `bf16` an L1 hit and a restore read the same bits."""


@dataclass(frozen=True)
class Served:
    """What one server showed.

    Parameters
    ----------
    reports
        The probe's counts, a rank each.
    metrics
        The text of `/metrics` when all was asked.
    outcomes
        Every prompt cold, from L1 and from L2.
    """

    tp: int
    codec: str
    reports: tuple[dict[str, Any], ...]
    metrics: str
    outcomes: Outcomes

    def by_rank(self, name: str) -> dict[str, float]:
        return by_rank(self.metrics, name)


def by_rank(metrics: str, name: str) -> dict[str, float]:
    """A sample of `/metrics` by its `tp_rank`."""
    return by_label(metrics, name, "tp_rank")


def by_label(metrics: str, name: str, label: str) -> dict[str, float]:
    """A sample of `/metrics` by the values of a label."""
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == name
    }


def cpu_cores(tp: int) -> str:
    """SGLang's binding of CPU ranks, which it wants spelt out for more ranks than NUMA nodes."""
    cores = sorted(os.sched_getaffinity(0))
    bounds = [len(cores) * rank // tp for rank in range(tp + 1)]
    groups = (cores[a:b] or cores for a, b in pairwise(bounds))
    return "|".join(",".join(map(str, group)) for group in groups)


def tp_environment(tp: int) -> dict[str, str]:
    """What a server over `tp` ranks needs in its environment."""
    return {} if GPU or tp == 1 else {"SGLANG_CPU_OMP_THREADS_BIND": cpu_cores(tp)}


def serve(model: Path, out: Path, tp: int, codec: str, prompts: Sequence[Prompt]) -> Served:
    """Ask a server over `tp` ranks every prompt in every pass."""
    sizes = sizes_of(prompts)
    arguments = (
        *("--tp-size", str(tp)),
        *("--max-total-tokens", str(sizes.l1_tokens)),
        *("--hicache-ratio", repr(ratio(sizes))),
        *("--hicache-write-policy", "write_through"),
        *("--page-size", str(PAGE)),
    )
    fillers = make_fillers(prompts, sizes.filler_tokens)
    name = f"tp{tp}-{codec}"
    with probed_server(str(model), out, name, codec, arguments, tp_environment(tp)) as probed:
        client = probed.server.client
        outcomes = run_passes(client, prompts, fillers)
        reports = tuple(probed.report(rank) for rank in range(tp))
        return Served(tp, codec, reports, client.metrics_text(), outcomes)


def sizes_of(prompts: Sequence[Prompt]) -> Sizes:
    """As `hiqcache quality` sizes them; on a CPU L1 is no larger than it must be."""
    sizes = Sizes.fit(prompts, None)
    if GPU:
        return sizes
    l1 = -(-2 * longest(prompts) // PAGE) * PAGE
    return replace(sizes, l1_tokens=l1, filler_tokens=int(FILL * l1))


def ratio(sizes: Sizes) -> float:
    return round(sizes.l2_tokens / sizes.l1_tokens, 4)


def prompts_of(model: Path, count: int, tokens: tuple[int, int]) -> list[Prompt]:
    return choose_prompts(Text.load(str(model)), None, count, tokens)


def rank_rows(served: Served, model: Path, sizes: Sizes) -> list[dict[str, Any]]:
    """What each rank stored and restored beside what the arithmetic says of it."""
    geometry = Geometry.load(str(model))
    rows = []
    for rank, report in enumerate(served.reports):
        capacity = by_ratio(
            geometry,
            served.codec,
            ratio(sizes),
            report["device_tokens"],
            page_size=PAGE,
            tp=served.tp,
        )
        samples = {
            name: served.by_rank(name).get(str(rank))
            for name in (
                "hiqcache_engine_bytes_per_token",
                "hiqcache_engine_pool_bytes",
                "hiqcache_engine_restore_records_total",
                "sglang:load_back_tokens_total",
                "sglang:load_back_bytes_total",
            )
        }
        rows.append(
            {
                "rank": rank,
                "local_heads": geometry.local_heads(served.tp),
                "expected_bytes_per_token": capacity.bytes_per_token,
                "expected_tokens": capacity.tokens,
                "expected_bytes": capacity.bytes_allocated,
                "bytes_per_token": report["size_per_token"],
                "tokens": report["tokens"],
                "bytes": report["buffer_bytes"],
                "memory_taken_bytes": report["memory_taken_bytes"],
                "layers": report["layers"],
                "restored_rows": report["restored_rows"],
                **{name: report[name] for name in WRONG},
                "metrics": samples,
            }
        )
    return rows


def why_wrong(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """One sentence about the first rank that is not as it must be."""
    for row in rows:
        for name in ("bytes_per_token", "tokens", "bytes"):
            if row[name] != row[f"expected_{name}"]:
                return f"rank {row['rank']}: {name} {row[name]}, not {row[f'expected_{name}']}"
        if not 0 <= row["memory_taken_bytes"] - row["bytes"] <= 2 * mmap.PAGESIZE:
            return f"rank {row['rank']}: took {row['memory_taken_bytes']} bytes, not {row['bytes']}"
        if any(row[name] for name in WRONG) or not row["restored_rows"]:
            return f"rank {row['rank']}: rows restored and wrong: {dict(row)}"
        samples, tokens = row["metrics"], row["metrics"]["sglang:load_back_tokens_total"]
        expected = {
            "hiqcache_engine_bytes_per_token": row["bytes_per_token"],
            "hiqcache_engine_pool_bytes": row["bytes"],
            "hiqcache_engine_restore_records_total": tokens and tokens * 2 * row["layers"],
            "sglang:load_back_bytes_total": tokens and tokens * row["bytes_per_token"],
        }
        for name, value in expected.items():
            if not value or samples[name] != value:
                return f"rank {row['rank']}: {name} {samples[name]}, not {value}"
    if len({row["restored_rows"] for row in rows}) != 1:
        return f"ranks restored {[row['restored_rows'] for row in rows]} rows, not the same"
    return None


def agreement(reference: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two passes over the same prompts, as `hiqcache quality` compares them."""
    readings = [
        compare_readings(left.scored, other[name].scored)
        for name, left in reference.items()
        if left.scored
    ]
    answers = [
        compare_answers(left.answer.token_ids, other[name].answer.token_ids)
        for name, left in reference.items()
    ]
    positions = sum(row.positions for row in readings)
    return {
        "positions": positions,
        "mean_kl": sum(row.kl for row in readings) / positions,
        "top1_agreement": sum(row.top1 for row in readings) / positions,
        "identical_readings": sum(row.identical for row in readings),
        "readings": len(readings),
        "same_answers": sum(row.first_difference is None for row in answers),
        "answers": len(answers),
    }


def agreements(arms: Sequence[Served]) -> dict[str, dict[str, Any]]:
    """Restored against L1 hit within each server, and each tier of TP 1 against TP 2."""
    found = {
        f"TP {arm.tp}, {arm.codec}: L1 hit against restored": agreement(
            arm.outcomes[L1], arm.outcomes[L2]
        )
        for arm in arms
    }
    for one, two in pairwise(arms):
        if one.codec == two.codec:
            for tier, name in ((COLD, "computed"), (L2, "restored")):
                found[f"{one.codec}, {name}: TP {one.tp} against TP {two.tp}"] = agreement(
                    one.outcomes[tier], two.outcomes[tier]
                )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.tensor_parallel")
    parser.add_argument("--out", type=Path, required=True, help="folder for the outcome")
    parser.add_argument("--model", default=os.environ.get("TEST_MODEL"), help="a SmolLM2 folder")
    parser.add_argument("--prompts", type=int, default=8 if GPU else 4)
    parser.add_argument("--commit", help="where the checkout has no .git")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    scratch = Path("out/tensor-parallel").resolve()
    model = divisible(Path(args.model or smollm2.prepare()), scratch / "model")
    path = args.out / f"{'cuda' if GPU else 'cpu'}.json"
    prompts = prompts_of(model, args.prompts, (500, 900) if GPU else (400, 500))
    sizes = sizes_of(prompts)
    found = {"provenance": origin(args.commit), "prompts": len(prompts), "servers": []}
    arms, wrong = [], []
    for tp, codec in ARMS:
        served = serve(model, scratch, tp, codec, prompts)
        arms.append(served)
        rows = rank_rows(served, model, sizes)
        bad = why_wrong(rows) or why_invalid({"this server": served.outcomes})
        wrong += [bad] if bad else []
        found["servers"].append({"tp": tp, "codec": codec, "ranks": rows, "wrong": bad})
        print(f"TP {tp}, {codec}: {bad or 'every rank as it must be'}", flush=True)
        found["agreement"] = agreements(arms)
        # After each server: what is known is kept if the next one does not come up.
        path.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found["agreement"].items():
        print(
            f"{name}: KL {row['mean_kl']:.5f}, top-1 {row['top1_agreement']:.4f}, same answers "
            f"{row['same_answers']} of {row['answers']}"
        )
    print(f"written to {path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
