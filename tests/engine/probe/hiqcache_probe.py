"""A plugin for tests that watches every backup and restore inside a real SGLang scheduler.

On a backup it keeps the device rows, by host slot. Before a restore it poisons the device
rows that are to be written, of all layers, since a transfer may carry layers ahead; after each
layer it compares what is there with what was backed up: bit by bit with what the reference codec
makes of it, and, but for `bf16`, against the analytic error bound.

Everything is enqueued on the stream of the transfer and counted on the device, and nothing
waits for it, so that a GPU's transfers stay as asynchronous as they are without a probe. A
thread writes the counts to the JSON file in PROBE_REPORT twice a second; each further rank of
tensor parallelism has a file of its own beside it.

While the file named by PROBE_DELAY exists, every layer of a restore waits for as many seconds as
it says.

When the file named by PROBE_FLIP appears, it flips one bit of a record of L2 that is about to be
restored, once.

It is found by its `.dist-info` folder when this directory is on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

COUNTS = (
    "backed_up_rows",
    "restored_rows",
    "differing_rows",
    "wrong_rows",
    "bound_violations",
    "unpoisoned_rows",
    "dirty_padding_bytes",
    "delayed_layers",
)
WRONG = ("wrong_rows", "bound_violations", "unpoisoned_rows", "dirty_padding_bytes")
"""Counts that must stay 0."""

WRITE_SECONDS = 0.5
FLIPPED_LAYER = 7


def rank_path(path: Path, rank: int) -> Path:
    """Where a rank's counts are; the first rank's are at `path` itself."""
    return path.with_suffix(f".rank{rank}.json") if rank else path


class Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int:
    """Bytes that this process has allocated and not freed, whatever glibc keeps besides."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    heap = mallinfo2()
    return int(heap.uordblks + heap.hblkhd)


def shared_memory() -> int:
    """Bytes of this process that lie in shared mappings, as SGLang's host buffers do."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssShmem:")[2].split()[0]) * 1024


class Probe:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.pool: Any = None
        self.facts: dict[str, Any] = {}
        self.mirrors: dict[tuple[int, str], torch.Tensor] = {}
        self.counts: dict[str, torch.Tensor] = {}
        self.largest_error = torch.zeros((), dtype=torch.float64)
        self.writes = 0

    def start(self, pool: Any) -> None:
        from sglang.srt.runtime_context import get_parallel

        if rank := get_parallel().tp_rank:
            self.path = rank_path(self.path, rank)
        self.pool = pool
        device = pool.device_k_buffers[0].device
        self.counts = {name: torch.zeros((), dtype=torch.int64, device=device) for name in COUNTS}
        self.largest_error = torch.zeros((), dtype=torch.float64, device=device)
        for layer in range(pool.layer_num):
            for name in ("k", "v"):
                side = getattr(pool.transfer, name)
                shape = (pool.size, side.layout.heads, side.layout.head_dim)
                dtype = side.device[layer].dtype
                self.mirrors[layer, name] = torch.zeros(shape, dtype=dtype, device=device)
        self.facts |= {
            "tokens": pool.size,
            "size_per_token": pool.size_per_token,
            "buffer_bytes": pool.k_buffer.nbytes + pool.v_buffer.nbytes,
            "device_tokens": pool.device_capacity_tokens,
            "transfer": pool.transfer.name,
            "layers": pool.layer_num,
            "dtype": str(pool.dtype).removeprefix("torch."),
        }
        threading.Thread(target=self.keep_writing, daemon=True).start()

    def keep_writing(self) -> None:
        while True:
            self.writes += 1
            counted = {name: int(count) for name, count in self.counts.items()}
            report = self.facts | counted | {"writes": self.writes}
            report["free_tokens"] = self.pool.available_size()
            report["heap_bytes"] = heap_bytes()
            report["largest_normalised_error"] = float(self.largest_error)
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(report))
            temporary.replace(self.path)
            time.sleep(WRITE_SECONDS)

    def backed_up(self, pool: Any, host: torch.Tensor, device: torch.Tensor) -> None:
        for (layer, name), mirror in self.mirrors.items():
            side = getattr(pool.transfer, name)
            rows = side.device[layer]
            mirror[host.to(rows.device)] = rows[device.to(rows.device)]
            self.look_at_padding(side, layer, host)
        self.counts["backed_up_rows"] += len(host) * len(self.mirrors)

    def look_at_padding(self, side: Any, layer: int, host: torch.Tensor) -> None:
        # A GPU has not sent the records yet; there the kernels' own tests look at padding.
        if side.device[layer].device.type == "cpu":
            padding = side.host[layer][host.cpu()][:, side.layout.used_bytes :]
            self.counts["dirty_padding_bytes"] += torch.count_nonzero(padding)

    def poison(self, pool: Any, device: torch.Tensor) -> None:
        for name in ("k", "v"):
            for rows in getattr(pool.transfer, name).device:
                rows[device.to(rows.device)] = float("nan")

    def flip(self, pool: Any, host: torch.Tensor) -> None:
        armed = Path(os.environ.get("PROBE_FLIP", "/nonexistent"))
        if armed.exists():
            armed.unlink()
            pool.transfer.k.host[FLIPPED_LAYER][int(host[-1]), 5] ^= 1 << 6

    def delay(self) -> None:
        with contextlib.suppress(OSError):
            time.sleep(float(Path(os.environ.get("PROBE_DELAY", "")).read_text()))
            self.counts["delayed_layers"] += 1

    def restored(self, pool: Any, host: torch.Tensor, device: torch.Tensor, layer: int) -> None:
        for name in ("k", "v"):
            side = getattr(pool.transfer, name)
            self.look_at_padding(side, layer, host)
            rows = side.device[layer]
            found = rows[device.to(rows.device)]
            kept = self.mirrors[layer, name][host.to(rows.device)]
            self.counts["restored_rows"] += len(host)
            self.counts["unpoisoned_rows"] += found.isnan().flatten(1).any(1).sum()
            differs = found.view(torch.int16) != kept.view(torch.int16)
            self.counts["differing_rows"] += differs.flatten(1).any(1).sum()
            records = pool.codec.encode(kept, side.layout)
            expected = pool.codec.decode(records, side.layout, torch.empty_like(kept))
            wrong = found.view(torch.int16) != expected.view(torch.int16)
            self.counts["wrong_rows"] += wrong.flatten(1).any(1).sum()
            if pool.codec.name != "bf16":
                self.check_bound(found, kept.double(), pool.codec.run_length(kept.shape[-1]))

    def check_bound(self, rows: torch.Tensor, x: torch.Tensor, run: int) -> None:
        # Written again here, from the formula, so that a wrong bound in the product shows.
        restored = rows.double()
        half = rows.dtype == torch.float16
        output = 2.0**-11 * restored.abs() + 2.0**-25 if half else 2.0**-8 * restored.abs()
        y = x
        if run > 1:
            matrix = torch.ones(1, 1, dtype=x.dtype, device=x.device)
            while len(matrix) < run:
                matrix = torch.cat([torch.cat([matrix, matrix]), torch.cat([matrix, -matrix])], 1)
            y = (x.unflatten(-1, (-1, run)) @ matrix / run).flatten(-2)
        scale = y.abs().amax(-1, keepdim=True).clamp_min(2.0**-112) / 127
        error = (restored - x).abs()
        bound = run * (0.5 + 2.0**-8) * scale + output
        self.counts["bound_violations"] += (error > bound).sum()
        largest = (error / scale).max()
        torch.maximum(self.largest_error, largest, out=self.largest_error)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    probe = Probe(Path(os.environ["PROBE_REPORT"]))
    pool_class = "hiqcache.engine.host_pool.EncodedHostPool"

    def views(original: Any, pool: Any, *args: Any) -> None:
        original(pool, *args)
        probe.start(pool)

    def buffers(original: Any, pool: Any) -> Any:
        before = shared_memory()
        made = original(pool)
        probe.facts["memory_taken_bytes"] = shared_memory() - before
        return made

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
        if layer == 0:
            probe.flip(pool, host)
            probe.poison(pool, device)
        probe.delay()
        original(pool, device_pool, host, device, layer, io_backend, is_draft=is_draft)
        probe.restored(pool, host, device, layer)

    def budget(original: Any, *args: Any, **kwargs: Any) -> int:
        value: int = original(*args, **kwargs)
        if kwargs.get("auto_size"):
            probe.facts["auto_budget_bytes"] = value
        return value

    for target, hook in (
        (f"{pool_class}.init_kv_buffer", buffers),
        (f"{pool_class}._initialize_transfer_views", views),
        (f"{pool_class}.backup_from_device_all_layer", backup),
        (f"{pool_class}.load_to_device_per_layer", load),
        ("sglang.srt.mem_cache.hicache_auto_size.host_memory_budget_bytes", budget),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
