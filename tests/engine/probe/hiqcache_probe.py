"""A plugin for tests that watches every backup and restore inside a real SGLang scheduler.

On a backup it keeps the device rows, by host slot. Before a restore it poisons the device
rows that are to be written, of all layers, since a transfer may carry layers ahead; after each
layer it compares what is there with what was backed up: bit by bit with what the reference codec
makes of it, and, under INT8, against the analytic error bound. Each encoded pool of the stack
is watched by itself, packed draft layers included; recurrent state must come back bit by bit.

Everything is enqueued on the stream of the transfer and counted on the device, and nothing
waits for it, so that a GPU's transfers stay as asynchronous as they are without a probe. A
thread writes the counts to the JSON file in PROBE_REPORT twice a second; each further rank of
tensor parallelism has a file of its own beside it.

While the file named by PROBE_DELAY exists, every layer of a restore waits for as many seconds as
it says.

While the file named by PROBE_RUIN exists, the restored rows of layers that draft are ruined once
they have been looked at: what comes of wrong draft rows.

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


class Watched:
    """An encoded pool: the rows that went out of it, and what has been counted of it."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.restoring: torch.Tensor | None = None
        self.left = 0
        device = pool.device_k_buffers[0].device
        self.counts = {name: torch.zeros((), dtype=torch.int64, device=device) for name in COUNTS}
        self.largest_error = torch.zeros((), dtype=torch.float64, device=device)
        self.sides = (
            (pool.k_layout, pool.device_k_buffers, by_layer(pool, pool.k_buffer)),
            (pool.v_layout, pool.device_v_buffers, by_layer(pool, pool.v_buffer)),
        )
        self.mirrors = [
            [torch.zeros(pool.size, *rows.shape[1:], dtype=rows.dtype, device=device) for rows in d]
            for _, d, _ in self.sides
        ]
        self.facts = {
            "tokens": pool.size,
            "size_per_token": pool.size_per_token,
            "buffer_bytes": pool.k_buffer.nbytes + pool.v_buffer.nbytes,
            "device_tokens": pool.device_capacity_tokens,
            "transfer": pool.transfer.name,
            "layers": pool.layer_num,
            "drafts": pool.drafts,
            "dtype": str(pool.dtype).removeprefix("torch."),
        }

    def report(self) -> dict[str, Any]:
        counted = {name: int(count) for name, count in self.counts.items()}
        return (
            self.facts
            | counted
            | {
                "free_tokens": self.pool.available_size(),
                "largest_normalised_error": float(self.largest_error),
            }
        )

    def backed_up(self, host: torch.Tensor, device: torch.Tensor) -> None:
        for (layout, rows, records), mirrors in zip(self.sides, self.mirrors, strict=True):
            for layer, mirror in enumerate(mirrors):
                mirror[host.to(mirror.device)] = rows[layer][device.to(mirror.device)]
                self.look_at_padding(layout, records[layer], host)
        self.counts["backed_up_rows"] += len(host) * 2 * self.pool.layer_num

    def look_at_padding(self, layout: Any, records: torch.Tensor, host: torch.Tensor) -> None:
        # A GPU has not sent the records yet; there the kernels' own tests look at padding.
        if self.pool.device_k_buffers[0].device.type == "cpu":
            padding = records[host.cpu()][:, layout.used_bytes :]
            self.counts["dirty_padding_bytes"] += torch.count_nonzero(padding)

    def poison(self, device: torch.Tensor) -> bool:
        """Before a restore's first call; says whether this is one."""
        if self.restoring is device and self.left:
            self.left -= 1
            return False
        self.restoring, self.left = device, self.pool.layer_num - 1
        for _, buffers, _ in self.sides:
            for rows in buffers:
                rows[device.to(rows.device)] = float("nan")
        return True

    def flip(self, host: torch.Tensor) -> None:
        armed = Path(os.environ.get("PROBE_FLIP", "/nonexistent"))
        if armed.exists():
            armed.unlink()
            _, _, records = self.sides[0]
            records[FLIPPED_LAYER][int(host[-1]), 5] ^= 1 << 6

    def delay(self) -> None:
        with contextlib.suppress(OSError):
            time.sleep(float(Path(os.environ.get("PROBE_DELAY", "")).read_text()))
            self.counts["delayed_layers"] += 1

    def restored(self, host: torch.Tensor, device: torch.Tensor, layer: int) -> None:
        codec = self.pool.codec
        for (layout, buffers, records), mirrors in zip(self.sides, self.mirrors, strict=True):
            rows, mirror = buffers[layer], mirrors[layer]
            self.look_at_padding(layout, records[layer], host)
            found = rows[device.to(rows.device)]
            kept = mirror[host.to(mirror.device)]
            self.counts["restored_rows"] += len(host)
            self.counts["unpoisoned_rows"] += found.isnan().flatten(1).any(1).sum()
            self.counts["differing_rows"] += unequal_rows(found, kept)
            expected = codec.decode(codec.encode(kept, layout), layout, torch.empty_like(kept))
            self.counts["wrong_rows"] += unequal_rows(found, expected)
            # The ladder's bounds need its records; its rows are the reference's, bit by bit.
            if codec.name.startswith("int8"):
                self.check_bound(found, kept.double())

    def ruin(self, device: torch.Tensor, layer: int) -> None:
        drafts = self.pool.name.startswith("draft") or layer >= self.pool.target_layer_num
        if drafts and Path(os.environ.get("PROBE_RUIN", "/nonexistent")).exists():
            for _, buffers, _ in self.sides:
                rows = buffers[layer]
                rows[device.to(rows.device)] = 7.0

    def check_bound(self, rows: torch.Tensor, x: torch.Tensor) -> None:
        # Written again here, from the formula, so that a wrong bound in the product shows.
        restored = rows.double()
        half = rows.dtype == torch.float16
        output = 2.0**-11 * restored.abs() + 2.0**-25 if half else 2.0**-8 * restored.abs()
        scale = x.abs().amax(-1, keepdim=True).clamp_min(2.0**-112) / 127
        error = (restored - x).abs()
        bound = (0.5 + 2.0**-8) * scale + output
        self.counts["bound_violations"] += (error > bound).sum()
        largest = (error / scale).max()
        torch.maximum(self.largest_error, largest, out=self.largest_error)


class WatchedState:
    """A pool of recurrent state, which SGLang keeps as it is: every byte must come back."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.layers = [
            [pool.temporal_device_layers[layer], *(conv[layer] for conv in pool.conv_device_layers)]
            for layer in range(pool.num_mamba_layers)
        ]
        self.mirrors = [
            [
                torch.zeros(pool.size, *state.shape[1:], dtype=state.dtype, device=state.device)
                for state in states
            ]
            for states in self.layers
        ]
        device = pool.temporal_device_layers[0].device
        self.counts = {
            name: torch.zeros((), dtype=torch.int64, device=device)
            for name in ("backed_up_states", "restored_states", "wrong_states")
        }

    def report(self) -> dict[str, Any]:
        counted = {name: int(count) for name, count in self.counts.items()}
        return counted | {
            "slots": self.pool.size,
            "slot_bytes": self.pool.size_per_token,
            "buffer_bytes": sum(buffer.nbytes for buffer in self.pool.kv_buffer),
            "free_slots": self.pool.available_size(),
        }

    def backed_up(self, host: torch.Tensor, device: torch.Tensor) -> None:
        for states, mirrors in zip(self.layers, self.mirrors, strict=True):
            for state, mirror in zip(states, mirrors, strict=True):
                mirror[host.to(mirror.device)] = state[device.to(state.device)]
        self.counts["backed_up_states"] += len(host)

    def poison(self, device: torch.Tensor, layer: int) -> None:
        for state in self.layers[layer]:
            state[device.to(state.device)] = float("nan")

    def restored(self, host: torch.Tensor, device: torch.Tensor, layer: int) -> None:
        for state, mirror in zip(self.layers[layer], self.mirrors[layer], strict=True):
            found, kept = state[device.to(state.device)], mirror[host.to(mirror.device)]
            self.counts["wrong_states"] += unequal_rows(found, kept)
        self.counts["restored_states"] += len(host) * (layer == 0)


def by_layer(pool: Any, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (buffer.transpose(0, 1) if pool.layout == "page_first" else buffer).unbind(0)


def unequal_rows(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    same = found.flatten(1).contiguous().view(torch.uint8)
    return (same != expected.flatten(1).contiguous().view(torch.uint8)).any(1).sum()


class Probe:
    """Every pool of the stack, by name, and the file that says what has been counted.

    The report's own figures are the sums over the encoded pools, and the facts of `kv`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pools: dict[str, Watched] = {}
        self.states: dict[int, WatchedState] = {}
        self.facts: dict[str, Any] = {}
        self.writes = 0

    def start(self, pool: Any) -> None:
        from sglang.srt.runtime_context import get_parallel

        self.pools[pool.name] = Watched(pool)
        if len(self.pools) > 1:
            return
        if rank := get_parallel().tp_rank:
            self.path = rank_path(self.path, rank)
        threading.Thread(target=self.keep_writing, daemon=True).start()

    def state(self, pool: Any) -> WatchedState:
        if id(pool) not in self.states:
            self.states[id(pool)] = WatchedState(pool)
        return self.states[id(pool)]

    def keep_writing(self) -> None:
        while True:
            self.writes += 1
            reports = {name: watched.report() for name, watched in list(self.pools.items())}
            report = dict(reports.get("kv", {}))
            for name in COUNTS:
                report[name] = sum(one[name] for one in reports.values())
            report["largest_normalised_error"] = max(
                one["largest_normalised_error"] for one in reports.values()
            )
            report |= self.facts | {
                "writes": self.writes,
                "heap_bytes": heap_bytes(),
                "pools": reports,
                "states": [state.report() for state in list(self.states.values())],
            }
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(report))
            temporary.replace(self.path)
            time.sleep(WRITE_SECONDS)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    probe = Probe(Path(os.environ["PROBE_REPORT"]))
    pool_class = "hiqcache.engine.host_pool.EncodedHostPool"
    state_class = "sglang.srt.mem_cache.pool_host.mamba.MambaPoolHost"

    def views(original: Any, pool: Any, *args: Any) -> None:
        original(pool, *args)
        probe.start(pool)

    def buffers(original: Any, pool: Any) -> Any:
        before = shared_memory()
        made = original(pool)
        taken = probe.facts.get("memory_taken_bytes", 0)
        probe.facts["memory_taken_bytes"] = taken + shared_memory() - before
        return made

    def backup(
        original: Any, pool: Any, device_pool: Any, host: Any, device: Any, io_backend: str
    ) -> None:
        original(pool, device_pool, host, device, io_backend)
        probe.pools[pool.name].backed_up(host, device)

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
        watched = probe.pools[pool.name]
        if watched.poison(device):
            watched.flip(host)
        watched.delay()
        original(pool, device_pool, host, device, layer, io_backend, is_draft=is_draft)
        watched.restored(host, device, layer)
        watched.ruin(device, layer)

    def backup_state(
        original: Any, pool: Any, device_pool: Any, host: Any, device: Any, *args: Any
    ) -> None:
        original(pool, device_pool, host, device, *args)
        probe.state(pool).backed_up(host, device)

    def load_state(
        original: Any,
        pool: Any,
        device_pool: Any,
        host: Any,
        device: Any,
        layer: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        probe.state(pool).poison(device, layer)
        original(pool, device_pool, host, device, layer, *args, **kwargs)
        probe.state(pool).restored(host, device, layer)

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
        (f"{state_class}.backup_from_device_all_layer", backup_state),
        (f"{state_class}.load_to_device_per_layer", load_state),
        ("sglang.srt.mem_cache.hicache_auto_size.host_memory_budget_bytes", budget),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
