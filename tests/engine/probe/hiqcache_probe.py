"""A plugin for tests that watches every backup and restore inside a real SGLang scheduler.

On a backup it keeps the device rows, by host slot. Before a restore it poisons the device
rows that are to be written; after it, it compares what is there with what was backed up:
bit by bit under `bf16`, against the analytic error bound under the other codecs. It also looks
at the padding of every record it sees. What it counted goes to the JSON file in PROBE_REPORT.

It is found by its `.dist-info` folder when this directory is on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch


class Probe:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.report: dict[str, Any] = {
            "backed_up_rows": 0,
            "restored_rows": 0,
            "differing_rows": 0,
            "bound_violations": 0,
            "largest_normalised_error": 0.0,
            "dirty_padding_bytes": 0,
            "unpoisoned_rows": 0,
        }
        self.mirrors: dict[tuple[int, str], torch.Tensor] = {}

    def write(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.report))
        temporary.replace(self.path)

    def pool(self, pool: Any) -> None:
        buffers = (pool.k_buffer, pool.v_buffer)
        self.report |= {
            "tokens": pool.size,
            "size_per_token": pool.size_per_token,
            "buffer_bytes": sum(buffer.nbytes for buffer in buffers),
            "device_tokens": pool.device_capacity_tokens,
            "page_size": pool.page_size,
        }
        self.write()

    def mirror(self, pool: Any, layer: int, name: str) -> torch.Tensor:
        side = getattr(pool.transfer, name)
        shape = (pool.size, side.layout.heads, side.layout.head_dim)
        return self.mirrors.setdefault((layer, name), torch.zeros(shape, dtype=torch.bfloat16))

    def backed_up(self, pool: Any, host: torch.Tensor, device: torch.Tensor) -> None:
        for layer in range(pool.layer_num):
            for name in ("k", "v"):
                side = getattr(pool.transfer, name)
                self.mirror(pool, layer, name)[host] = side.device[layer][device]
                self.look_at_padding(side, layer, host)
        self.report["backed_up_rows"] += len(host) * pool.layer_num * 2
        self.write()

    def look_at_padding(self, side: Any, layer: int, host: torch.Tensor) -> None:
        padding = side.host[layer][host][:, side.layout.used_bytes :]
        self.report["dirty_padding_bytes"] += int(torch.count_nonzero(padding))

    def poison(self, pool: Any, device: torch.Tensor, layer: int) -> None:
        for name in ("k", "v"):
            getattr(pool.transfer, name).device[layer][device] = float("nan")

    def restored(self, pool: Any, host: torch.Tensor, device: torch.Tensor, layer: int) -> None:
        for name in ("k", "v"):
            side = getattr(pool.transfer, name)
            self.look_at_padding(side, layer, host)
            found = side.device[layer][device]
            kept = self.mirror(pool, layer, name)[host]
            self.report["restored_rows"] += len(host)
            self.report["unpoisoned_rows"] += int(found.isnan().flatten(1).any(1).sum())
            self.compare(pool.codec.name, found, kept)
        if layer == pool.layer_num - 1:
            self.write()

    def compare(self, codec: str, found: torch.Tensor, kept: torch.Tensor) -> None:
        differs = (found.view(torch.int16) != kept.view(torch.int16)).flatten(1).any(1)
        self.report["differing_rows"] += int(differs.sum())
        if codec == "bf16":
            return
        # Written again here, from the formula, so that a wrong bound in the product shows.
        x, restored = kept.double(), found.double()
        absmax = x.abs().amax(-1, keepdim=True).clamp_min(2.0**-112)
        scale = absmax / 127
        error = (restored - x).abs()
        bound = (0.5 + 2.0**-8) * scale + 2.0**-8 * restored.abs()
        self.report["bound_violations"] += int((error > bound).sum())
        largest = float((error / scale).max())
        self.report["largest_normalised_error"] = max(
            self.report["largest_normalised_error"], largest
        )


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    probe = Probe(Path(os.environ["PROBE_REPORT"]))
    pool_class = "hiqcache.engine.host_pool.EncodedHostPool"

    def views(original: Any, pool: Any, *args: Any) -> None:
        original(pool, *args)
        probe.pool(pool)

    def backup(
        original: Any, pool: Any, device_pool: Any, host: Any, device: Any, io_backend: str
    ) -> None:
        original(pool, device_pool, host, device, io_backend)
        probe.backed_up(pool, host, device)

    def load(
        original: Any,
        pool: Any,
        device_pool: Any,
        host: Any,
        device: Any,
        layer: int,
        io_backend: str,
        *,
        is_draft: bool = False,
    ) -> None:
        probe.poison(pool, device, layer)
        original(pool, device_pool, host, device, layer, io_backend, is_draft=is_draft)
        probe.restored(pool, host, device, layer)

    def budget(original: Any, *args: Any, **kwargs: Any) -> int:
        value: int = original(*args, **kwargs)
        if kwargs.get("auto_size"):
            probe.report["auto_budget_bytes"] = value
        return value

    for target, hook in (
        (f"{pool_class}._initialize_transfer_views", views),
        (f"{pool_class}.backup_from_device_all_layer", backup),
        (f"{pool_class}.load_to_device_per_layer", load),
        ("sglang.srt.mem_cache.hicache_auto_size.host_memory_budget_bytes", budget),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
