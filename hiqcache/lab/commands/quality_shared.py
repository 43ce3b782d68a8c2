"""What `hiqcache quality run` and `offline` have in common: options, model, prompts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hiqcache.codec.catalog import BASELINE, codec_names, listed_codecs
from hiqcache.commands.numbers import positive
from hiqcache.errors import UsageError

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


def load(args: argparse.Namespace, gpu: bool, *, windows: bool = True) -> Any:
    """The model's name or folder, its text side and the prompts.

    Parameters
    ----------
    windows
        Whether prompts may be longer than a window of the model's layers.
    """
    from hiqcache.lab.progress import progress
    from hiqcache.lab.quality.corpus import LONGEST, SHORTEST
    from hiqcache.lab.quality.setup import Text, choose_prompts

    with progress("prepare the prompts") as clock:
        if args.model:
            model = args.model
        else:
            from hiqcache.lab.model.smollm2 import prepare

            model = str(prepare(report=clock.note))
        text = Text.load(model)
        default = None if args.prompts else (GPU_COUNT if gpu else CPU_COUNT)
        tokens = (SHORTEST, LONGEST) if windows else text.lengths()
        prompts = choose_prompts(text, args.prompts, args.count or default, tokens)
        clock.note(f"{len(prompts)} prompts, {sum(len(p.prefix) for p in prompts):,} tokens")
    return model, text, prompts


def choose_device(asked: str) -> str:
    """`cpu` or `cuda`, as asked for or as there is.

    Raises
    ------
    UsageError
        A GPU was asked for and there is none.
    """
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device {asked}: PyTorch finds no NVIDIA GPU here")
    return asked


def codecs(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name == BASELINE or name not in codec_names():
            known = ", ".join(name for name in codec_names() if name != BASELINE)
            raise argparse.ArgumentTypeError(
                f"unknown codec {name!r}: expected one or more of {known} "
                f"({BASELINE} is always there)"
            )
    return names


def measured() -> tuple[str, ...]:
    """The codecs that are measured where none are named: all that are listed."""
    return tuple(name for name in listed_codecs() if name != BASELINE)
