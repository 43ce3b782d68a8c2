"""`hiqcache demo` as a user runs it, with fewer documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

DOCUMENTS = 6


def test_the_demo_restores_more_than_bf16_in_the_same_memory(model: str, out: Path) -> None:
    folder = out / "demo"
    command = [sys.executable, "-m", "hiqcache.cli", "demo", "--model", model]
    command += ["--documents", str(DOCUMENTS), "--new-tokens", "2", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens restored from L2" in done.stdout
    plain, encoded = json.loads((folder / "report.json").read_text())["arms"]
    assert encoded["backup_bytes_per_token"] < plain["backup_bytes_per_token"]
    assert encoded["l2_tokens"] > plain["l2_tokens"]
    assert encoded["restored_tokens"] > plain["restored_tokens"]
