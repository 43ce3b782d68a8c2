"""What `hiqcache quality run` and `offline` have in common: options, model, prompts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hiqcache.codec.catalog import lossy_codecs
from hiqcache.commands.numbers import positive

GPU_COUNT, CPU_COUNT = 200, 12


def add_shared(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--model",
        metavar="ID|PATH",
        help="a Hugging Face id or a folder (default: SmolLM2-135M-Instruct, prepared here)",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="your own prompts, a .jsonl or a text (docs/quality.md); default: those that ship",
    )
    parser.add_argument(
        "--count",
        type=positive,
        metavar="N",
        help=f"how many prompts (default {GPU_COUNT} on a GPU, {CPU_COUNT} on a CPU)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/quality") / name, metavar="DIR", help="a new folder"
    )
    parser.add_argument("--commit", help="for the results, where the checkout has no .git")


def load(args: argparse.Namespace, gpu: bool) -> Any:
    """The model's name or folder, its text side and the prompts."""
    from hiqcache.lab.progress import progress
    from hiqcache.lab.quality.setup import Text, choose_prompts

    with progress("prepare the prompts") as clock:
        if args.model:
            model = args.model
        else:
            from hiqcache.lab.model.smollm2 import prepare

            model = str(prepare(report=clock.note))
        text = Text.load(model)
        default = None if args.prompts else (GPU_COUNT if gpu else CPU_COUNT)
        prompts = choose_prompts(text, args.prompts, args.count or default)
        clock.note(f"{len(prompts)} prompts, {sum(len(p.prefix) for p in prompts):,} tokens")
    return model, text, prompts


def codecs(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in lossy_codecs():
            raise argparse.ArgumentTypeError(
                f"unknown codec {name!r}: expected one or more of {', '.join(lossy_codecs())} "
                f"(bf16 is always there)"
            )
    return names
