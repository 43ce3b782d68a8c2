"""`hiqcache demo`: BF16 beside INT8 on a real SGLang server, with real documents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hiqcache.commands.packages import require
from hiqcache.errors import UsageError

MOST_DOCUMENTS = 43


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="run BF16 beside INT8 on a real server and print what each restored",
        description="Start SGLang with a BF16 L2, then with an INT8 L2 of the same size in bytes, "
        "ask about real documents that overflow L1, ask again, and print both. Uses the "
        "NVIDIA GPU if there is one, else the CPU. Fails unless INT8 restored tokens and the "
        "measured bytes per token are exactly the record's.",
    )
    parser.add_argument(
        "--model",
        metavar="ID|PATH",
        help="a Hugging Face id or a folder (default: SmolLM2-135M-Instruct, prepared here)",
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=14,
        metavar="N",
        help=f"how many documents, 6 to {MOST_DOCUMENTS} (default 14)",
    )
    parser.add_argument(
        "--new-tokens", type=int, default=12, metavar="N", help="length of an answer (default 12)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="default out/demo"
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="-- ARGUMENTS", help="further arguments for SGLang"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 6 <= args.documents <= MOST_DOCUMENTS:
        raise UsageError(f"--documents must be 6 to {MOST_DOCUMENTS}, got {args.documents}")
    if args.new_tokens < 1:
        raise UsageError(f"--new-tokens must be at least 1, got {args.new_tokens}")
    require("sglang", "gguf", extra="sglang,demo")
    from hiqcache.lab.demo.plan import make_plan
    from hiqcache.lab.demo.report import table, write_report
    from hiqcache.lab.demo.show import run_demo
    from hiqcache.lab.fleet import Launch
    from hiqcache.lab.model.hub import geometry_of, tokenizer_of
    from hiqcache.lab.progress import progress
    from hiqcache.lab.row import origin
    from hiqcache.lab.workload.documents import load_documents

    with progress("prepare the model") as clock:
        model = args.model or _demo_model(clock.note)
        geometry, tokenizer = geometry_of(model), tokenizer_of(model)
        provenance = origin()
        clock.note(f"{geometry.name} on {provenance['device_name']}")
    plan = make_plan(
        load_documents()[: args.documents],
        geometry,
        lambda text: len(tokenizer(text).input_ids),
        args.new_tokens,
    )
    print(
        f"{len(plan.prompts)} documents, {plan.working_set:,} tokens; L1 {plan.l1_tokens:,} "
        f"tokens; L2 {plan.budget_bytes / 1e6:,.0f} MB for either codec",
        file=sys.stderr,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    launch = Launch(model=model, arguments=tuple(args.arguments), logs=args.out)
    results = run_demo(plan, launch, geometry)
    report = args.out / "report.json"
    write_report(report, provenance, geometry.name, plan, results)
    print(table(results))
    print(f"\n{report}")
    return 0


def _demo_model(note: Any) -> str:
    from hiqcache.lab.model.smollm2 import prepare

    return str(prepare(report=note))
