"""`hiqcache quality choose`: the ladder on the user's own model, and one rung to take."""

from __future__ import annotations

import argparse
from typing import Any

from hiqcache.codec.catalog import BASELINE
from hiqcache.commands.packages import require
from hiqcache.lab.commands.quality_shared import add_shared, choose_device, load, measured

GPU_PROMPTS, CPU_PROMPTS = 40, 6


def add_choose(ways: Any) -> None:
    parser = ways.add_parser(
        "choose",
        help="the codec for your model, in minutes",
        description="Read a few prompts through every codec in Hugging Face transformers, beside "
        "the noise floor of bfloat16 and what an fp8 cache changes, and name the codec with the "
        "most tokens whose change cannot be told from the noise.",
    )
    add_shared(parser, "choose")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.set_defaults(run=run_choose)


def run_choose(args: argparse.Namespace) -> int:
    require("transformers", "numpy", extra="sglang,demo")
    from hiqcache.codec.registry import get_codec
    from hiqcache.lab.present import aligned
    from hiqcache.lab.progress import progress
    from hiqcache.lab.quality.choose import choose, lines
    from hiqcache.lab.quality.figures import mean_kl
    from hiqcache.lab.quality.offline import OfflineSpec, run_offline
    from hiqcache.lab.quality.row import NOISE_FLOOR
    from hiqcache.lab.quality.setup import describe
    from hiqcache.lab.quality.summary import conclude_offline
    from hiqcache.lab.quality.twin import Twin
    from hiqcache.lab.quality.verdict import UNITS
    from hiqcache.lab.row import Store, origin

    device = choose_device(args.device)
    args.count = args.count or (GPU_PROMPTS if device != "cpu" else CPU_PROMPTS)
    store = Store(args.out)
    model, text, prompts = load(args, device != "cpu", windows=False)
    names = (BASELINE, *measured())
    rows = []
    with progress(f"the ladder on {device}") as clock:
        spec = OfflineSpec(prompts=prompts, codecs=[get_codec(name) for name in names])
        for row in run_offline(Twin(model, "float32", device), spec, text.decode):
            rows.append(row)
            clock.note(f"{row.prompt}: {row.comparison}")
    with progress("the noise floor of bfloat16") as clock:
        spec = OfflineSpec(prompts=prompts, codecs=())
        noise = list(run_offline(Twin(model, "bfloat16", device), spec, text.decode))
    floor = mean_kl([row for row in noise if row.comparison == NOISE_FLOOR])
    store.add("noise", *noise)
    settings = {
        "provenance": origin(args.commit),
        **describe(model, args.prompts, prompts),
        "dtype": "float32",
        "codecs": list(names),
        "bfloat16_noise_floor": floor,
    }
    summary = conclude_offline(rows, settings, store)
    choice = choose(summary["comparisons"], floor["value"], text.geometry)
    print(f"\nHIQCACHE_CODEC={choice.codec}: {choice.reason}.\n")
    print(aligned(lines(summary["comparisons"], floor, text.geometry)))
    print(f"\n{len(prompts)} prompts. {UNITS}\n{store.folder}")
    return 0
