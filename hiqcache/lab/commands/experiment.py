"""`hiqcache experiment`: BF16 beside the codecs, under SGLang's own benchmark client."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from hiqcache.commands.numbers import positive, positives
from hiqcache.commands.packages import require
from hiqcache.errors import UsageError
from hiqcache.lab.experiment.workload import Workload

EXPERIMENTS = ("a", "b", "curve", "crossover", "repeat")
REPEATS = {"a": 1, "b": 5, "repeat": 5, "curve": 1, "crossover": 1}
DEFAULT_SIZE = 8


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "experiment", help="measure BF16 beside the codecs under a repeated workload"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run experiments and store every figure",
        description="a: the same tokens in L2 for every codec. b: the same bytes. repeat: "
        "further repeats of b in a folder that has some. curve: working sets from L1 to beyond "
        "every L2. crossover: restoring a prefix beside recomputing it. Each run is stored as "
        "soon as it ends.",
    )
    run.add_argument("experiments", nargs="+", choices=EXPERIMENTS, metavar="|".join(EXPERIMENTS))
    _add_workload(run)
    run.add_argument("--model", required=True, metavar="ID|PATH")
    run.add_argument(
        "--load-format", metavar="F", help="`dummy`: random weights, for a folder of config.json"
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="default results/experiments/<new>")
    run.add_argument("--resume", type=Path, metavar="DIR", help="add to these results")
    run.add_argument("--logs", type=Path, default=Path("out/experiment"), metavar="DIR")
    run.add_argument(
        "--arms",
        metavar="NAME,...",
        help="names or patterns, such as bf16-write_back or 'int8-*-64'; default: BF16 in every "
        "page, policy and layout, and the recommended codec",
    )
    run.add_argument(
        "--repeats", metavar="E=N,...", help="default a=1,b=5,curve=1,crossover=1,repeat=5"
    )
    run.add_argument(
        "--side-by-side", action="store_true", help="start all servers at once and keep them up"
    )
    run.add_argument("--gpus", metavar="N,...", help="GPUs that the servers are spread over")
    run.add_argument("--per-gpu", type=positive, default=6, help="servers a GPU (default 6)")
    run.add_argument("--no-warm-up", action="store_true", help="no traffic before the first run")
    run.add_argument("--commit", help="for the results, where the checkout has no .git")
    run.add_argument("--image", default="none", help="digest of the image this runs in")
    run.add_argument(
        "--container-image",
        metavar="NAME",
        help="run each arm as a container of this image, through Docker; not as a process",
    )
    # No `-- ARGUMENTS`: argparse gives those to the experiments, which are positional too.
    run.add_argument(
        "--server-arguments",
        type=shlex.split,
        default=[],
        metavar="'ARGUMENTS'",
        help="further arguments for every server, quoted as one",
    )
    run.set_defaults(run=run_experiments)
    trace = commands.add_parser(
        "trace",
        help="write the workload as a trace for `hiqcache simulate`",
        description="The requests that the benchmark client would send, in its order.",
    )
    _add_shape(trace)
    trace.add_argument("--out", type=Path, required=True, metavar="TRACE.jsonl")
    trace.set_defaults(run=write_workload)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--l1-tokens", type=positive, default=16384, metavar="N")
    parser.add_argument("--hicache-size", type=positive, metavar="GB", help="default 8")
    parser.add_argument("--l2-bytes", type=positive, metavar="N", help="instead, for small models")
    parser.add_argument("--page-size", type=positive, default=1, metavar="N")
    parser.add_argument("--curve-groups", type=positives, metavar="N,...")
    _add_shape(parser)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=positive, default=32, metavar="N")
    parser.add_argument("--prompts", type=positive, default=4, metavar="N", help="a group")
    parser.add_argument("--prefix", type=positive, default=2048, metavar="TOKENS")
    parser.add_argument("--question", type=positive, default=64, metavar="TOKENS")
    parser.add_argument("--output", type=positive, default=32, metavar="TOKENS")
    parser.add_argument("--concurrency", type=positive, default=8, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")


def write_workload(args: argparse.Namespace) -> int:
    require("sglang", extra="experiment")
    from hiqcache.lab.experiment.predict import trace
    from hiqcache.simulate.trace import write_trace

    requests = trace(_workload(args), args.seed)
    write_trace(args.out, requests)
    print(f"{args.out}: {len(requests):,} requests")
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    return Workload(
        args.groups, args.prompts, args.prefix, args.question, args.output, args.concurrency
    )


def run_experiments(args: argparse.Namespace) -> int:
    require("sglang", extra="experiment")
    from hiqcache.lab.experiment.invocation import Invocation, carry_out

    size, bytes_ = args.hicache_size, args.l2_bytes
    if size is not None and bytes_ is not None:
        raise UsageError("--hicache-size and --l2-bytes say the same thing; remove one")
    if args.out is not None and args.resume is not None:
        raise UsageError("--out names new results and --resume old ones; remove one")
    asked = Invocation(
        experiments=tuple(args.experiments),
        model=args.model,
        load_format=args.load_format,
        workload=_workload(args),
        l1_tokens=args.l1_tokens,
        budget_bytes=bytes_ or (size or DEFAULT_SIZE) * 10**9,
        page=args.page_size,
        curve_groups=args.curve_groups,
        seed=args.seed,
        arms=tuple(args.arms.split(",")) if args.arms else None,
        repeats=REPEATS | _repeats(args.repeats),
        out=args.out,
        resume=args.resume,
        logs=args.logs,
        side_by_side=args.side_by_side,
        gpus=tuple(args.gpus.split(",")) if args.gpus else (),
        per_gpu=args.per_gpu,
        warm_up=not args.no_warm_up,
        commit=args.commit,
        image=args.image,
        container_image=args.container_image,
        arguments=tuple(args.server_arguments),
        command=tuple(sys.argv),
    )
    folder, unusable = carry_out(asked)
    print(folder)
    print(f"hiqcache report {shlex.quote(str(folder))} prints its tables", file=sys.stderr)
    if unusable:
        print(f"{unusable} runs may not be used; rows.jsonl says why", file=sys.stderr)
    return 1 if unusable else 0


def _repeats(text: str | None) -> dict[str, int]:
    repeats = {}
    for part in text.split(",") if text else ():
        name, equals, number = part.partition("=")
        if name not in EXPERIMENTS or not equals:
            raise UsageError(f"--repeats takes EXPERIMENT=N,..., got {part!r}")
        try:
            repeats[name] = positive(number)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--repeats {part}: {error}") from None
    return repeats
