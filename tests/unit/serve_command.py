"""`hiqcache serve` as a shell runs it, for tests of what it says before SGLang is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with nothing but these variables and what finding programs takes."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "hiqcache.cli", "serve", *arguments],
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
