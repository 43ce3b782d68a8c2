"""Somebody else's L3 backend on real servers.

A file of its own: test_l3.py keeps a server until its end, and beside two servers and the ranks of
another file SGLang would find less memory than its reserve.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from hiqcache.codec.page import HEADER_BYTES
from tests.engine.case import prompts
from tests.engine.conftest import importable
from tests.engine.l3 import PATIENCE, l3_server, settled

pytestmark = pytest.mark.engine

BACKEND = Path(__file__).parent / "backend"
TOKEN_BYTES = 30 * 2 * 208
"""SmolLM2-135M under `int8-compact`: layers, K and V, records of 3 heads x 64 and 3 scales."""


def test_a_dynamic_backend_serves_a_restarted_server(model: str, out: Path, tmp_path: Path) -> None:
    path = tmp_path / "l3.sqlite"
    options = {
        "backend_name": "sqlite",
        "module_path": "sqlite_l3",
        "class_name": "SqliteStorage",
        "path": str(path),
        "prefetch_threshold": 64,
        **PATIENCE,
    }
    arguments = (
        *("--hicache-storage-backend", "dynamic"),
        *("--hicache-storage-backend-extra-config", json.dumps(options)),
        *("--hicache-storage-prefetch-policy", "timeout"),
        *("--hicache-mem-layout", "layer_first"),
    )
    variables = importable(BACKEND)
    text = prompts(10)[9][:1500]
    with l3_server(
        model, out, "l3-dynamic-first", "int8-compact", arguments, **variables
    ) as served:
        served.ask(text)
        with sqlite3.connect(path) as database:
            settled(lambda: database.execute("SELECT COUNT(*) FROM pages").fetchone()[0])
            sizes = database.execute("SELECT DISTINCT LENGTH(page) FROM pages").fetchall()
        assert sizes == [(HEADER_BYTES + TOKEN_BYTES,)], "a page is one token here"
    with l3_server(
        model, out, "l3-dynamic-second", "int8-compact", arguments, **variables
    ) as served:
        answer = served.ask(text)
        assert answer.storage_tokens == answer.prompt_tokens - 1
        assert sum(served.bad_pages().values()) == 0
