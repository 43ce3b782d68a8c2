"""An L3 backend of somebody else's, for `--hicache-storage-backend dynamic`: one SQLite file.

It keeps SGLang's contract and knows nothing of HiQCache: bytes in under a key, bytes out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage


class SqliteStorage(HiCacheStorage):  # type: ignore[misc]  # SGLang ships no types
    def __init__(self, config: Any, options: dict[str, Any]) -> None:
        self.prefix = f"{config.model_name}/{config.tp_rank}/{config.tp_size}/"
        path = Path(config.extra_config["path"])
        # SGLang reads and writes from two threads.
        self.database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # A page is a transaction: without this each of hundreds waits for the disk.
        self.database.execute("PRAGMA synchronous = OFF")
        self.database.execute("CREATE TABLE IF NOT EXISTS pages (key TEXT PRIMARY KEY, page BLOB)")

    def exists(self, key: str) -> bool:
        query = "SELECT 1 FROM pages WHERE key = ?"
        return self.database.execute(query, (self.prefix + key,)).fetchone() is not None

    def get(self, key: str, target: torch.Tensor, sizes: Any = None) -> torch.Tensor | None:
        query = "SELECT page FROM pages WHERE key = ?"
        found = self.database.execute(query, (self.prefix + key,)).fetchone()
        if found is None:
            return None
        return torch.frombuffer(bytearray(found[0]), dtype=torch.uint8)

    def batch_get(
        self, keys: Sequence[str], targets: Sequence[torch.Tensor], sizes: Any = None
    ) -> list[torch.Tensor | None]:
        return [self.get(*each) for each in zip(keys, targets, strict=True)]

    def set(self, key: str, page: torch.Tensor, target: Any = None, sizes: Any = None) -> bool:
        row = (self.prefix + key, page.numpy().tobytes())
        self.database.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", row)
        return True

    def batch_set(
        self,
        keys: Sequence[str],
        pages: Sequence[torch.Tensor],
        target: Any = None,
        sizes: Any = None,
    ) -> bool:
        return all(self.set(*each) for each in zip(keys, pages, strict=True))

    def clear(self) -> None:
        self.database.execute("DELETE FROM pages")
